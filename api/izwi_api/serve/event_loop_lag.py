"""How late an event loop runs what is due: the time that an API server itself adds to a wait."""

from __future__ import annotations

import asyncio
from math import inf

# Seconds between two looks.
_INTERVAL_S = 0.05
# The measured lag falls to this share with each look, so that a stall counts for some looks.
_DECAY = 0.7


class EventLoopLag:
    """Measures how late timers run. Times are seconds on the event loop's clock."""

    def __init__(self) -> None:
        self._due_s, self._measured_s = inf, 0.0

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Measure from now on; a second call does nothing."""
        if self._due_s == inf:
            self._look_later(loop)

    def seconds(self, now_s: float) -> float:
        """Return the lag: the latest that was measured, or what is due already and has not run."""
        return max(self._measured_s, now_s - self._due_s)

    def _look_later(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due_s = loop.time() + _INTERVAL_S
        loop.call_at(self._due_s, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._measured_s = max(loop.time() - self._due_s, _DECAY * self._measured_s)
        self._look_later(loop)
