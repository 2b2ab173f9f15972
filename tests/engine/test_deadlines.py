"""Deadlines of the phases of a request: queue, prefill, decode."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from izwi.config import EngineConfig
from izwi.errors import DeadlineExceeded, InvalidRequest, Overloaded
from izwi.request.deadlines import Deadlines
from izwi.request.request import Reason, Request
from tests.engine.toy import ToyPrompt, toy_request
from tests.engine.world import STEP_S, World


def endless(name: str, *, frames: int = 300, prompt: int = 5, **fields: object) -> Request:
    request = replace(toy_request(name, prompt, 1, frames), stop_ids=(), **fields)
    return replace(request, prompt=ToyPrompt(tuple(n % 30 for n in range(prompt))))


def run_until_ended(world: World, name: str) -> float:
    """Step until a request has ended; return the time of the step that ended it."""
    for _ in range(1000):
        if world.logs[name].reason is not None:
            return world.clock.now_s - STEP_S
        world.step()
    raise AssertionError("it goes on")


def test_a_request_that_is_not_complete_in_time_ends_and_others_go_on() -> None:
    world = World(max_decode_s=0.2)
    world.submit(endless("late"))
    for _ in range(10):
        world.step()
    world.submit(endless("next", frames=12))
    late = world.engine._live["late"][1]
    ended_s = run_until_ended(world, "late")
    assert late.timing.first_entry_s is not None
    due_s = late.submitted_s + late.timing.first_entry_s + 0.2
    assert due_s < ended_s <= due_s + 2 * STEP_S
    log = world.logs["late"]
    assert (log.reason, type(log.error)) == (Reason.ERROR, DeadlineExceeded)
    assert str(log.error) == "the answer was not complete within 0.2 s; it was ended"
    assert log.entries, "what was made before was sent"
    assert not late.kv.pages
    assert late.audio.state_row is None
    world.run()
    assert world.logs["next"].reason is Reason.LENGTH
    assert len(world.logs["next"].entries) == 12


def test_a_request_without_output_in_time_ends_and_frees_its_place() -> None:
    world = World(max_running=1, max_step_tokens=1, max_prefill_s=0.2)
    world.submit(endless("long", prompt=60))
    world.submit(endless("short", frames=6))
    ended_s = run_until_ended(world, "long")
    assert 0.2 < ended_s <= 0.2 + 2 * STEP_S
    assert isinstance(world.logs["long"].error, DeadlineExceeded)
    assert not world.logs["long"].entries
    for _ in range(2):
        world.step()
    assert world.engine._live["short"][1].timing.admitted_s is not None
    world.run()
    assert world.logs["short"].reason is Reason.LENGTH


def test_a_request_that_waits_too_long_is_refused_within_two_steps() -> None:
    world = World(max_running=1, max_wait_s=0.2)
    world.submit(endless("runs"))
    world.step()
    world.submit(endless("waits"))
    submitted_s = world.clock.now_s
    ended_s = run_until_ended(world, "waits")
    assert submitted_s + 0.2 < ended_s <= submitted_s + 0.2 + 2 * STEP_S
    assert isinstance(world.logs["waits"].error, Overloaded)
    assert world.engine.load["toy"]["refused"] == 1


def test_a_full_queue_says_when_it_will_have_moved() -> None:
    """Each request takes about thirty steps, and one runs at a time."""
    world = World(max_running=1, max_waiting=20, max_wait_s=1e6)
    for number in range(10):
        world.submit(endless(f"a{number}", frames=30))
    while "a5" not in world.logs or not world.logs["a5"].reason:
        world.step()
    for number in range(16):
        world.submit(endless(f"b{number}", frames=30))
    while world.engine.load["toy"]["waiting"] < 20:
        world.submit(endless(f"c{world.clock.now_s}", frames=30))
        world.step()
    with pytest.raises(Overloaded, match="the queue is full") as full:
        world.submit(endless("last", frames=30))
    wait_s = 20 * 30 * STEP_S
    assert 0.7 * wait_s < full.value.retry_after_s < 1.5 * wait_s + 1


def test_a_request_that_waits_too_long_says_how_long_the_queue_takes() -> None:
    world = World(max_running=1, max_wait_s=1.0)
    for number in range(90):
        world.submit(endless(f"a{number}", frames=30))
    run_until_ended(world, "a89")
    error = world.logs["a89"].error
    assert isinstance(error, Overloaded)
    assert error.retry_after_s > 5


def test_a_pause_does_not_count_to_a_deadline() -> None:
    world = World(max_decode_s=0.2)
    world.submit(endless("paused"))
    for _ in range(15):
        world.step()
    world.engine.pause("paused")
    for _ in range(100):
        world.step()
    assert world.logs["paused"].reason is None
    world.engine.resume("paused")
    resumed_s, sequence = world.clock.now_s, world.engine._live["paused"][1]
    first_s = sequence.timing.first_entry_s
    assert first_s is not None
    ended_s = run_until_ended(world, "paused")
    left_s = first_s + 0.2 + sequence.status.paused_s - resumed_s
    assert 0.02 < left_s < 0.2
    assert resumed_s + left_s < ended_s <= resumed_s + left_s + 2 * STEP_S


def test_without_limits_a_request_takes_as_long_as_it_needs() -> None:
    world = World()
    world.submit(endless("long"))
    world.run()
    assert world.logs["long"].reason is Reason.LENGTH


@pytest.mark.parametrize("name", ["max_prefill_s", "max_decode_s"])
def test_a_negative_limit_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match=name):
        EngineConfig(**{name: -1.0})  # type: ignore[arg-type]


def test_a_caller_may_ask_for_shorter_deadlines_and_others_keep_theirs() -> None:
    world = World(max_running=2, max_wait_s=1e6)
    world.submit(endless("others", frames=200))
    world.submit(endless("late", deadlines=Deadlines(decode_s=0.3)))
    world.submit(endless("waits", deadlines=Deadlines(queue_s=0.1)))
    assert run_until_ended(world, "waits") <= 0.1 + 3 * STEP_S
    error = world.logs["waits"].error
    assert isinstance(error, Overloaded)
    assert "within 0.1 s" in str(error)
    late = world.engine._live["late"][1]
    ended_s = run_until_ended(world, "late")
    assert late.timing.first_entry_s is not None
    due_s = late.submitted_s + late.timing.first_entry_s + 0.3
    assert due_s < ended_s <= due_s + 2 * STEP_S
    assert isinstance(world.logs["late"].error, DeadlineExceeded)
    world.run()
    assert world.logs["others"].reason is Reason.LENGTH
    assert not world.engine._workers["toy"].scheduler._with_deadlines


def test_a_caller_may_ask_for_a_short_prefill() -> None:
    world = World(max_running=1, max_step_tokens=1)
    world.submit(endless("long", prompt=60, deadlines=Deadlines(prefill_s=0.2)))
    assert 0.2 < run_until_ended(world, "long") <= 0.2 + 2 * STEP_S
    assert isinstance(world.logs["long"].error, DeadlineExceeded)


def test_a_caller_cannot_ask_for_longer_deadlines_than_the_engine_has() -> None:
    world = World(max_decode_s=0.2)
    world.submit(endless("late", deadlines=Deadlines(decode_s=60.0)))
    assert run_until_ended(world, "late") < 0.3


def test_a_pause_does_not_count_to_a_deadline_of_the_caller_either() -> None:
    world = World()
    world.submit(endless("paused", deadlines=Deadlines(decode_s=0.2)))
    for _ in range(10):
        world.step()
    world.engine.pause("paused")
    for _ in range(100):
        world.step()
    assert world.logs["paused"].reason is None
    world.engine.resume("paused")
    resumed_s = world.clock.now_s
    assert run_until_ended(world, "paused") > resumed_s + 0.05
    assert isinstance(world.logs["paused"].error, DeadlineExceeded)
