"""Threads beside the one that steps."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

# What doors compute (features, tokens, encoders of files) leaves Python's lock for most of its
# time, but every return to Python asks for it. Thirty threads that ask at once let the one that
# steps wait for tens of milliseconds, and a few compute as much.
MAX_DOOR_THREADS = 8


def use_few_threads() -> None:
    """Bound the threads of `asyncio.to_thread` in the running event loop."""
    executor = ThreadPoolExecutor(MAX_DOOR_THREADS, thread_name_prefix="izwi-door")
    asyncio.get_running_loop().set_default_executor(executor)
