"""An event loop in its own thread, for callers without one, or inside one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Opened = TypeVar("Opened")


class LoopThread(Generic[Opened]):
    """Keeps an async context manager open in a thread, and runs coroutines there.

    The thread is a daemon, so a script that does not close it still exits.

    Args:
        make: Makes the context manager, in the thread.

    Attributes:
        opened: The context manager's value.

    Raises:
        Exception: The context manager could not be entered.
    """

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[Opened]]):
        self._make = make
        self._closing: asyncio.Event
        self._loop: asyncio.AbstractEventLoop
        self._ready: Future[Opened] = Future()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="izwi-client", daemon=True)
        self._thread.start()
        self.opened = self._ready.result()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and return its result; interrupting the caller cancels it.

        Raises:
            RuntimeError: The thread is closed.
        """
        if self._is_closed:
            work.close()
            raise RuntimeError("the client is closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Exit the context manager, and wait for that. A second call does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._keep_open())
        except BaseException as error:
            if self._ready.done():
                raise
            self._is_closed = True
            self._ready.set_exception(error)

    async def _keep_open(self) -> None:
        self._loop, self._closing = asyncio.get_running_loop(), asyncio.Event()
        async with self._make() as opened:
            self._ready.set_result(opened)
            await self._closing.wait()
