"""What must hold on any device: run on the GPU where there is one, else on this processor.

Where the device captures steps, these are captured; the codec's, too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.tts.forced import logits_of
from izwi.backends.torch.backend import TorchBackend, torch_backend
from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi.model.family import Family
from izwi.request.sequence import Sequence
from tests.models.kinds import KINDS, TEXTS, request_of
from tests.models.loading import load_checkpoint

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NEAR = 1e-4  # of audio, whose full scale is 1
# clips become codes, and a code that falls otherwise is another prompt
PROMPTED_ALIKE = [name for name in KINDS if "cloning" not in name]


@pytest.fixture(autouse=True)
def _exact() -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


class World:
    """An engine with room for one sequence at a time, and what its readers were told."""

    def __init__(self, family: Family, folder: Path, host_bytes: int = 0):
        backend = torch_backend(DEVICE, "float32")
        self.family, self.ops = family, backend.ops
        self.frontend, self.model = load_checkpoint(family, folder, backend)
        config = EngineConfig(kv_bytes=1 << 22, max_running=1, host_bytes=host_bytes)
        self.engine = Engine({"m": self.model}, backend, config)
        self.entries: dict[str, list[list[int]]] = {}
        self.pcm: dict[str, list[np.ndarray]] = {}

    def submit(self, i: int) -> None:
        self.entries[str(i)], self.pcm[str(i)] = [], []
        self.engine.submit(request_of(self.family, self.frontend, i))

    def run(self, steps: int = 10_000) -> None:
        while self.engine.has_work and steps:
            steps -= 1
            for chunk in self.engine.step():
                assert chunk.error is None
                self.entries[chunk.request_id] += chunk.entries.tolist()
                if chunk.pcm is not None:
                    self.pcm[chunk.request_id].append(chunk.pcm)

    def audio(self, i: int) -> np.ndarray:
        return np.concatenate([*self.pcm[str(i)], np.zeros(0, np.float32)])


@pytest.mark.parametrize(
    ("name", "host_bytes"),
    # cloning speaks as tts does
    [
        *((name, 0) for name in KINDS if name != "tts"),
        pytest.param("tts", 0, marks=pytest.mark.slow),
        pytest.param("tts", 1 << 24, marks=pytest.mark.slow),
    ],
)
def test_a_pause_changes_neither_entries_nor_audio(
    tmp_path: Path, name: str, host_bytes: int
) -> None:
    family, folder = KINDS[name]
    checkpoint = folder(tmp_path / "checkpoint")
    whole = World(family, checkpoint, host_bytes)
    whole.submit(1)
    whole.run()

    world = World(family, checkpoint, host_bytes)
    world.submit(1)
    world.run(steps=8)
    world.engine.pause("1")
    sequence = world.engine._live["1"][1]
    # frames are delivered with their audio, and a device may be a step ahead
    drawn = len(sequence.emitted) + sequence.pending.entries
    for other in (0, 2):
        world.submit(other)
    world.run()
    assert all(world.entries[str(other)] for other in (0, 2))
    assert len(world.entries["1"]) <= drawn < len(whole.entries["1"])
    world.engine.resume("1")
    world.run()
    assert world.entries["1"] == whole.entries["1"]
    np.testing.assert_allclose(world.audio(1), whole.audio(1), rtol=0, atol=NEAR)


@pytest.mark.slow
def test_audio_in_chunks_equals_audio_at_once(tmp_path: Path) -> None:
    family, folder = KINDS["tts"]
    world = World(family, folder(tmp_path / "checkpoint"))
    for i in range(len(TEXTS)):
        world.submit(i)
        world.run()
        codes = torch.tensor(world.entries[str(i)], device=DEVICE)[None]
        with torch.inference_mode():
            at_once, _ = world.model.codec.decode(codes, _silence(world.model))
        assert len(world.pcm[str(i)]) > 2
        alone = at_once.reshape(-1).cpu().numpy()
        np.testing.assert_allclose(world.audio(i), alone, rtol=0, atol=NEAR)


def _silence(model: Any) -> dict[str, torch.Tensor]:
    """The codec's state before the first frame."""
    dtypes = {"int64": torch.int64}
    return {
        name: torch.zeros(1, *spec.shape, dtype=dtypes.get(spec.dtype, torch.float32)).to(DEVICE)
        for name, spec in model.codec.state.items()
    }


@pytest.mark.parametrize("name", PROMPTED_ALIKE)
def test_logits_in_bfloat16_are_those_of_float32_on_the_processor(
    tmp_path: Path, name: str
) -> None:
    """Given the same log: alike, and the same id first wherever that is no matter of rounding."""
    family, folder = KINDS[name]
    checkpoint = folder(tmp_path / "checkpoint")
    world = World(family, checkpoint)
    world.submit(0)
    world.run()
    log = [tuple(entry) for entry in world.entries["0"]]
    full = _forced(family, checkpoint, torch_backend("cpu", "float32"), log)
    found = _forced(family, checkpoint, torch_backend(DEVICE, "bfloat16"), log)
    num_clear = 0
    for ours, theirs in zip(found, full, strict=True):
        assert ours.shape == theirs.shape
        assert torch.cosine_similarity(ours, theirs, dim=-1).min() > 0.999
        error = (ours - theirs).square().mean(-1).sqrt()
        first, second = theirs.topk(2).values.unbind(-1)
        is_clear = first - second > 10 * error
        num_clear += int(is_clear.sum())
        assert (ours.argmax(-1) == theirs.argmax(-1))[is_clear].all()
    assert num_clear > len(log) // 4


def _forced(
    family: Family, folder: Path, backend: TorchBackend, log: list[tuple[int, ...]]
) -> list[torch.Tensor]:
    frontend, model = load_checkpoint(family, folder, backend)
    request = request_of(family, frontend, 0)
    sequence = Sequence(request, 0)
    if pieces := request.prompt.encode_inputs:
        with torch.inference_mode():
            sequence.encoded = list(model.encode(list(pieces)))
    sequence.emitted += log
    return [logits.cpu() for logits in logits_of(model, backend.ops, sequence)]
