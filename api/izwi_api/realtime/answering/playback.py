"""Estimate what a client has played, and when to send it more. Pure: time is an argument."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class SessionPlayback:
    """Models a client that plays audio on arrival at 1x and stalls when it has none.

    Attributes:
        lead_ms: Audio that may be sent ahead of playback; None means no limit, for clients that
            record.
        sent_ms: Audio sent so far.
        ends_ms: When all of it will have been played, on the caller's clock.
        num_gaps: How often the client had played all of it before more came.
        gaps_ms: For how long.
        is_resuming: Nothing was sent since a pause; that is not a gap.
    """

    lead_ms: float | None
    sent_ms: float = 0.0
    ends_ms: float = 0.0
    num_gaps: int = 0
    gaps_ms: float = 0.0
    is_resuming: bool = False

    def send(self, duration_ms: float, now_ms: float) -> SessionPlayback:
        """Return the clock after sending this much more audio."""
        late_ms = now_ms - self.ends_ms
        is_gap = late_ms > 0.0 and self.sent_ms > 0.0 and not self.is_resuming
        return replace(
            self,
            sent_ms=self.sent_ms + duration_ms,
            ends_ms=max(now_ms, self.ends_ms) + duration_ms,
            num_gaps=self.num_gaps + is_gap,
            gaps_ms=self.gaps_ms + is_gap * late_ms,
            is_resuming=False,
        )

    def resume(self) -> SessionPlayback:
        """Return the clock after a pause."""
        return replace(self, is_resuming=True)

    def played_ms(self, now_ms: float) -> float:
        """Return the audio played so far."""
        return self.sent_ms - max(0.0, self.ends_ms - now_ms)

    def wait_ms(self, now_ms: float) -> float:
        """Return how long to wait before sending more; 0 if more may be sent now."""
        if self.lead_ms is None:
            return 0.0
        return max(0.0, self.ends_ms - now_ms - self.lead_ms)
