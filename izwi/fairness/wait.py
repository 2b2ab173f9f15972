"""Predict how long a queue takes, from how fast it moved lately. Pure: no clock."""

from __future__ import annotations

from math import ceil

# Weight of the latest time in the average.
_NEW_WEIGHT = 0.25
# Seconds that a client is asked to wait, at least and at most.
_LEAST_S, _MOST_S = 1, 120


class QueueWait:
    """How fast one queue moves. Times are seconds on the caller's clock."""

    def __init__(self) -> None:
        self._gap_s = 0.0  # average time between two that leave it
        self._since_s: float | None = None  # when the last one left, or the first one came

    def note_first(self, now_s: float) -> None:
        """Note that the queue is no longer empty."""
        self._since_s = now_s

    def note_left(self, count: int, now_s: float) -> None:
        """Note that requests have left the queue because their turn came."""
        if self._since_s is not None and count:
            gap_s = max(0.0, now_s - self._since_s) / count
            weight = _NEW_WEIGHT if self._gap_s else 1.0
            self._gap_s += weight * (gap_s - self._gap_s)
        self._since_s = now_s

    def retry_after_s(self, num_waiting: int, now_s: float) -> int:
        """Return in how many whole seconds what waits now has left the queue, from 1 to 120.

        A queue that does not move at present is predicted to move as slowly as it does now.
        """
        stuck_s = 0.0 if self._since_s is None else now_s - self._since_s
        wait_s = num_waiting * max(self._gap_s, stuck_s)
        return ceil(min(max(wait_s, _LEAST_S), _MOST_S))
