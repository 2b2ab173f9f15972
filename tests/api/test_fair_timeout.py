"""Time in which our own event loop was late does not count against the peer."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from izwi_api.fair_timeout import Countdown, fair_timeout
from izwi_api.settings import RequestPace
from tests.api.http.test_request_pace import read


class FakeLoop:
    """A loop whose timers are late by a given time."""

    def __init__(self, lateness):
        self.now_s, self.lateness, self.due = 0.0, lateness, []

    def time(self):
        return self.now_s

    def call_later(self, delay_s, callback, *args):
        self.due.append((delay_s, callback, args))
        return self

    def call_soon(self, callback, *args):
        return self.call_later(0.0, callback, *args)

    def cancel(self):
        self.due.clear()

    def turn(self):
        delay_s, callback, args = self.due.pop(0)
        self.now_s += delay_s + (next(self.lateness, 0.0) if delay_s else 0.0)
        callback(*args)


@given(st.floats(0.01, 5), st.lists(st.floats(0, 60), max_size=40))
def test_of_a_late_tick_only_what_was_planned_counts(seconds, lateness):
    over = []
    loop = FakeLoop(iter(lateness))
    countdown = Countdown(loop, seconds, lambda: over.append(loop.now_s))
    countdown.start()
    num_timers = 0
    while not over:
        num_timers += loop.due[0][0] > 0
        loop.turn()
    assert over[0] == pytest.approx(seconds + sum(lateness[:num_timers]), abs=1e-5)
    assert countdown.counted_s == pytest.approx(seconds, abs=1e-5)
    assert not loop.due


@given(st.lists(st.floats(0.0, 0.3), max_size=20), st.floats(1.0, 9.0))
def test_more_time_may_be_allowed_while_it_runs(gaps, seconds):
    loop, over = FakeLoop(iter(())), []
    countdown = Countdown(loop, 0.5, lambda: over.append(loop.now_s))
    countdown.start()
    countdown.allow(seconds)
    for gap_s in gaps:
        if gap_s < loop.due[0][0]:  # between two ticks
            loop.now_s += gap_s
            countdown.allow(seconds)
    while not over:
        loop.turn()
    assert over == [pytest.approx(seconds, abs=1e-4)]


async def test_bytes_that_came_while_the_loop_was_late_are_in_time():
    ours, theirs = socket.socketpair()
    with theirs:
        reader, writer = await asyncio.open_connection(sock=ours)

        def be_late():
            theirs.sendall(b"in time")
            time.sleep(0.6)

        asyncio.get_running_loop().call_later(0.02, be_late)
        async with fair_timeout(0.2):
            assert await reader.read(16) == b"in time"
        with pytest.raises(TimeoutError):
            async with fair_timeout(0.05):
                await reader.read(16)
        writer.close()


async def test_a_body_that_came_while_the_loop_was_late_is_taken():
    pace = RequestPace(grace_s=0.6, min_bytes_per_s=1e9, max_body_s=0.6)
    asyncio.get_running_loop().call_later(0.02, time.sleep, 1.0)
    got, head = await read(pace, [b"x", b"y"], 0.04)
    assert (len(got), head) == (2, {})


async def test_what_is_done_in_time_is_not_cancelled_later():
    async with fair_timeout(0.02) as countdown:
        pass
    await asyncio.sleep(0.1)
    assert countdown.counted_s < 0.02
