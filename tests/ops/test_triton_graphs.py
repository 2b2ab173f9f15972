"""Recorded steps say what plain steps say. Without a GPU a recording is run again each time, over
the same staged buffers and, in Triton's interpreter, by the same kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from izwi.config import EngineConfig
from izwi.engine import Engine
from izwi.ops.torch_ops import TorchOps
from izwi.ops.triton_ops import TritonOps
from izwi.runner.decode_graphs import DecodeGraphs
from izwi_models.qwen3.decoder import DecoderConfig
from tests.engine import toy
from tests.engine.toy import toy_request

WIDE = DecoderConfig(16, 24, 2, 4, 2, 16, 1e-6, 1e4)  # heads as wide as a matrix unit wants them


class ToySpeech(toy.ToySpeech):
    config = WIDE


class ToyText(toy.ToyText):
    config = WIDE


CONFIG = EngineConfig(
    max_running=3, max_step_tokens=32, page_size=4, kv_bytes=1 << 20, chunk_ramp=(1, 2)
)


def run(ops: TorchOps, config: EngineConfig = CONFIG) -> tuple[Engine, dict[str, Any]]:
    """Logs and sound of four requests to two models, of which three run at a time."""
    engine = Engine({"toy": ToySpeech(ops), "text": ToyText(ops)}, ops, config)
    logs: dict[str, Any] = {}
    for number in range(4):
        model = "text" if number % 3 == 2 else "toy"
        request = toy_request(f"r{number}", 3 + 2 * number, number, 3 + 2 * number, model=model)
        logs[request.request_id] = ([], [])
        engine.submit(request)
    while engine.has_work:
        for chunk in engine.step():
            assert chunk.error is None, chunk.error
            entries, sound = logs[chunk.request_id]
            entries += chunk.entries.tolist()
            sound += [] if chunk.pcm is None else [torch.from_numpy(chunk.pcm)]
    return engine, logs


def test_recorded_steps_say_what_plain_steps_say() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    engine, recorded = run(TritonOps(device, torch.float32))
    for lane in engine._lanes.values():
        graphs = lane.runner._graphs
        assert graphs is not None
        assert graphs.decodes is not None
        assert graphs.prompts is not None
    _, plain = run(TorchOps(device, torch.float32))
    for name, (entries, sound) in plain.items():
        assert recorded[name][0] == entries
        if sound:
            torch.testing.assert_close(torch.cat(recorded[name][1]), torch.cat(sound))


def test_steps_in_which_torch_attends_are_recorded_while_keys_are_few(
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
        monkeypatch.setattr("izwi.runner.graphs.FEW_KEYS", few_keys)
        decoded.clear()
        engine, recorded = run(TritonOps(device, torch.float32, attention="torch"))
        for lane in engine._lanes.values():
            assert lane.runner._graphs is not None
            assert lane.runner._graphs.prompts is None
        assert {name: log[0] for name, log in recorded.items()} == {
            name: log[0] for name, log in plain.items()
        }
        assert decoded
        assert (max(decoded) <= 8) == (few_keys == 8)


def test_log_probabilities_are_not_recorded_and_change_nothing() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    logs: list[Any] = []
    for ops in (TritonOps(device, torch.float32), TorchOps(device, torch.float32)):
        engine = Engine({"text": ToyText(ops)}, ops, CONFIG)
        entries: dict[str, Any] = {"asks": [], "asks not": []}
        logprobs: list[float] = []
        for name in entries:
            request = toy_request(name, 5, 1, 6, model="text", logprobs=name == "asks")
            engine.submit(request)
        while engine.has_work:
            for chunk in engine.step():
                assert chunk.error is None, chunk.error
                entries[chunk.request_id] += chunk.entries.tolist()
                logprobs += [] if chunk.logprobs is None else chunk.logprobs.tolist()
        logs.append((entries, logprobs))
    (recorded, ours), (plain, theirs) = logs
    assert recorded == plain
    assert len(ours) == len(plain["asks"]) > 2
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs))
