"""Threads beside the one that steps.

What API servers compute leaves Python's lock for most of its time, but every return to Python asks
for it. Thirty threads that ask at once let the one that steps wait for tens of milliseconds, and
together they compute no more than a few.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

R = TypeVar("R")

MAX_COMPUTE_THREADS = 8
_MAX_COMPUTING = 4
# A separate pool, so that an hour of audio delays no short text.
_computing = ThreadPoolExecutor(_MAX_COMPUTING, thread_name_prefix="izwi-compute")


def use_few_threads() -> None:
    """Bound the threads of `asyncio.to_thread` in the running event loop."""
    executor = ThreadPoolExecutor(MAX_COMPUTE_THREADS, thread_name_prefix="izwi-compute")
    asyncio.get_running_loop().set_default_executor(executor)


async def compute(work: Callable[..., R], *arguments: Any) -> R:
    """As `asyncio.to_thread`, for work of milliseconds or longer, like audio features."""
    context = contextvars.copy_context()
    call = partial(context.run, work, *arguments)
    return await asyncio.get_running_loop().run_in_executor(_computing, call)
