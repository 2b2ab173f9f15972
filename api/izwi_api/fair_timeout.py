"""Time limits for clients that do not count delays of the server's own event loop.

If the event loop is late (a starved process, a long callback), a plain timer expires before it has
read bytes that arrived in time, and the client would be refused for the server's delay. So time is
counted in ticks, and a late tick counts only its planned length. The event loop handles sockets
before timers, so bytes that arrived meanwhile are read before the limit ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

_TICK_S = 0.25
_ROUNDING_S = 1e-6


class Countdown:
    """Calls a function when the time is over. Lives on the event loop.

    Args:
        loop: The running event loop.
        seconds: The time.
        over: Called once, unless the countdown is stopped first.

    Attributes:
        counted_s: Seconds counted so far.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, over: Callable[[], object]):
        self._loop, self._seconds, self._over = loop, seconds, over
        self.counted_s = 0.0
        self._begun_s = self._tick_s = 0.0
        self._handle: asyncio.Handle | None = None

    def start(self) -> None:
        """Start to count."""
        self._begun_s = self._loop.time()
        self._tick_s = max(0.0, min(_TICK_S, self._seconds - self.counted_s))
        self._handle = self._loop.call_later(self._tick_s, self._tick)

    def allow(self, seconds: float) -> None:
        """Set the end to `seconds` counted seconds after the start."""
        self._seconds = seconds
        if self._handle is not None:
            self.stop()
            self.start()

    def stop(self) -> None:
        """Stop to count."""
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
    """Cancel the block after so many counted seconds, as `asyncio.timeout`.

    Args:
        seconds: The limit; it can be extended through the countdown.

    Raises:
        TimeoutError: The block took longer.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as limit:
        countdown = Countdown(loop, seconds, lambda: limit.reschedule(loop.time()))
        countdown.start()
        try:
            yield countdown
        finally:
            countdown.stop()
