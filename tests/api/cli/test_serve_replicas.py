"""Options of `izwi serve` for several engines."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

import pytest

from izwi.config import EngineConfig
from izwi.errors import InvalidRequest
from izwi.router.options import RouterOptions
from izwi_api.cli.serve import check_replicas, parse_devices, parse_places
from izwi_api.runtime_options import RuntimeOptions
from izwi_api.serve.operator_socket import socket_path
from izwi_api.serve.options import ReplicaOptions, ServeOptions
from izwi_api.settings import Settings


@pytest.mark.parametrize(
    ("num_replicas", "devices", "parsed"),
    [
        (0, None, ()),
        (1, None, ()),
        (2, None, ("cpu", "cpu")),
        (0, "cuda:0, cuda:1", ("cuda:0", "cuda:1")),
        (2, "cuda:1,cuda:1", ("cuda:1", "cuda:1")),
        (1, "cuda:3", ("cuda:3",)),
    ],
)
def test_devices_of_engines(num_replicas, devices, parsed):
    assert parse_devices(num_replicas, devices, "cpu") == parsed


@pytest.mark.parametrize(
    ("num_replicas", "devices", "said"),
    [
        (3, "cuda:0,cuda:1", "contradict each other"),
        (0, "cuda:0,,cuda:1", "empty name"),
        (0, "", "empty name"),
    ],
)
def test_devices_that_contradict_are_refused(num_replicas, devices, said):
    with pytest.raises(InvalidRequest, match=said):
        parse_devices(num_replicas, devices, "cpu")


@pytest.mark.parametrize(
    ("num_replicas", "devices", "ranks"),
    [
        (0, None, [("auto", "auto")]),
        (2, None, [("auto", "auto"), ("auto", "auto")]),
        (0, "cuda:0,cuda:1", [("cuda:0", "cuda:1")]),
        (0, "cuda:0,cuda:1,cuda:2,cuda:3", [("cuda:0", "cuda:1"), ("cuda:2", "cuda:3")]),
        (2, "cuda:0,cuda:2,cuda:1,cuda:3", [("cuda:0", "cuda:2"), ("cuda:1", "cuda:3")]),
    ],
)
def test_each_engine_has_the_devices_of_its_ranks(num_replicas, devices, ranks):
    parsed = parse_devices(num_replicas, devices, "auto", tensor_parallel=2)
    engines = ReplicaOptions(parsed, tensor_parallel=2)
    assert [engines.devices_of(replica) for replica in range(engines.count)] == ranks


def test_devices_that_are_no_multiple_of_the_ranks_are_refused():
    with pytest.raises(InvalidRequest, match="--tensor-parallel 2 takes so many devices"):
        parse_devices(0, "cuda:0,cuda:1,cuda:2", "auto", 2)
    with pytest.raises(InvalidRequest, match="contradict each other"):
        parse_devices(2, "cuda:0,cuda:1", "auto", 2)


def options(devices, num_api_servers=1, record=None, tensor_parallel=1, **routing):
    runtime = RuntimeOptions("cpu", "float32")
    loads = ((), runtime, EngineConfig(), Settings(), 1.0)
    router = RouterOptions(**routing)
    engines = ReplicaOptions(devices, router, tensor_parallel=tensor_parallel)
    return ServeOptions(*loads, num_api_servers, record, engines)


def test_a_split_engine_needs_a_process_of_its_own():
    two = ("cpu", "cpu")
    check_replicas(options(two, 1, Path("all.jsonl"), 2))
    with pytest.raises(InvalidRequest, match="--tensor-parallel needs API servers in processes"):
        check_replicas(options(two, 0, None, 2))


def test_a_limited_wait_needs_a_router():
    check_replicas(options((), 1, max_wait_s=0.1))
    with pytest.raises(InvalidRequest, match="--max-wait-ms needs API servers in processes"):
        check_replicas(options((), 0, max_wait_s=0.1))


def test_operators_reach_a_supervisor_only():
    check_replicas(dataclasses.replace(options(()), operators=True))
    with pytest.raises(InvalidRequest, match="--ctl needs API servers in processes"):
        check_replicas(dataclasses.replace(options((), 0), operators=True))


def test_what_several_engines_cannot_do_is_refused():
    two = ("cpu", "cpu")
    check_replicas(options(two))
    check_replicas(options((), 0, Path("all.jsonl")))
    with pytest.raises(InvalidRequest, match="leave out --in-process"):
        check_replicas(options(two, 0))
    with pytest.raises(InvalidRequest, match="--record records one engine"):
        check_replicas(options(two, 1, Path("all.jsonl")))


@pytest.mark.parametrize("min_ready", [0, 3])
def test_as_many_engines_must_be_ready_as_there_are_at_most(min_ready):
    with pytest.raises(InvalidRequest, match=r"--min-ready .* \(2\)"):
        ReplicaOptions(("cpu", "cpu"), min_ready=min_ready)


def test_places_of_models():
    places = parse_places(["asr=0", "a=b=1", "tts=1,2", "asr=2"])
    assert places == {"asr": (0, 2), "a=b": (1,), "tts": (1, 2)}
    for entry in ("asr", "asr=", "=0", "asr=0,", "asr=-1", "asr=x"):
        with pytest.raises(InvalidRequest, match="--place must be like"):
            parse_places([entry])


def test_places_name_models_and_replicas_that_exist_and_leave_none_empty():
    two = ("cpu", "cpu")
    with pytest.raises(InvalidRequest, match="no replica 2; they are 0 to 1"):
        ReplicaOptions(two, places={"asr": (0, 2)})
    placed = ReplicaOptions(two, places={"asr": (0,)})
    placed.check_models(["tts", "asr"])
    assert [[placed.serves(n, name) for name in ("tts", "asr")] for n in range(2)] == [
        [True, True],
        [True, False],
    ]
    with pytest.raises(InvalidRequest, match="no model is called 'asr'"):
        placed.check_models(["tts"])
    with pytest.raises(InvalidRequest, match="leaves replica 1 no model"):
        placed.check_models(["asr"])


@pytest.mark.parametrize(
    ("option", "value"), [("--log-level", "nonsense"), ("--router", "foo"), ("--devices", "")]
)
def test_a_wrong_value_is_reported_with_the_option_that_has_it(cli, option, value):
    assert option in cli("serve", option, value, code=2).output


def test_the_socket_of_operators_is_in_one_place_whatever_tmpdir_is(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    before = socket_path(8000)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)  # read again
    assert socket_path(8000) == before
