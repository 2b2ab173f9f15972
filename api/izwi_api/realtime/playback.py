"""What a client has played, and when more may be sent to it. Pure: the time is given."""

from __future__ import annotations

from dataclasses import dataclass, replace

DEFAULT_LEAD_MS = 250
# A shorter lead than a piece of sound that is sent at once would leave gaps.
LEAST_LEAD_MS, MOST_LEAD_MS = 40, 60_000


def is_lead_ms(value: float) -> bool:
    """Whether a lead may be set so; 0 stands for none: sound is sent as fast as it is made."""
    return value == 0 or LEAST_LEAD_MS <= value <= MOST_LEAD_MS


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
