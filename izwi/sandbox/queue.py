"""A queue of jobs for limited processes, for asyncio, with threads of its own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from izwi.errors import EngineStopped, Overloaded
from izwi.fairness.callers import current_caller
from izwi.fairness.queue import may_queue
from izwi.fairness.wait import QueueWait
from izwi.host.threads import FairThreads
from izwi.sandbox.client import Call, Frames, LimitedJob, LimitedPool, ProcessKind

T = TypeVar("T")


class LimitedQueue:
    """Does jobs in limited processes, a few at a time; those of other callers wait in turn.

    Args:
        kind: The processes.
        max_processes: How many run at the same time, one thread each.
        max_waiting: How many more jobs may wait.
        too_many: Message if more do.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        kind: ProcessKind,
        max_processes: int,
        max_waiting: int,
        too_many: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pool = LimitedPool(kind)
        self._max_jobs, self._too_many = max_processes + max_waiting, too_many
        name = f"izwi-{kind.module.rpartition('.')[2]}"
        self._threads = FairThreads(max_processes, thread_name_prefix=name)
        self._lock = threading.Lock()
        self._num_jobs = Counter[str]()  # that wait or are done, by caller
        self._num_processes, self._wait, self._clock = max_processes, QueueWait(), clock
        self._is_stopped = False

    def start(self) -> None:
        """Start one process ahead; see `LimitedPool.start`."""
        self.pool.start()

    async def run(self, job: LimitedJob, read: Callable[[Frames], T], size: float) -> T:
        """Have a process do a job, as `LimitedPool.run`. A job whose caller leaves is stopped.

        Args:
            job: The job.
            read: Reads what the process sends.
            size: Work of the job, in any unit that is the same for all jobs of this queue.

        Raises:
            Overloaded: Too many jobs wait.
            EngineStopped: The queue was stopped.
            JobStopped, IzwiError: As `LimitedPool.run`.
        """
        call, caller = Call(), current_caller.get()
        with self._lock:
            if self._is_stopped:
                raise EngineStopped("the server is stopping")
            if not may_queue(self._num_jobs, caller, self._max_jobs):
                num_waiting = self._num_jobs.total() - self._num_processes
                wait_s = self._wait.retry_after_s(num_waiting, self._clock())
                raise Overloaded(self._too_many, retry_after_s=wait_s)
            if not self._num_jobs:
                self._wait.note_first(self._clock())
            self._num_jobs[caller] += 1
        running = self._threads.submit_sized(size, partial(self.pool.run, job, read, call))
        running.add_done_callback(partial(self._count_out, caller))
        try:
            return await asyncio.wrap_future(running)
        except asyncio.CancelledError:
            running.cancel()
            self.pool.leave(call)
            raise

    def stop(self) -> None:
        """End the processes; jobs in progress fail."""
        with self._lock:
            self._is_stopped = True
        self.pool.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _count_out(self, caller: str, _: Future[Any]) -> None:
        with self._lock:
            self._wait.note_left(1, self._clock())
            self._num_jobs[caller] -= 1
            if not self._num_jobs[caller]:
                del self._num_jobs[caller]
