"""Captured steps give what plain steps give. Without a GPU a capture is run again each time, over
the same staged buffers and, in Triton's interpreter, by the same kernels. There it takes tens of
seconds a test, so most are slow: `make bench-gpu` and `make nightly` run them."""

from __future__ import annotations

import dataclasses
import math
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from izwi.backends.torch.backend import TorchBackend
from izwi.backends.torch.captured.compiling import Rehearsal
from izwi.backends.torch.captured.decode_graphs import (
    FEW_KEYS,
    DecodeGraphs,
    DecodeKind,
    DrawKind,
)
from izwi.backends.torch.ops import TorchOps
from izwi.backends.torch.triton.attention_decode import PagedDecode
from izwi.backends.torch.triton.ops import TritonOps
from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi.request.request import SamplingParams
from izwi.request.sequence import Sequence
from izwi.runner.batch import draw
from izwi_models.qwen3.config import DecoderConfig
from tests.engine import toy
from tests.engine.toy import toy_request
from tests.steps import draws

WIDE = DecoderConfig(16, 24, 2, 4, 2, 16, 1e-6, 1e4)  # heads as wide as a matrix unit wants them


class ToySpeech(toy.ToySpeech):
    config = WIDE


class ToyText(toy.ToyText):
    config = WIDE


CONFIG = EngineConfig(
    max_running=3, max_step_tokens=32, page_size=4, kv_bytes=1 << 20, chunk_ramp=(1, 2)
)


def run(
    ops: TorchOps,
    config: EngineConfig = CONFIG,
    kinds: tuple[type, ...] = (ToySpeech, ToyText),
    num_requests: int = 4,
) -> tuple[Engine, dict[str, Any]]:
    """Logs and audio of some requests to models, of which three run at a time."""
    models = {"text" if kind is ToyText else "toy": kind(ops) for kind in kinds}
    engine = Engine(models, TorchBackend(ops), config)
    logs: dict[str, Any] = {}
    for number in range(num_requests):
        model = "text" if number % 3 == 2 and ToyText in kinds else "toy"
        entries = 2 + (number if num_requests > 3 else number % 2)
        request = toy_request(f"r{number}", 3 + 2 * number, number, entries, model=model)
        logs[request.request_id] = ([], [])
        engine.submit(request)
    while engine.has_work:
        for chunk in engine.step():
            assert chunk.error is None, chunk.error
            entries, audio = logs[chunk.request_id]
            entries += chunk.entries.tolist()
            audio += [] if chunk.pcm is None else [torch.from_numpy(chunk.pcm)]
    return engine, logs


