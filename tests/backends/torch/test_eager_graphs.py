"""Captured steps draw what plain steps draw: one track and two, and every way to draw.

On a CPU graphs are work that is called again, over the same staged buffers. Here torch stands in
for the kernels; `test_triton_graphs.py` runs the same steps with them.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from izwi.backends.budget import budget_of
from izwi.backends.torch.backend import TorchBackend
from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi.model.layers import PagedAttention, ShortConv
from izwi.model.step_batch import StepBatch
from izwi.ops import AttentionSpec
from izwi.request.request import Request, SamplingParams
from izwi.runner.planning import plan_models
from izwi.runner.runner import Runner
from izwi_models.qwen3.config import DecoderConfig
from tests.backends.torch.eager import EagerOps, drawn_by_torch
from tests.engine import toy, toy_talk
from tests.engine.toy import toy_request
from tests.engine.toy_talk import WIDTH, talk_request
from tests.several import check_mixed_batch, row_after

pytest.importorskip("triton")  # which staging knows the limits of
from izwi.backends.torch.captured.decode_graphs import DecodeGraphs

WIDE = DecoderConfig(16, 24, 2, 4, 2, 16, 1e-6, 1e4)  # heads as wide as captured attention takes


class Speech(toy.ToySpeech):
    config = WIDE


class Text(toy.ToyText):
    config = WIDE


class Talk(toy_talk.ToyTalk):
    """Without a window, which is not captured."""

    layers = (
        ShortConv(WIDTH, 3),
        PagedAttention(1, 16, 1e4),
        ShortConv(WIDTH, 3),
        PagedAttention(1, 16, 1e4),
    )

    def run(self, x: Any, context: Any) -> Any:
        heads = AttentionSpec(num_heads=2, num_kv_heads=1, head_dim=16, rope_theta=1e4)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(toy_talk, "HEADS", heads)
            return super().run(x, context)


class Kind(NamedTuple):
    """A model, and how requests to it are made."""

    model: Callable[[Any], Any]
    request: Callable[..., Request]


def _talk(name: str, length: int, seed: int, entries: int) -> Request:
    return replace(talk_request(name, length, seed, 4 * entries), model="toy")


KINDS = {
    "speech": Kind(Speech, toy_request),
    "text": Kind(Text, toy_request),
    "talk": Kind(Talk, _talk),
}
CONFIG = EngineConfig(
    max_running=3, max_step_tokens=32, page_size=4, kv_bytes=1 << 20, chunk_ramp=(1, 2)
)
# by the request's number
OPTIONS: dict[int, dict[str, Any]] = {
    1: {"sampling": SamplingParams(0.9, 5, 0.9, 1.3)},
    2: {"sampling": SamplingParams(0.9, 100, 1.0, 1.2)},  # of more candidates than the kernel takes
    3: {"sampling": SamplingParams(0.9, 0)},
    4: {"sampling": SamplingParams(0.0), "logprobs": True},
    5: {"sampling": SamplingParams(0.9, 5, 0.9, 1.3, presence_penalty=0.7, frequency_penalty=0.4)},
    6: {
        "sampling": SamplingParams(0.9, 0, min_p=0.3, logit_bias=((4, 3.0), (5, -100.0))),
        "logprobs": True,
        "top_logprobs": 3,
    },
}


def requests_of(kind: Kind, count: int) -> list[Request]:
    """Log probabilities of frames are not captured, so nobody asks for them here."""
    made = [kind.request(f"r{n}", 3 + 2 * n, n, 7 + n % 3) for n in range(count)]
    asked = [replace(one, **OPTIONS.get(n % 7, {}), stop_ids=()) for n, one in enumerate(made)]
    return (
        asked
        if kind.model is Text
        else [replace(one, logprobs=False, top_logprobs=0) for one in asked]
    )


def config_of(**more: Any) -> EngineConfig:
    return dataclasses.replace(CONFIG, **more)


def run(kind: Kind, config: EngineConfig, requests: list[Request], seed: int) -> dict[str, Any]:
    """Entries and log probabilities of requests that come at any time."""
    rng = random.Random(seed)
    waiting, found = list(requests), {one.request_id: ([], []) for one in requests}  # type: ignore[var-annotated]
    with drawn_by_torch():
        engine = Engine({"toy": kind.model(EagerOps())}, TorchBackend(EagerOps()), config)
        while waiting or engine.has_work:
            for _ in range(min(len(waiting), rng.choice([0, 0, 1, 5]))):
                engine.submit(waiting.pop(0))
            for chunk in engine.step():
                assert chunk.error is None, chunk.error
                entries, likely = found[chunk.request_id]
                entries += chunk.entries.tolist()
                likely += [] if chunk.logprobs is None else chunk.logprobs.tolist()
    return found


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    for name, (entries, likely) in expected.items():
        assert found[name][0] == entries, name
        assert len(found[name][1]) == len(likely)
        for one, other in zip(found[name][1], likely, strict=True):
            assert one == pytest.approx(other, abs=1e-4)


@pytest.mark.parametrize(
    ("name", "max_running"),
    [
        *(("speech", 3), ("text", 3), ("talk", 3), ("talk", 10)),
        *(pytest.param(name, 10, marks=pytest.mark.slow) for name in ("speech", "text")),
    ],
)
def test_captured_steps_draw_what_plain_steps_draw(
    monkeypatch: pytest.MonkeyPatch, name: str, max_running: int
) -> None:
    """With more than eight rows, decoder and draws of a model of two tracks are apart."""
    config, kind = config_of(max_running=max_running), KINDS[name]
    requests = requests_of(kind, 7 if max_running == 3 else 12)
    expected = run(kind, config_of(graphs=False), requests, seed=0)
    decoded: list[int] = []
    decode = DecodeGraphs.decode

    def counted(self: DecodeGraphs, inputs: Any, rows: Any) -> Any:
        decoded.append(len(rows))
        return decode(self, inputs, rows)

    monkeypatch.setattr(DecodeGraphs, "decode", counted)
    assert_same(run(kind, config, requests, seed=1), expected)
    assert max(decoded) == max_running
    total = sum(len(entries) for entries, _ in expected.values())
    assert sum(decoded) > 0.7 * total, "few steps are plain"


@pytest.mark.parametrize("name", KINDS)
def test_warm_up_captures_every_graph(name: str) -> None:
    """Whatever rows a step has."""
    kind = KINDS[name]
    with drawn_by_torch():
        engine = Engine({"toy": kind.model(EagerOps())}, TorchBackend(EagerOps()), CONFIG)
        graphs = engine._workers["toy"].runner._graphs
        assert graphs is not None
        assert graphs.decodes is not None
        graphs.decodes.warm_up()
        captured: list[str] = []
        capture = graphs.decodes._capturer.capture

        def noted(work: Any) -> Any:
            captured.append(work.__qualname__)
            return capture(work)

        graphs.decodes._capturer.capture = noted  # type: ignore[method-assign]
        for request in requests_of(kind, 7):
            engine.submit(request)
        while engine.has_work:
            assert all(chunk.error is None for chunk in engine.step())
    assert captured, "prompts and codec are captured when they are asked for"
    assert not [name for name in captured if name.startswith("DecodeGraphs")]


# -- rows that draw several entries --------------------------------------------------------------
def runner_of(kind: Kind, graphs: bool) -> Runner:
    config, backend = config_of(graphs=graphs, max_running=16), TorchBackend(EagerOps())
    model = kind.model(backend.ops)
    plan = plan_models({"toy": model}, backend, config, {})
    return Runner(model, backend, config, budget_of(config, plan, "toy", 1))


def log_of(kind: Kind, request: Request) -> list[Any]:
    ((entries, _),) = run(kind, config_of(graphs=False), [request], seed=0).values()
    return [tuple(entry) for entry in entries]


@pytest.mark.parametrize("name", ["speech", "text"])
def test_rows_that_draw_several_entries_run_beside_decodes_and_prompts(name: str) -> None:
    """As a verifier of drafts asks for them; the next step reads what was drawn last."""
    kind = KINDS[name]
    requests = [
        replace(kind.request(f"r{n}", 3 + 2 * n, n, 9), **OPTIONS[1], stop_ids=()) for n in range(4)
    ]
    logs = [log_of(kind, request) for request in requests]
    with drawn_by_torch():
        runner = runner_of(kind, graphs=True)
        assert runner._graphs is not None
        with runner.backend.running():
            check_mixed_batch(runner, requests, logs)


def test_a_row_whose_guesses_are_in_flight_is_not_launched() -> None:
    """Its positions run like those of a prompt, whose inputs the host knows."""
    kind = KINDS["text"]
    request = kind.request("r", 5, 1, 9)
    with drawn_by_torch():
        graphs = runner_of(kind, graphs=True)._graphs
        assert graphs is not None
        row = row_after(request, 0, [(1,), (2,), (3,)], 3, 1)
        assert graphs.takes(StepBatch((row,)))
        assert not graphs.takes(StepBatch((replace(row, num_known=0),)))
        assert not graphs.takes(StepBatch(tuple([row] * 6))), "18 entries, but 16 places"
