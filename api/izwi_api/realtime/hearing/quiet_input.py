"""Silence of a client that sends no audio while its user is silent (DTX, mute). Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

# Without audio for so long behind the last piece, the client is taken to be silent: longer than the
# network is late. A client that sends pieces of a second is late by a second at any time.
QUIET_MS = 400.0
# A tick that comes later than this says that the server was busy, not that the client was silent.
_MOST_TICK_MS = 100.0


@dataclass(frozen=True, slots=True)
class QuietInput:
    """How long a client has sent nothing.

    Attributes:
        piece_ms: Duration of the last piece of audio.
        quiet_ms: Time since it came.
        filled_ms: Silence that was added instead.
        tick_ms: When the last tick was.
    """

    piece_ms: float = 0.0
    quiet_ms: float = 0.0
    filled_ms: int = 0
    tick_ms: float | None = None

    def append(self, duration_ms: float) -> QuietInput:
        """Return the state after a piece of audio."""
        return replace(self, piece_ms=duration_ms, quiet_ms=0.0, filled_ms=0)

    def tick(self, now_ms: float) -> tuple[QuietInput, int]:
        """Return the state at a time, and the silence to add, in milliseconds."""
        elapsed_ms = 0.0 if self.tick_ms is None else now_ms - self.tick_ms
        quiet_ms = self.quiet_ms + min(elapsed_ms, _MOST_TICK_MS)
        state = replace(self, quiet_ms=quiet_ms, tick_ms=now_ms)
        if quiet_ms < QUIET_MS + self.piece_ms:
            return state, 0
        return replace(state, filled_ms=int(quiet_ms)), int(quiet_ms) - self.filled_ms
