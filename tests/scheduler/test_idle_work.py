"""Idle work runs while there is nothing else, delays others by one step, and loses nothing."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from izwi.errors import Overloaded
from izwi.scheduler.policy import POLICIES
from tests.engine.test_pause import spoken
from tests.engine.toy import toy_request
from tests.engine.world import World, alone
from tests.scheduler.test_callers import CPU, LIGHT_TOKENS, SHORT, Models

# Short prompts, and the step that was in flight when a request came.
LONGEST_STEP_S = 0.1


def fill(models: Models) -> None:
    for number in range(200, 800):
        models.submit(number, "batch", priority=-1, streams=False)


def idle(request):
    return replace(request, priority=-1, streams=False)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("num_models", [1, 2])
def test_a_request_beside_idle_work_waits_for_one_step_only(policy, num_models) -> None:
    def taken_s(num_idle: int) -> float:
        models = Models(num_models, CPU, policy=policy)
        for number in range(num_idle):
            models.submit(number, "batch", priority=-1, streams=False)
        for _ in range(8):
            models.step()
        began_s = models.now_s
        models.submit(100, "person", model=num_models - 1, tokens=LIGHT_TOKENS, **SHORT)
        models.run(100)
        return models.ended["100"] - began_s

    assert taken_s(12) <= taken_s(0) + LONGEST_STEP_S


def test_idle_work_of_one_key_does_not_take_from_its_share() -> None:
    """Its other requests are as fast beside a second key as without it."""

    def ended(with_idle: bool) -> list[tuple[str, float]]:
        models = Models()
        for number in range(6 if with_idle else 0):
            models.submit(1000 + number, "one", priority=-1, streams=False)
        for number in range(20):
            models.submit(number, ("one", "two")[number % 2], tokens=20)
        models.run(19)
        return [(name, s) for name, s in models.ended.items() if int(name) < 1000]

    assert ended(with_idle=True) == ended(with_idle=False)


def test_idle_work_begins_again_when_others_have_ended_and_is_never_overdue() -> None:
    models = Models(max_wait_s=1.0, max_decode_s=1.0)
    for number in range(3):
        models.submit(number, "batch", priority=-1, streams=False, tokens=200)
    for _ in range(5):
        models.step()
    for number in range(100, 140):  # more than a second of work, one at a time
        models.submit(number, "person", tokens=30)
        models.run(number)
    assert models.now_s > 2.0
    assert not {"0", "1", "2"} & models.ended.keys()
    models.run()
    assert {"0", "1", "2"} <= models.ended.keys()
    with pytest.raises(Overloaded, match="queue is full"):
        fill(models)


def test_a_preempted_voice_continues_with_the_next_sample() -> None:
    line, other = idle(spoken("line", 20, seed=3, frames=40)), toy_request("person", 6, 5, 12)
    world = World()
    world.submit(line)
    for _ in range(9):
        world.step()
    heard = len(world.logs["line"].entries)
    assert heard
    world.submit(other)
    while world.logs["person"].reason is None:
        world.step()
    # what was in flight may still arrive
    assert len(world.logs["line"].entries) <= heard + 2
    world.run()
    assert world.logs["line"].pcm == alone(line).pcm
    assert world.logs["line"].entries == alone(line).entries
    world.check_nothing_is_lost()


def test_a_request_takes_the_only_place_and_all_pages_of_idle_work() -> None:
    world = World(24, max_running=1)
    world.submit(idle(spoken("line", 20, seed=3, frames=30)))
    for _ in range(6):
        world.step()
    world.submit(spoken("person", 40, seed=4, frames=30))
    while world.logs["person"].reason is None:
        world.step()
    assert world.logs["line"].reason is None
    world.run()
    assert world.logs["line"].pcm == alone(spoken("line", 20, seed=3, frames=30)).pcm
    world.check_nothing_is_lost()


def test_a_paused_request_lets_idle_work_run() -> None:
    world = World()
    world.submit(spoken("person", 6, seed=4, frames=30))
    world.step()
    world.engine.pause("person")
    world.submit(idle(spoken("line", 6, seed=3, frames=5)))
    for _ in range(40):
        world.step()
    assert world.logs["line"].reason is not None
    world.engine.resume("person")
    world.run()
    world.check_nothing_is_lost()


@pytest.mark.parametrize("num_lines", [1, 12])
def test_a_running_batch_delays_a_request_by_at_most_one_step(num_lines) -> None:
    def steps_of_request(num_idle: int) -> int:
        world = World()
        names = [f"line-{number}" for number in range(num_idle)]
        for number, name in enumerate(names):
            world.submit(idle(spoken(name, 6, seed=number, frames=40)))
        for _ in range(6):
            world.step()
        made = [len(world.logs[name].entries) for name in names]
        assert all(made)
        world.submit(spoken("person", 6, seed=40, frames=8))
        num_steps = 0
        while world.logs["person"].reason is None:
            world.step()
            num_steps += 1
        # nothing but what was in flight: no step is shared with a line
        now = [len(world.logs[name].entries) for name in names]
        assert all(after <= before + 2 for before, after in zip(made, now, strict=True))
        return num_steps

    beside, by_itself = steps_of_request(num_lines), steps_of_request(0)
    assert by_itself <= beside <= by_itself + 1
