"""Time limits for the other side of a connection that a late event loop does not use up.

An event loop that is late (a starved process, a long callback) finds bytes that came in time only
after a plain timer has run out, and would refuse a client for its own delay. So time is counted in
ticks, and of a late tick only what was planned counts. The event loop handles sockets before
timers, so what came meanwhile is taken before the time is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

_TICK_S = 0.25
_ROUNDING_S = 1e-6


class Countdown:
    """Calls back when a time is over. Lives on the event loop.

    Args:
        loop: That runs.
        seconds: Until the time is over.
        over: Called once, unless it is stopped before.

    Attributes:
        counted_s: Seconds that have counted so far.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, over: Callable[[], object]):
        self._loop, self._seconds, self._over = loop, seconds, over
        self.counted_s = 0.0
        self._begun_s = self._tick_s = 0.0
        self._handle: asyncio.Handle | None = None

    def start(self) -> None:
        """Begin to count."""
        self._begun_s = self._loop.time()
        self._tick_s = max(0.0, min(_TICK_S, self._seconds - self.counted_s))
        self._handle = self._loop.call_later(self._tick_s, self._tick)

    def allow(self, seconds: float) -> None:
        """Let the time be over after so many seconds since the start."""
        self._seconds = seconds
        if self._handle is not None:
            self.stop()
            self.start()

    def stop(self) -> None:
        """Count no more."""
        if self._handle is not None:
            self._count()
            self._handle.cancel()
            self._handle = None

    def _count(self) -> None:
        self.counted_s += min(self._tick_s, self._loop.time() - self._begun_s)
        self._tick_s = 0.0

    def _tick(self) -> None:
        self._count()
        if self._seconds - self.counted_s > _ROUNDING_S:
            self.start()
        else:
            self._handle = None
            self._over()


@asynccontextmanager
async def fair_timeout(seconds: float) -> AsyncGenerator[Countdown]:
    """Cancel the block after a time that the event loop had, as `asyncio.timeout`.

    Args:
        seconds: That it may take; the countdown may be given more.

    Raises:
        TimeoutError: It took longer.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as limit:
        countdown = Countdown(loop, seconds, lambda: limit.reschedule(loop.time()))
        countdown.start()
        try:
            yield countdown
        finally:
            countdown.stop()
