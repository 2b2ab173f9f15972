"""Threads that serve callers in turn."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError
from functools import partial

import pytest

from izwi.fairness.callers import current_caller
from izwi.host.threads import FairThreads, compute, use_few_threads


class Blocked:
    """Threads whose first calls wait until `release`; then all further calls run."""

    def __init__(self, num_threads=1):
        self.threads, self.started = FairThreads(num_threads), []
        self._gate, self._entered = threading.Event(), threading.Semaphore(0)
        for _ in range(num_threads):
            self.submit("holder", "blocked", self._wait)
            assert self._entered.acquire(timeout=60)
        self.started.clear()

    def _wait(self):
        self._entered.release()
        assert self._gate.wait(60)

    def submit(self, caller, name, call=lambda: None, work=1.0):
        def run():
            self.started.append(name)
            return call()

        token = current_caller.set(caller)
        try:
            return self.threads.submit_sized(work, run)
        finally:
            current_caller.reset(token)

    def release(self):
        self._gate.set()
        self.threads.shutdown(wait=True)
        return self.started


def test_callers_take_turns_and_the_calls_of_one_are_in_order():
    blocked = Blocked()
    for number in range(6):
        blocked.submit("heavy", f"heavy {number}")
    blocked.submit("light", "light")
    assert blocked.release() == ["heavy 0", "light", *(f"heavy {number}" for number in range(1, 6))]


def test_a_turn_of_large_work_is_worth_several_of_small_work():
    blocked = Blocked()
    for number in range(3):
        blocked.submit("large", f"L{number}", work=30.0)
    for number in range(6):
        blocked.submit("small", f"s{number}", work=10.0)
    assert blocked.release() == ["L0", "s0", "s1", "s2", "L1", "s3", "s4", "s5", "L2"]


def test_one_caller_is_served_first_come_first_served():
    blocked = Blocked()
    for number in range(50):
        blocked.submit("", number)
    assert blocked.release() == list(range(50))


def test_results_errors_and_cancelled_calls_reach_the_one_who_called():
    blocked = Blocked(2)
    fails = blocked.submit("a", "fails", partial(int, "no number"))
    left = blocked.submit("a", "left")
    works = blocked.submit("b", "works", lambda: 7)
    assert left.cancel()
    assert "left" not in blocked.release()
    assert works.result(60) == 7
    with pytest.raises(ValueError, match="no number"):
        fails.result(60)


def test_the_end_cancels_calls_that_wait():
    blocked = Blocked()
    waiting = [blocked.submit(caller, caller) for caller in "ab"]
    blocked.threads.shutdown(wait=False, cancel_futures=True)
    assert blocked.release() == []
    for future in waiting:
        with pytest.raises(CancelledError):
            future.result(60)
    with pytest.raises(RuntimeError):
        blocked.submit("a", "late")


async def test_work_of_a_task_is_that_of_its_caller(monkeypatch):
    """Both in `compute` and in `asyncio.to_thread`."""
    seen = []
    monkeypatch.setattr(
        FairThreads, "submit_sized", lambda *_: seen.append(current_caller.get()) or 1 / 0
    )
    use_few_threads()
    for caller in ("ann", "bob"):
        current_caller.set(caller)
        for work in (compute, asyncio.to_thread):
            with pytest.raises(ZeroDivisionError):
                await work(print)
    assert seen == ["ann", "ann", "bob", "bob"]