@pytest.mark.parametrize(
    ("max_running", "kinds", "num_requests"),
    [(2, (ToySpeech,), 3), pytest.param(3, (ToySpeech, ToyText), 4, marks=pytest.mark.slow)],
)
def test_captured_steps_equal_plain_steps(
    max_running: int, kinds: tuple[type, ...], num_requests: int
) -> None:
    """Three rows are padded to four, here at night and in the test of log probabilities."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = dataclasses.replace(CONFIG, max_running=max_running)
    engine, captured = run(TritonOps(device, torch.float32), config, kinds, num_requests)
    for worker in engine._workers.values():
        graphs = worker.runner._graphs
        assert graphs is not None
        assert graphs.decodes is not None
        assert graphs.prompts is not None
    _, plain = run(TorchOps(device, torch.float32), config, kinds, num_requests)
    for name, (entries, audio) in plain.items():
        assert captured[name][0] == entries
        if audio:
            torch.testing.assert_close(torch.cat(captured[name][1]), torch.cat(audio))


@pytest.mark.slow
def test_torch_attention_steps_are_captured_up_to_few_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    _, plain = run(TorchOps(device, torch.float32))
    decoded = []
    decode = DecodeGraphs.decode

    def counted(self: DecodeGraphs, inputs: Any, rows: Any) -> Any:
        decoded.append(max(row.stop for row in rows))
        return decode(self, inputs, rows)

    monkeypatch.setattr(DecodeGraphs, "decode", counted)
    for few_keys in (512, 8):
        monkeypatch.setattr("izwi.backends.torch.captured.graphs.FEW_KEYS", few_keys)
        decoded.clear()
        engine, captured = run(TritonOps(device, torch.float32, attention="torch"))
        for worker in engine._workers.values():
            assert worker.runner._graphs is not None
            assert worker.runner._graphs.prompts is None
        assert {name: log[0] for name, log in captured.items()} == {
            name: log[0] for name, log in plain.items()
        }
        assert decoded
        assert (max(decoded) <= 8) == (few_keys == 8)


@pytest.mark.slow
@pytest.mark.parametrize("vocabulary", [None, 8])
def test_captured_steps_equal_plain_steps_for_every_option(
    monkeypatch: pytest.MonkeyPatch, vocabulary: int | None
) -> None:
    """Log probabilities, long lists of candidates and many keys equal those of plain steps."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for module in ("graphs", "decode_graphs"):
        monkeypatch.setattr(f"izwi.backends.torch.captured.{module}.FEW_KEYS", 8)
    if vocabulary is not None:  # of which more do not fit into one program
        monkeypatch.setattr("izwi.backends.torch.triton.sampling.MAX_VOCABULARY", vocabulary)
        monkeypatch.setattr("izwi.backends.torch.triton.sampling._SORTED_ROWS", 2)
    launched: list[DrawKind] = []
    stage = DecodeGraphs._stage

    def chosen(self: DecodeGraphs, *of: Any) -> DrawKind:
        launched.append(stage(self, *of))
        return launched[-1]

    monkeypatch.setattr(DecodeGraphs, "_stage", chosen)
    logs: list[Any] = []
    for ops in (TritonOps(device, torch.float32), TorchOps(device, torch.float32)):
        plainly = None if isinstance(ops, TritonOps) else draw
        monkeypatch.setattr("izwi.runner.runner.draw", plainly)
        engine = Engine({"text": ToyText(ops)}, TorchBackend(ops), CONFIG)
        entries: dict[str, Any] = {}
        logprobs: dict[str, list[float]] = {}
        for number, asks in enumerate((True, False, True)):
            name = f"{number}"
            request = toy_request(name, 7, 1, 2 + number % 2, model="text", logprobs=asks)
            if number:
                request = replace(request, sampling=SamplingParams(0.9, (0, 100)[number - 1]))
            entries[name], logprobs[name] = [], []
            engine.submit(request)
        while engine.has_work:
            for chunk in engine.step():
                assert chunk.error is None, chunk.error
                entries[chunk.request_id] += chunk.entries.tolist()
                found = [] if chunk.logprobs is None else chunk.logprobs.tolist()
                logprobs[chunk.request_id] += found
        logs.append((entries, logprobs))
    (captured, ours), (plain, theirs) = logs
    assert captured == plain
    for name, expected in theirs.items():
        assert len(ours[name]) == (0 if name == "1" else len(plain[name]))
        torch.testing.assert_close(torch.tensor(ours[name]), torch.tensor(expected))
    assert {kind.few_candidates for kind in launched} == {False, True}


