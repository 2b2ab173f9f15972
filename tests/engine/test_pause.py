"""Pausing: a request resumes at the next sample, even if its pages were evicted."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from izwi.engine.engine import Engine
from izwi.errors import InvalidRequest, Overloaded
from izwi.request.request import Reason, Request
from izwi.request.sequence import PauseReason, Phase
from tests.backends.kinds import backend_of, mlx_at_night
from tests.engine.toy import CLONE, ToyCodec, toy_request
from tests.engine.world import World, alone

TEN_MINUTES_S = 600.0


def spoken(name: str, length: int, seed: int, frames: int, audio: int = 0) -> Request:
    """A request that never stops before its frames are there."""
    return replace(toy_request(name, length, seed, frames, audio), stop_ids=())


def sequence_of(world: World, name: str):
    return world.engine._live[name][1]


@mlx_at_night
@pytest.mark.parametrize("host_bytes", [0, 1 << 20], ids=["rebuilt from the log", "kept in a tier"])
def test_it_resumes_at_the_next_sample_after_ten_minutes_and_an_eviction(
    host_bytes: int, backend: str
) -> None:
    request = spoken("a", 20, seed=3, frames=60, audio=1)
    world = World(24, backend, max_running=2, host_bytes=host_bytes)
    world.submit(request)
    for _ in range(12):
        world.step()
    heard = len(world.logs["a"].pcm)
    world.engine.pause("a")
    assert sequence_of(world, "a").status.paused is PauseReason.TURN
    for i in range(4):  # others take every page and every codec row
        world.submit(spoken(f"b{i}", 30, seed=20 + i, frames=30))
    world.run()
    world.clock.now_s += TEN_MINUTES_S
    world.step()
    assert len(world.logs["a"].pcm) == heard, "a paused request went on"
    assert sequence_of(world, "a").audio.state_row is None, "nothing was evicted"
    load = world.engine.load["toy"]
    assert (load["pages_demoted"] > 0) == (host_bytes > 0)
    assert (load["saved_state_bytes"] > 0) == (host_bytes > 0)
    world.engine.resume("a")
    world.run()
    assert world.logs["a"].pcm == alone(request, backend=backend).pcm
    assert world.logs["a"].entries == alone(request, backend=backend).entries
    assert (world.engine.load["toy"]["pages_promoted"] > 0) == (host_bytes > 0)
    assert world.engine.load["toy"]["saved_state_bytes"] == 0
    world.check_nothing_is_lost()


@mlx_at_night
@pytest.mark.parametrize("host_bytes", [0, 1 << 20], ids=["rebuilt from the log", "kept in a tier"])
def test_a_clone_whose_codec_state_was_evicted_still_continues_its_clip(
    host_bytes: int, backend: str
) -> None:
    made = backend_of(backend)
    codec = ToyCodec(made.ops)
    request = spoken(f"{CLONE} a", 6, seed=3, frames=40)
    worlds = []
    for others in (0, 4):
        world = World(max_running=2, host_bytes=host_bytes)
        world.engine = Engine({"toy": codec}, made, world.config, world.clock)
        world.submit(request)
        for _ in range(12):
            world.step()
        world.engine.pause(request.request_id)
        for i in range(others):
            world.submit(spoken(f"b{i}", 6, seed=20 + i, frames=9))
        for _ in range(60):
            world.step()
        assert (sequence_of(world, request.request_id).audio.state_row is None) == bool(others)
        world.engine.resume(request.request_id)
        world.run()
        worlds.append(world)
    undisturbed, evicted = (world.logs[request.request_id] for world in worlds)
    assert evicted.pcm == undisturbed.pcm
    worlds[0].engine = Engine({"toy": codec}, made, world.config, world.clock)
    plain = replace(request, request_id="a")
    worlds[0].submit(plain)
    worlds[0].run()
    assert worlds[0].logs["a"].pcm != undisturbed.pcm, "the clip is not heard at all"


def test_with_memory_left_a_pause_costs_no_more_than_the_last_page() -> None:
    request = spoken("a", 20, seed=3, frames=60)
    world = World()
    world.submit(request)
    for _ in range(30):
        world.step()
    before = sequence_of(world, "a").num_positions
    world.engine.pause("a")
    world.step()
    world.engine.resume("a")
    world.step()
    reused = sequence_of(world, "a").kv.num_reused
    assert before - world.config.page_size <= reused < before
    assert sequence_of(world, "a").audio.state_row is not None
    world.run()
    assert world.logs["a"].pcm == alone(request).pcm


def test_a_pause_is_counted_once_and_not_as_a_gap() -> None:
    world = World()
    world.submit(spoken("a", 6, seed=3, frames=200))
    while len(world.logs["a"].chunks) < 2:
        world.step()
    worker = world.engine._workers["toy"]
    before_s, started = worker.scheduler.clocks.urgency(
        sequence_of(world, "a").arrival, world.clock.now_s
    )
    assert started
    for _ in range(2):  # twice is as once
        world.engine.pause("a")
    world.step()
    world.clock.now_s += TEN_MINUTES_S
    paused_s = world.clock.now_s
    for _ in range(2):
        world.engine.resume("a")
    slack_s, _ = worker.scheduler.clocks.urgency(sequence_of(world, "a").arrival, paused_s)
    assert slack_s >= before_s - 0.1, "the pause counted as lateness"
    load = world.engine.load["toy"]
    assert (load["pauses"], load["resumes"]) == (1, 1)


def test_a_sequence_with_only_audio_left_can_be_paused_too() -> None:
    request = spoken("a", 6, seed=3, frames=30)
    world = World(chunk_ramp=(2,), max_step_vocodes=1, policy="fcfs")
    for i in range(3):  # their audio comes first, and there is not enough time for all
        world.submit(spoken(f"b{i}", 6, seed=6, frames=30))
    world.submit(request)
    while not sequence_of(world, "a").status.ended:
        world.step()
    world.engine.pause("a")
    heard = len(world.logs["a"].pcm)
    assert heard < len(alone(request, chunk_ramp=(2,)).pcm)
    world.run()
    assert len(world.logs["a"].pcm) == heard
    world.engine.resume("a")
    world.run()
    assert world.logs["a"].pcm == alone(request, chunk_ramp=(2,)).pcm


def test_a_paused_request_can_be_aborted_and_ids_can_be_used_again() -> None:
    world = World()
    world.submit(spoken("a", 6, seed=3, frames=30))
    world.step()
    with pytest.raises(InvalidRequest, match="running already"):
        world.engine.submit(spoken("a", 6, seed=3, frames=30))
    world.engine.pause("a")
    assert not world.engine.has_work
    (chunk,) = world.engine.abort("a")
    assert chunk.reason is Reason.ABORTED
    world.check_nothing_is_lost()
    world.engine.resume("a")
    world.engine.pause("nobody")
    world.submit(spoken("a", 6, seed=3, frames=30))
    world.run()
    world.check_nothing_is_lost()


def test_a_sequence_that_outruns_its_text_waits_and_loses_nothing() -> None:
    whole = spoken("whole", 6, seed=4, frames=30)
    text = tuple(range(1, 25))
    whole = replace(whole, prompt=replace(whole.prompt, track=text))  # type: ignore[type-var]
    asked = replace(spoken("a", 6, seed=4, frames=30), open_input=True)
    world = World()
    world.submit(asked)
    for _ in range(10):
        world.step()
    assert len(world.logs["a"].entries) == 1, "the first frame needs no text, the second does"
    assert sequence_of(world, "a").status.paused is PauseReason.INPUT
    assert world.engine.is_idle
    for i, token in enumerate(text):
        world.engine.write("a", [token], closed=i == len(text) - 1)
        world.step()
    world.run()
    assert world.logs["a"].entries == alone(whole).entries
    assert world.logs["a"].pcm == alone(whole).pcm
    world.check_nothing_is_lost()


def test_a_request_that_cannot_start_in_time_is_refused() -> None:
    world = World(max_running=1, max_wait_s=1.0)
    world.submit(spoken("a", 6, seed=3, frames=100))
    world.submit(spoken("b", 6, seed=3, frames=40))
    world.step()
    world.clock.now_s += 5.0
    for _ in range(64):
        world.step()
    log = world.logs["b"]
    assert log.reason is Reason.ERROR
    assert isinstance(log.error, Overloaded)
    assert world.engine.load["toy"]["refused"] == 1
    world.run()
    assert world.logs["a"].reason is Reason.LENGTH


def test_a_playing_stream_is_not_refused() -> None:
    world = World(max_running=1, max_wait_s=1.0)
    world.submit(replace(spoken("first", 6, seed=3, frames=100), listener="ann"))
    world.submit(replace(spoken("next", 6, seed=4, frames=10), listener="ann"))
    for _ in range(8):
        world.step()
    assert world.logs["first"].pcm
    world.clock.now_s += 5.0
    world.run()
    assert world.engine.load["toy"]["refused"] == 0
    assert world.logs["next"].reason is Reason.LENGTH


def test_memory_pressure_shows_as_a_pause() -> None:
    world = World(pages=12, max_running=4, policy="fcfs", host_bytes=0)
    for i in range(3):
        world.submit(spoken(str(i), 8, seed=i, frames=30))
    seen = set()
    while world.engine.has_work:
        world.step()
        for _, sequence in world.engine._live.values():
            if sequence.status.phase is Phase.PAUSED:
                seen.add(sequence.status.paused)
    assert seen == {PauseReason.MEMORY}
    assert world.engine.load["toy"]["preempted"] > 0
    for i in range(3):
        assert world.logs[str(i)].pcm == alone(spoken(str(i), 8, seed=i, frames=30)).pcm
