"""What a client plays, what it has played, and when more may be sent to it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from izwi.arrays import Float32

DEFAULT_LEAD_MS = 250
_QUIET = 10 ** (-50 / 20)
_KEPT_S = 0.02  # of the quiet before the first audible sample
_MAX_CUT_S = 0.4  # what is longer was meant as a pause


class LeadIn:
    """Cuts the quiet before the first sound of an answer: nobody should have to wait for it."""

    def __init__(self, rate: int):
        """Begin a sound of so many samples a second."""
        self._kept, self._room = int(_KEPT_S * rate), int(_MAX_CUT_S * rate)
        self._held = np.zeros(0, np.float32)
        self._is_over = False

    def cut(self, pcm: Float32) -> Float32:
        """Take samples, and return those to be played now."""
        if self._is_over:
            return pcm
        self._held = np.concatenate([self._held, pcm])
        audible = np.flatnonzero(np.abs(self._held) > _QUIET)
        first = int(audible[0]) if len(audible) else len(self._held)
        start = min(max(0, first - self._kept), self._room)
        played, self._held = self._held[start:], self._held[start : start + self._kept]
        self._room -= start
        if len(audible) or self._room <= 0:
            self._is_over = True
            return played
        return played[:0]


@dataclass(frozen=True, slots=True)
class PlaybackClock:
    """A client that plays what it gets at once, at 1x, and waits where there is nothing.

    Attributes:
        lead_ms: Sound that may be sent ahead of what is played; None sends without a limit, for
            clients that record.
        sent_ms: Sound sent so far.
        ends_ms: When all of it will have been played, on the clock of the caller.
    """

    lead_ms: float | None = DEFAULT_LEAD_MS
    sent_ms: float = 0.0
    ends_ms: float = 0.0

    def send(self, duration_ms: float, now_ms: float) -> PlaybackClock:
        """Return it after so much more was sent."""
        ends_ms = max(now_ms, self.ends_ms) + duration_ms
        return replace(self, sent_ms=self.sent_ms + duration_ms, ends_ms=ends_ms)

    def played_ms(self, now_ms: float) -> float:
        """Sound played so far."""
        return self.sent_ms - max(0.0, self.ends_ms - now_ms)

    def wait_ms(self, now_ms: float) -> float:
        """How long to wait until more may be sent; 0 where it may be sent now."""
        if self.lead_ms is None:
            return 0.0
        return max(0.0, self.ends_ms - now_ms - self.lead_ms)
