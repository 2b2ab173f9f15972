"""A stream that waits for text: its listener gets all frames before playback runs dry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from msgspec.structs import replace

from izwi.backends.torch.backend import TorchBackend
from izwi.backends.torch.ops import TorchOps
from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi.request.log import Log
from izwi.request.request import Request
from izwi.scheduler.playback import DRY_S
from izwi.scheduler.policy import POLICIES
from tests.backends.torch.eager import EagerOps, drawn_by_torch
from tests.engine.test_pause import sequence_of, spoken
from tests.engine.toy import ToyCodec, ToySpeech
from tests.engine.world import PAGE, SPEECH, Clock, World, alone
from tests.engine.world import Log as Received

TEXT = list(range(1, 25))
CONFIG = EngineConfig(
    max_running=2, page_size=PAGE, kv_bytes=1 << 20, chunk_ramp=(4,), max_step_tokens=32
)


def written(num_frames: int, *, frames: int = 24) -> Request:
    """A request whose text suffices for so many frames, and is not complete."""
    request = spoken("a", 6, seed=4, frames=frames)
    # a frame needs the text before it, so the first needs none
    prompt = replace(request.prompt, track=tuple(TEXT[: num_frames - 1]))  # type: ignore[type-var]
    return replace(request, prompt=prompt, open_input=True)


def complete() -> Request:
    """The same request with all its text."""
    request = written(25)
    return replace(request, open_input=False)


def wait_s(world: World) -> float:
    """Seconds until the listener of the request hears a gap."""
    worker = world.engine._workers["toy"]
    return worker.scheduler.clocks.urgency(sequence_of(world, "a").arrival, world.clock.now_s)[0]


def step(world: World, count: int = 1) -> None:
    """Run steps that take no time."""
    for _ in range(count):
        world.deliver(world.engine.step())


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("num_frames", "sizes"), [(14, [4, 2, 1]), (8, [1]), (12, [4, 1])])
def test_frames_that_fill_no_chunk_become_audio_before_a_gap(
    policy: str, num_frames: int, sizes: list[int]
) -> None:
    with patch.object(SPEECH, "sample_rate", 4):  # a frame takes a second
        world = World(policy=policy)
        world.submit(written(num_frames))
        step(world, 30)
        log, due = world.logs["a"], [1, 2, 4]
        for size in sizes:
            world.clock.now_s += wait_s(world) - DRY_S - 0.01
            step(world, 4)
            assert log.chunks == due, "the listener has audio left to play"
            world.clock.now_s += 0.02
            step(world, 4)
            due.append(size)
            assert log.chunks == due
        assert len(log.entries) == sum(due) == num_frames
        world.engine.write("a", TEXT[num_frames - 1 :], closed=True)
        step(world, 60)
    expected = alone(complete())
    assert log.reason is expected.reason
    assert log.entries == expected.entries
    assert np.array_equal(log.pcm, expected.pcm)


def decode_by_size(codes: Any, state: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """A codec whose state depends on how the frames are cut, as rounding makes a real one's."""
    audio, after = ToySpeech.decode(SPEECH, codes, state)
    return audio, {"sum": after["sum"] * 1.5}


def run_dry(world: World) -> None:
    """Let the listener hear all that fills a chunk of the request, and then all."""
    for _ in range(3):
        step(world, 30)
        world.clock.now_s += wait_s(world)
    step(world, 4)


@pytest.mark.parametrize("crashed", [False, True], ids=["evicted", "crashed"])
def test_a_codec_state_is_made_again_from_the_chunks_that_were_taken(crashed: bool) -> None:
    with patch.object(SPEECH, "sample_rate", 4), patch.object(SPEECH, "decode", decode_by_size):
        undisturbed, disturbed = World(), World(max_running=1, host_bytes=0)
        for world in (undisturbed, disturbed):
            world.submit(written(14))
            run_dry(world)
            assert world.logs["a"].chunks == [1, 2, 4, 4, 2, 1]
        before = disturbed.logs["a"]
        if crashed:
            samples = tuple(frames * SPEECH.frame_samples for frames in before.chunks)
            log = Log(np.array(before.entries), chunk_samples=samples)
            disturbed = World()
            disturbed.logs["a"] = Received()
            disturbed.engine.submit(written(14), log)
        else:
            disturbed.engine.pause("a")
            disturbed.submit(spoken("other", 6, seed=1, frames=3))
            step(disturbed, 9)
            assert sequence_of(disturbed, "a").audio.state_row is None
            disturbed.engine.resume("a")
        for world in (undisturbed, disturbed):
            world.engine.write("a", TEXT[13:], closed=True)
            world.run()
        heard = before.pcm + (disturbed.logs["a"].pcm if crashed else [])
        assert heard == undisturbed.logs["a"].pcm


def test_captured_chunks_that_leave_early_keep_the_state() -> None:
    """A chunk of a size that is not captured is padded, which only the end of a stream may be."""
    logs = []
    for ops, request in ((EagerOps(), written(7)), (TorchOps(), complete())):
        clock, received = Clock(), Received()
        with patch.object(ToyCodec, "sample_rate", 4), drawn_by_torch():
            # the state of this codec counts frames, so that padding changes it
            engine = Engine({"toy": ToyCodec(ops)}, TorchBackend(ops), CONFIG, clock)
            assert engine._workers["toy"].runner.codec_overlaps is ops.captures
            engine.submit(request)
            for number in range(200):
                for chunk in engine.step():
                    received.add_chunk(chunk)
                clock.now_s += 0.1
                if number == 100 and request.open_input:
                    assert received.chunks == [4, 1, 1, 1]
                    engine.write("a", TEXT[6:], closed=True)
        logs.append(received)
    captured, plain = logs
    assert plain.chunks == [4] * 6
    assert captured.entries == plain.entries
    assert captured.pcm == pytest.approx(plain.pcm, abs=1e-5)
