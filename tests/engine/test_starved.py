"""Streams that wait for text take nothing from others, however many there are."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from izwi.errors import Overloaded
from izwi.request.request import Reason, Request
from izwi.scheduler.policy import POLICIES
from tests.engine.test_pause import spoken
from tests.engine.world import World


def starving(name: str, seed: int) -> Request:
    """A request whose second frame needs text that is not written."""
    return replace(spoken(name, 6, seed=seed, frames=30), open_input=True)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_short_request_is_served_with_any_number_of_starved_streams(policy: str) -> None:
    world = World(max_running=4, policy=policy, max_wait_s=1e6)
    for number in range(14):
        world.submit(starving(f"starved-{number}", number))
        for _ in range(4):
            world.step()
    assert world.engine.load["toy"]["waiting"] > 4, "more wait than a policy is shown"
    world.submit(spoken("short", 6, seed=3, frames=10))
    for _ in range(60):
        world.step()
    assert world.logs["short"].reason is Reason.LENGTH
    # and whose text comes after all goes on
    world.engine.write("starved-0", list(range(1, 25)), closed=True)
    for _ in range(100):
        world.step()
    assert world.logs["starved-0"].reason is Reason.LENGTH


def test_starved_streams_do_not_fill_the_queue() -> None:
    world = World(max_running=2, max_waiting=4, max_wait_s=1e6)
    for number in range(8):
        world.submit(starving(f"starved-{number}", number))
        for _ in range(4):
            world.step()
    assert world.engine.load["toy"]["waiting"] >= 4
    for number in range(4):
        world.submit(spoken(f"short-{number}", 6, seed=number, frames=10))
    with pytest.raises(Overloaded, match=r"the queue is full \(4 requests\); retry later"):
        world.submit(spoken("one-more", 6, seed=9, frames=10))
    for _ in range(100):
        world.step()
    assert all(world.logs[f"short-{number}"].reason is Reason.LENGTH for number in range(4))


def test_the_rest_of_an_answer_is_not_refused() -> None:
    world = World(max_running=1, max_waiting=2, max_wait_s=1.0)
    for number in range(3):
        world.submit(spoken(f"short-{number}", 6, seed=number, frames=40))
        world.step()
    rest = replace(spoken("rest", 6, seed=7, frames=10), listener="ann", continues=True)
    with pytest.raises(Overloaded):
        world.submit(replace(rest, continues=False))
    world.logs.pop("rest")
    world.submit(rest)
    world.clock.now_s += 5.0
    world.run()
    assert world.logs["short-2"].reason is Reason.ERROR
    message = "could not be scheduled within 1 s (queue full); retry later"
    assert str(world.logs["short-2"].error) == message
    assert world.logs["rest"].reason is Reason.LENGTH
