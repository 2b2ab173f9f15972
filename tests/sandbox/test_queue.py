"""Jobs that a full queue of limited processes refuses, and when they should come again."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest

from izwi.errors import Overloaded
from izwi.sandbox.queue import LimitedQueue
from tests.sandbox.test_client import DECODERS


class Slow:
    """In the place of processes: each job ends when a test says so."""

    def __init__(self):
        self.ends = threading.Semaphore(0)

    def run(self, _job, _read, _call):
        assert self.ends.acquire(timeout=60)

    def leave(self, _call):
        pass

    def stop(self):
        pass


async def test_a_full_queue_refuses_for_as_long_as_those_that_wait_need():
    clock = SimpleNamespace(now_s=0.0)
    queue = LimitedQueue(DECODERS, 1, 8, "too many files", lambda: clock.now_s)
    queue.pool = slow = Slow()
    tasks = [asyncio.create_task(queue.run(None, None, 1.0)) for _ in range(9)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="too many files") as unknown:
        await queue.run(None, None, 1.0)
    assert unknown.value.retry_after_s == 1
    for number in range(3):  # each takes 2 s
        clock.now_s += 2.0
        slow.ends.release()
        await asyncio.wait_for(tasks[number], 60)
    tasks += [asyncio.create_task(queue.run(None, None, 1.0)) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded) as known:
        await queue.run(None, None, 1.0)
    assert known.value.retry_after_s == 16
    for _ in tasks[3:]:
        slow.ends.release()
    await asyncio.wait_for(asyncio.gather(*tasks), 60)
    queue.stop()
