"""The lag of an event loop is how late its timers run, and counts in the wait that is predicted."""

from __future__ import annotations

import time

import pytest

from izwi.errors import Overloaded
from izwi.router.options import RouterOptions
from izwi_api.serve.event_loop_lag import EventLoopLag
from tests.serve.test_remote_engine import endless, read
from tests.serve.test_replica_router import Replicas


class Loop:
    """An event loop whose clock a test moves."""

    def __init__(self):
        self.now_s, self.due = 0.0, []

    def time(self):
        return self.now_s

    def call_at(self, at_s, call, *arguments):
        self.due.append((at_s, call, arguments))

    def run_at(self, now_s):
        self.now_s = now_s
        due, self.due = self.due, []
        for _, call, arguments in due:
            call(*arguments)


def test_a_loop_that_is_on_time_has_no_lag():
    loop, lag = Loop(), EventLoopLag()
    assert lag.seconds(0.0) == 0.0
    lag.start(loop)
    lag.start(loop)
    assert len(loop.due) == 1
    for number in range(1, 5):
        loop.run_at(0.05 * number)
        assert lag.seconds(loop.now_s) == pytest.approx(0.0)


def test_a_stall_counts_at_once_and_fades():
    loop, lag = Loop(), EventLoopLag()
    lag.start(loop)
    assert lag.seconds(0.35) == pytest.approx(0.3)  # due, and not run yet
    loop.run_at(0.45)
    assert lag.seconds(0.45) == pytest.approx(0.4)
    seen = []
    for number in range(1, 20):
        loop.run_at(0.45 + 0.05 * number)
        seen.append(lag.seconds(loop.now_s))
    assert seen == sorted(seen, reverse=True)
    assert seen[0] == pytest.approx(0.28)
    assert seen[-1] < 0.001


async def test_an_api_server_that_is_late_refuses_what_idle_engines_would_take():
    options = RouterOptions("least_load", 4, max_wait_s=60.0)
    async with Replicas(1, options=options) as world:
        world.router.check_admission("toy")
        time.sleep(0.3)  # noqa: ASYNC251 it blocks the event loop
        assert world.router._placement.own_delay_s() >= 2 * 0.2
        world.router._lag._measured_s = 50.0
        with pytest.raises(Overloaded, match="in this API server"):
            world.router.check_admission("toy")
        with pytest.raises(Overloaded, match="in this API server"):
            world.router.submit(endless("a", 1, 5))
    async with Replicas(1) as world:  # without a limit nothing is measured
        assert world.router._placement.own_delay_s() == 0.0
        world.router.check_admission("toy")
        await read(world.router.submit(endless("a", 1, 5)))
