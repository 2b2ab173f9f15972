"""What the engine reports of a request's phases, on a clock that the test moves."""

from __future__ import annotations

from itertools import count, pairwise

import pytest
from msgspec.structs import replace

from izwi.request.request import Chunk
from izwi.request.timing import Timing
from tests.engine.test_pause import spoken
from tests.engine.toy import toy_request
from tests.engine.world import STEP_S, World


class TimedWorld(World):
    """Keeps the timings of all chunks."""

    def __init__(self, *args: int, **settings: object):
        super().__init__(*args, **settings)  # type: ignore[arg-type]
        self.timings: dict[str, list[Timing | None]] = {}

    def deliver(self, chunks: list[Chunk]) -> None:
        super().deliver(chunks)
        for chunk in chunks:
            self.timings.setdefault(chunk.request_id, []).append(chunk.timing)

    def last(self, name: str) -> Timing:
        timing = self.timings[name][-1]
        assert timing is not None
        return timing


def marks(timing: Timing) -> list[float]:
    found = [
        timing.admitted_s,
        timing.first_entry_s,
        timing.first_audio_s,
        timing.last_entry_s,
        timing.ended_s,
    ]
    return [mark for mark in found if mark is not None]


def test_first_and_last_chunk_have_the_phases_and_no_other() -> None:
    world = TimedWorld()
    world.submit(spoken("a", 20, seed=3, frames=30))
    world.run()
    first, *between, last = world.timings["a"]
    assert between
    assert not any(between)
    assert first is not None
    assert last is not None
    assert len(marks(first)) == 3, "the first chunk tells of queue, prefill and first audio"
    assert len(marks(last)) == 5
    assert all(earlier <= later for earlier, later in pairwise(marks(last)))
    assert marks(last)[:3] == marks(first), "a phase that has passed stays as it was"
    assert last.ended_s == pytest.approx(world.clock.now_s - STEP_S)
    assert not last.is_resumed


def test_time_in_the_queue_is_the_time_before_the_admission() -> None:
    world = TimedWorld(max_running=1)
    world.submit(spoken("a", 8, seed=3, frames=12))
    world.submit(spoken("b", 8, seed=4, frames=12))
    world.run()
    assert world.last("a").admitted_s == 0.0
    admitted_s, ended_s = world.last("b").admitted_s, world.last("a").ended_s
    assert admitted_s is not None
    assert ended_s is not None
    # the place is free in the step after the one in which the other one ended
    assert admitted_s == pytest.approx(ended_s + STEP_S)


def test_text_has_no_first_audio() -> None:
    world = TimedWorld()
    world.submit(toy_request("t", 10, seed=5, frames=8, model="text"))
    world.run()
    assert world.last("t").first_audio_s is None
    assert len(marks(world.last("t"))) == 4


def test_events_tell_of_pause_and_resume() -> None:
    world = TimedWorld()
    world.submit(spoken("a", 20, seed=3, frames=40))
    for _ in range(10):
        world.step()
    paused_s = world.clock.now_s
    world.engine.pause("a")
    world.clock.now_s += 5.0
    world.engine.resume("a")
    world.run()
    events = [(event.value, at_s) for event, at_s, _ in world.last("a").events]
    others = [event for event in events if event[0] != "underrun"]
    assert others == [("paused", paused_s), ("resumed", paused_s + 5.0)]


def test_events_tell_of_an_underrun_and_how_long_it_was() -> None:
    world = TimedWorld()
    world.submit(spoken("a", 20, seed=3, frames=40))
    while not world.logs["a"].pcm:
        world.step()
    world.clock.now_s += 60.0  # a step that takes a minute
    world.run()
    events = world.last("a").events
    assert {event.value for event, *_ in events} == {"underrun"}
    assert max(lasted_s for _, _, lasted_s in events) == pytest.approx(60.0, abs=0.1)
    gaps_s = world.engine.load["toy"]["gap_seconds"]
    assert sum(lasted_s for _, _, lasted_s in events) == pytest.approx(gaps_s)


def test_events_tell_of_a_preemption_and_first_times_stay() -> None:
    world = TimedWorld(12, max_running=4)
    for i in range(4):
        world.submit(replace(spoken(f"a{i}", 12, seed=i, frames=30), max_entries=30))
    world.run()
    preempted = [
        name
        for name in world.logs
        if any(event == "preempted" for event, *_ in world.last(name).events)
    ]
    assert len(preempted) > 0
    assert world.engine.load["toy"]["preempted"] >= len(preempted)
    for name in preempted:
        assert all(earlier <= later for earlier, later in pairwise(marks(world.last(name))))


def test_known_positions_of_the_prompt_are_reported() -> None:
    world = TimedWorld()
    world.submit(toy_request("t", 16, seed=5, frames=4, model="text"))
    world.run()
    world.submit(toy_request("u", 16, seed=5, frames=4, model="text"))
    world.run()
    assert world.last("t").num_cached == 0
    assert world.last("u").num_cached > 0


def test_aborted_request_reports_the_phases_that_it_reached() -> None:
    world = TimedWorld(max_running=1)
    world.submit(spoken("a", 8, seed=3, frames=12))
    world.submit(spoken("b", 8, seed=4, frames=12))
    world.step()
    (chunk,) = world.engine.abort("b")
    assert chunk.timing is not None
    assert chunk.timing.admitted_s is None
    assert chunk.timing.ended_s == pytest.approx(STEP_S)


def test_rows_positions_and_parts_of_steps_are_counted() -> None:
    world, ticks = World(), count()
    for worker in world.engine._workers.values():
        worker._clock = lambda: next(ticks) * 1e-3  # each reading takes a millisecond
    world.engine.clock = worker._clock
    world.submit(toy_request("t", 16, seed=5, frames=4, model="text"))
    world.submit(toy_request("u", 16, seed=6, frames=4, model="text"))
    world.run()
    load = world.engine.load["text"]
    num_drawn = sum(len(log.entries) for log in world.logs.values())
    assert load["positions"] == 2 * 16 + num_drawn - 2, "the last entries are computed no more"
    assert load["rows"] == num_drawn
    parts = [load[f"{part}_seconds"] for part in ("schedule", "launch", "wait", "process")]
    assert all(part_s > 0 for part_s in parts)
    assert sum(parts) < next(ticks) * 1e-3