@pytest.mark.slow
def test_launched_graphs_were_captured_at_warm_up() -> None:
    """Any rows; a speech model reports no log probabilities."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    ops = TritonOps(device, torch.float32)
    engine = Engine({"toy": ToySpeech(ops), "text": ToyText(ops)}, TorchBackend(ops), CONFIG)
    for name, worker in engine._workers.items():
        graphs = worker.runner._graphs
        assert graphs is not None
        decodes = graphs.decodes
        assert decodes is not None
        decodes.warm_up()
        for size in range(1, 4):
            batch, drawing = decodes._rows(size), decodes._drawing(0, size)
            assert batch.staged.draws is not None
            for few_keys, sampling, logprobs in product(
                (False, True),
                (SamplingParams(), SamplingParams(0.9, 0), SamplingParams(0.9, 65)),
                (False, name == "text"),
            ):
                request = toy_request("r", 5, 1, 6, model=name, logprobs=logprobs)
                request = replace(request, sampling=sampling)
                rows = draws(Sequence(request, number) for number in range(size))
                kind = decodes._stage(batch.staged.draws, rows, 1, np.full(size, -1, np.int32))
                assert kind in drawing.graphs
                few_keys = few_keys or decodes._max_keys <= FEW_KEYS
                drawn = kind if kind.is_frequent else None
                assert DecodeKind(few_keys, drawn) in batch.graphs


class ToyCloning(ToySpeech):
    """Continues a clip of as many frames as its prompt is long, times 9."""

    warms_up = True

    def peak_values(self, frames: int) -> int:
        return 8 * self.frame_samples * frames

    def warm_codes(self, span: Any) -> torch.Tensor:
        frames = 9 * span.request.prompt.num_positions
        shape = frames, self.num_codebooks
        return torch.arange(math.prod(shape), device=self.ops.device).reshape(shape) % 11


@pytest.mark.slow
def test_clip_is_decoded_in_captured_chunks_and_again_after_an_eviction() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    runs: list[dict[str, list[Any]]] = []
    for ops in (TritonOps(device, torch.float32), TorchOps(device, torch.float32)):
        config = dataclasses.replace(CONFIG, max_running=1, graphs=isinstance(ops, TritonOps))
        engine = Engine({"toy": ToyCloning(ops)}, TorchBackend(ops), config)
        runs.append({})
        for number, length in enumerate((1, 7, 15)):
            request = toy_request(f"r{number}", length, 1, 5)
            runs[-1][request.request_id] = []
            engine.submit(request)
        steps, paused = 0, False
        while engine.has_work:
            steps += 1
            for chunk in engine.step():
                assert chunk.error is None, chunk.error
                if chunk.pcm is not None:
                    runs[-1][chunk.request_id].append(torch.from_numpy(chunk.pcm))
            if not paused and runs[-1]["r1"]:
                paused = True
                engine.pause("r1")
            elif paused and steps % 10 == 0:
                engine.resume("r1")
        if engine_graphs := engine._workers["toy"].runner._graphs:
            assert engine_graphs.codec is not None
            heard = {frames for rows, frames in engine_graphs.codec._graphs if rows == 1}
            assert heard >= {1, 2, 4, 8, 32, 64}  # 9, 63 and 135 frames
    captured, plain = runs
    for name, expected in plain.items():
        assert expected
        torch.testing.assert_close(torch.cat(captured[name]), torch.cat(expected))


@pytest.mark.skipif(torch.cuda.is_available(), reason="its tensors are the interpreter's")
@pytest.mark.parametrize("kind", [ToySpeech, pytest.param(ToyText, marks=pytest.mark.slow)])
def test_a_rehearsal_looks_up_nothing_that_no_kernel_has_written(
    monkeypatch: pytest.MonkeyPatch, kind: type
) -> None:
    """Outputs that no kernel writes hold arbitrary memory: ids beyond every table."""
    wild = lambda logits, *_: torch.full((len(logits),), 1 << 40)  # noqa: E731
    monkeypatch.setattr("izwi.backends.torch.captured.decode_graphs.draw", wild)
    for name in ("take_last", "add_last"):
        monkeypatch.setattr(f"izwi.backends.torch.captured.decode_graphs.{name}", lambda *_: None)
    ops = TritonOps("cpu", torch.float32)
    model = kind(ops)
    # not captured before: only the rehearsal counts
    config = dataclasses.replace(CONFIG, graphs=False)
    engine = Engine({"m": model}, TorchBackend(ops), config)
    runner = engine._workers["m"].runner
    monkeypatch.setattr(PagedDecode, "attend_fused", lambda _, __, q, *___: torch.zeros_like(q))
    rehearsal = Rehearsal(torch.device("cpu"))
    decodes = DecodeGraphs(model, runner._kv, rehearsal, 1, [None], 64)
    decodes.warm_up()
    (rows,), (draws,) = decodes._decodes.values(), decodes._draws.values()
    drawn = [graph.out for kind, graph in rows.graphs.items() if kind.draw is not None]
    assert drawn
    assert draws.graphs
    for entries in (*drawn, *(graph.out for graph in draws.graphs.values())):
        assert not entries.any()


ODD = {
    1: {"presence_penalty": 0.7, "frequency_penalty": 0.4, "repetition_penalty": 1.3},
    2: {"min_p": 0.3, "logit_bias": ((4, 3.0), (5, -100.0))},
}


def run_text(ops: TorchOps, odd: dict[int, dict[str, Any]], most: int = 0) -> dict[str, Any]:
    """Ids and log probabilities of four texts, of which three run at a time."""
    engine = Engine({"text": ToyText(ops)}, TorchBackend(ops), CONFIG)
    logs: dict[str, Any] = {}
    for number in range(4):
        request = toy_request(f"r{number}", 3 + 2 * number, number, 9 + number, model="text")
        sampling = SamplingParams(0.9, 5, 0.9, 1.2)
        sampling = replace(sampling, **odd.get(number, {}))
        reported = {"logprobs": number > 0, "top_logprobs": most * (number == 2)}
        request = replace(request, sampling=sampling, **reported)
        logs[request.request_id] = ([], [])
        engine.submit(request)
    while engine.has_work:
        for chunk in engine.step():
            assert chunk.error is None, chunk.error
            ids, likely = logs[chunk.request_id]
            ids += chunk.entries.tolist()
            likely += [] if chunk.logprobs is None else chunk.logprobs.tolist()
    return logs


@pytest.mark.slow  # a minute in the interpreter
def test_adjusted_rows_draw_beside_captured_rows() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    plain = run_text(TorchOps(device, torch.float32), ODD, most=3)
    captured = run_text(TritonOps(device, torch.float32), ODD, most=3)
    others = run_text(TritonOps(device, torch.float32), {})
    for name, (ids, likely) in plain.items():
        assert captured[name][0] == ids
        torch.testing.assert_close(torch.tensor(captured[name][1]), torch.tensor(likely))
    for name in ("r0", "r3"):  # their neighbours made no difference
        assert others[name][0] == plain[name][0]
    assert others["r1"][0] != plain["r1"][0]
    assert others["r2"][0] != plain["r2"][0]
    assert not captured["r0"][1]
    assert len(captured["r2"][1][0]) == 7
