"""Checkpoints are found by folder, embedded name or hub id; errors name what is missing."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from izwi.backends.torch.backend import torch_backend
from izwi.checkpoints.registry import ENTRY_POINT, Registry, _fingerprint, embedded, families, find
from izwi.errors import CheckpointError, InvalidRequest, ModelNotFound
from izwi.model.capability import Capability
from tests.models.tiny_asr import write_tiny_asr


def test_families_come_from_the_entry_point() -> None:
    assert {"qwen3_tts", "qwen3_asr"} <= set(families())


def test_embedded_checkpoints_are_found_beside_families_that_are_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "a_family_of_tests"
    for name in ("one", "two", "recipes"):
        (module / "tiny" / name).mkdir(parents=True)
    for name in ("one", "two"):
        (module / "tiny" / name / "config.json").write_text("{}")
    (module / "__init__.py").write_text("raise ImportError")
    (tmp_path / "without_any.py").write_text("raise ImportError")
    names = ("a_family_of_tests", "without_any", "nowhere")
    points = [EntryPoint(name, f"{name}:FAMILIES", ENTRY_POINT) for name in names]
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("izwi.checkpoints.registry.entry_points", lambda **_: points)
    assert embedded() == {name: module / "tiny" / name for name in ("one", "two")}
    (module / "tiny").rename(module / "small")
    assert embedded() == {}


@pytest.mark.parametrize("source", ["nothing", "../nothing", "/nothing/here", "a/b/c", ""])
def test_an_unknown_source_is_not_found_without_a_request_to_the_hub(source: str) -> None:
    with pytest.raises(ModelNotFound):
        find(source)


def test_a_hub_id_offline_must_be_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelNotFound, match="local cache"):
        find("nobody/nothing-at-all", offline=True)


def test_models_are_served_by_name_and_task(tmp_path: Path) -> None:
    registry = Registry(torch_backend("cpu", "float32"))
    folder = write_tiny_asr(tmp_path / "listener")
    assert registry.load(str(folder)) == "listener"
    assert registry.load(str(folder), "again") == "again"
    assert registry.names() == ["listener", "again"]
    assert registry.default(Capability.TRANSCRIBE) == "listener"
    with pytest.raises(InvalidRequest):
        registry.speech("listener")
    with pytest.raises(ModelNotFound):
        registry.model("other")
    with pytest.raises(ModelNotFound):
        registry.default(Capability.SPEAK)


def test_a_registry_has_models_where_it_has_a_backend(tmp_path: Path) -> None:
    folder = str(write_tiny_asr(tmp_path / "listener"))
    frontends, both = Registry(), Registry(torch_backend("cpu", "float32"))
    for registry in (frontends, both):
        registry.load(folder)
        assert Capability.TRANSCRIBE in registry.model("listener").capabilities
    assert not frontends.models
    assert both.models.keys() == both.frontends.keys() == {"listener"}
    assert frontends.fingerprint("listener") == both.fingerprint("listener")
    both.unload("listener")
    assert not both.models
    assert not both.frontends


def test_a_fingerprint_changes_with_the_weights(tmp_path: Path) -> None:
    registry = Registry(torch_backend("cpu", "float32"))
    for seed in (1, 2):
        registry.load(str(write_tiny_asr(tmp_path / str(seed), seed=seed)))
    registry.load(str(tmp_path / "1"), "copy")
    assert registry.fingerprint("1") == registry.fingerprint("copy")
    assert registry.fingerprint("1") != registry.fingerprint("2")


def test_a_fingerprint_changes_with_the_weights_that_another_checkpoint_lends(
    tmp_path: Path,
) -> None:
    config = tmp_path / "borrower" / "config.json"
    config.parent.mkdir()
    config.write_text("{}")
    index = {"weight_map": {"a": "../lender/model.safetensors"}}
    (config.parent / "model.safetensors.index.json").write_text(json.dumps(index))
    lent = tmp_path / "lender" / "model.safetensors"
    lent.parent.mkdir()
    prints = set[str]()
    for content in (b"one", b"two"):
        lent.write_bytes(content)
        prints.add(_fingerprint(config.parent))
    assert len(prints) == 2


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"model_type": "parrot"}, "parrot"),
        ({"architectures": ["ParrotForGeneration"]}, "ParrotForGeneration"),
        ({"architectures": ["ParrotForGeneration"], "model_type": "jay"}, "jay"),
        ({"architectures": []}, "None"),
        ({"architectures": "Parrot"}, "None"),
    ],
)
def test_an_unknown_model_type_is_an_error_that_names_it(
    tmp_path: Path, config: dict[str, Any], named: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=f"'{named}'"):
        Registry(torch_backend("cpu", "float32")).load(str(tmp_path))


def test_devices_that_are_not_there_are_refused() -> None:
    for ask in ({"device": "tpu"}, {"device": "cpu", "dtype": "int8"}):
        with pytest.raises(InvalidRequest):
            torch_backend(**ask)
