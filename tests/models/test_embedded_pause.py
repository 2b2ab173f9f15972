"""The embedded voice, paused for ten minutes and evicted, resumes at the next sample."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from izwi.arrays import Float32
from izwi.backends.torch.backend import TorchBackend, torch_backend
from izwi.checkpoints.registry import Registry
from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi.inputs.speech import SpeechInput
from izwi.model.layers import KVSpec
from izwi.request.request import Request

MODEL = "izwi-tiny-tts"
FRAMES = 18  # of the beginning of a sentence


@pytest.fixture(scope="module")
def registry() -> Registry:
    made = Registry(torch_backend("cpu", "float32"))
    made.load(MODEL)
    return made


class World:
    """An engine whose memory holds little more than one sentence, and a clock of its own."""

    def __init__(self, registry: Registry, host_bytes: int):
        self.registry, self.model = registry, registry.speech(MODEL)
        kv = KVSpec.from_layers(registry.models[MODEL].layers)
        position = 2 * kv.num_layers * kv.num_kv_heads * kv.head_dim * 4
        config = EngineConfig(kv_bytes=position * 48, max_running=1, host_bytes=host_bytes)
        self.now_s = 0.0
        ops = torch_backend("cpu", "float32").ops
        self.engine = Engine(registry.models, TorchBackend(ops), config, lambda: self.now_s)
        self.pcm: dict[str, list[Float32]] = {}

    def submit(self, name: str, text: str, seed: int = 1) -> None:
        ask = SpeechInput(text=text, voice="amber", seed=seed, max_new_tokens=FRAMES + 1)
        made: Request = self.model.prepare_speech(name, MODEL, ask)
        self.pcm[name] = []
        self.engine.submit(replace(made, stop_ids=()))

    def run(self, steps: int = 10_000) -> None:
        while self.engine.has_work and steps:
            steps -= 1
            for chunk in self.engine.step():
                assert chunk.error is None
                if chunk.pcm is not None:
                    self.pcm[chunk.request_id].append(chunk.pcm)
            self.now_s += 0.02


@pytest.mark.slow
@pytest.mark.parametrize(
    "host_bytes",
    [0, pytest.param(1 << 28, marks=pytest.mark.slow)],
    ids=["rebuilt from the log", "kept in a tier"],
)
def test_a_pause_of_ten_minutes_changes_no_audio(registry: Registry, host_bytes: int) -> None:
    text = "The train leaves at seven in the morning."
    whole = World(registry, host_bytes)
    whole.submit("a", text)
    whole.run()

    world = World(registry, host_bytes)
    world.submit("a", text)
    world.run(steps=12)
    world.engine.pause("a")
    heard = len(world.pcm["a"])
    for other in range(2):
        world.submit(f"b{other}", "She put the book on the table near the window.", seed=other)
    world.run()
    world.now_s += 600
    _, sequence = world.engine._live["a"]
    assert len(world.pcm["a"]) == heard
    assert sequence.audio.state_row is None, "its codec row was not needed by the others"
    load = world.engine.load[MODEL]
    assert (load["pages_demoted"] > 0) == (host_bytes > 0)
    world.engine.resume("a")
    world.run()
    assert (world.engine.load[MODEL]["pages_promoted"] > 0) == (host_bytes > 0)
    np.testing.assert_array_equal(np.concatenate(world.pcm["a"]), np.concatenate(whole.pcm["a"]))
    assert (
        len(np.concatenate(world.pcm["a"]))
        == FRAMES * world.registry.models[MODEL].codec.frame_samples
    )
