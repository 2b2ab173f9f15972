"""Share the event loop among the long messages of all sessions.

Minutes of audio may come in one message, and detecting speech in them takes seconds. Such work is
cut into pieces; each waits here for its turn, so that one iteration of the loop has at most one
piece, however many sessions have long messages.
"""

from __future__ import annotations

import asyncio


class LoopTurns:
    """Turns of one event loop."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()  # in the order in which it was asked for

    async def wait_for_turn(self) -> None:
        """Let everything else run that can; return when the next piece may run."""
        async with self._lock:
            await asyncio.sleep(0)
