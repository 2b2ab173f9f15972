"""Threads beside the one that steps.

What API servers compute leaves Python's lock for most of its time, but every return to Python asks
for it. Thirty threads that ask at once let the one that steps wait for tens of milliseconds, and
together they compute no more than a few.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

from izwi.fairness.callers import current_caller
from izwi.fairness.queue import FairQueue

P = ParamSpec("P")
R = TypeVar("R")

MAX_COMPUTE_THREADS = 8
_MAX_COMPUTING = 4


class FairThreads(ThreadPoolExecutor):
    """Threads that serve callers in turn, and the calls of one caller in order.

    A call waits for the calls that run, and for at most one of each other caller.
    """

    def __init__(self, max_workers: int, thread_name_prefix: str = ""):
        super().__init__(max_workers, thread_name_prefix)
        self._lock = threading.Lock()
        self._waiting = FairQueue[tuple[Future[Any], Callable[[], Any]]]()

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Queue a call for the current caller."""
        return self.submit_sized(1.0, partial(fn, *args, **kwargs))

    def submit_sized(self, work: float, call: Callable[[], R]) -> Future[R]:
        """Queue a call for the current caller.

        Args:
            work: Its size, in the unit of all calls of these threads.
            call: The call.
        """
        future: Future[R] = Future()
        with self._lock:
            self._waiting.put(current_caller.get(), work, (future, call))
        super().submit(self._run_next)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more calls; optionally cancel those that wait."""
        super().shutdown(wait=False, cancel_futures=cancel_futures)
        while cancel_futures:
            with self._lock:
                if not self._waiting:
                    break
                future, _ = self._waiting.pop()
            future.cancel()
        if wait:
            super().shutdown(wait=True)

    def _run_next(self) -> None:
        with self._lock:
            if not self._waiting:
                return
            future, call = self._waiting.pop()
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = call()
        except BaseException as error:
            future.set_exception(error)
            del future  # an exception refers to this frame
        else:
            future.set_result(result)


# A separate pool, so that an hour of audio delays no short text.
_computing = FairThreads(_MAX_COMPUTING, thread_name_prefix="izwi-compute")


def use_few_threads() -> None:
    """Bound the threads of `asyncio.to_thread` in the running event loop."""
    executor = FairThreads(MAX_COMPUTE_THREADS, thread_name_prefix="izwi-compute")
    asyncio.get_running_loop().set_default_executor(executor)


async def compute(work: Callable[..., R], *arguments: Any) -> R:
    """As `asyncio.to_thread`, for work of milliseconds or longer, like audio features."""
    context = contextvars.copy_context()
    call = partial(context.run, work, *arguments)
    return await asyncio.get_running_loop().run_in_executor(_computing, call)
