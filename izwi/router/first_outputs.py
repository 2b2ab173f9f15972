"""Predict when a request has its first output, from the latest ones on the same engine. Pure.

What was learned is the measured time beside the work that the engine had then; see
`izwi.router.work`. So nothing of models, devices or batches is assumed but that times rise with the
work, by a line that holds for loads up to twice the present one. What a load of more than twice
those that were measured does is not known: it grows by one request at a time until it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from math import ceil, inf
from statistics import fmean
from typing import NamedTuple

# The share of requests that have their first output in the predicted time.
_SHARE = 0.95
# Requests beside more than this many times the work do not count: their line is another one.
_MOST_WORK = 2.0
# Of fewer requests the slowest counts, and those of other engines count as well.
_FEWEST = 8
# Requests that are remembered, and for how many seconds: a slow minute must not count for ever.
_MOST, _MEMORY_S = 256, 30.0


class _Measured(NamedTuple):
    at_s: float
    work: float
    first_s: float


class FirstOutputs:
    """The first outputs of one model on one engine. Times are seconds on the caller's clock."""

    def __init__(self) -> None:
        self._measured: deque[_Measured] = deque(maxlen=_MOST)
        self._pending: dict[str, tuple[float, float]] = {}  # when each was placed, and beside what
        # the prediction at the load that was asked for last, as long as nothing is learned or
        # forgotten: while requests are refused, neither changes, and each would compute it again
        self._known: tuple[float, float] | None = None

    def place(self, request_id: str, work: float, now_s: float) -> None:
        """Note that the engine gets a request, beside predicted work that it has already."""
        self._pending[request_id] = (now_s, work)

    def come(self, request_id: str, now_s: float) -> None:
        """Learn from the first output of a request; nothing if it had some before."""
        if (placed := self._pending.pop(request_id, None)) is not None:
            at_s, work = placed
            self._measured.append(_Measured(now_s, work, now_s - at_s))
            self._known = None

    def drop(self, request_id: str) -> None:
        """Forget a request that has left the engine."""
        self._pending.pop(request_id, None)

    def predict_s(self, work: float, now_s: float, alike: Iterable[FirstOutputs] = ()) -> float:
        """Return in how many seconds 95 % of such requests have their first output.

        It is at least the time for which the first that has none has waited. Beside more work than
        was measured, with a request that has none, it is not known: infinite.

        Args:
            work: Predicted work that the engine has already.
            now_s: The present time.
            alike: Of the same model on other engines, for as long as this one knows too little.
        """
        waited_s = next((now_s - at_s for at_s, _ in self._pending.values()), 0.0)
        self._forget(now_s)
        if self._known is not None and self._known[0] == work:
            return max(waited_s, self._known[1])
        own = similar = self._similar(work)
        if len(own) < _FEWEST:
            for other in alike:
                other._forget(now_s)
                similar = similar + other._similar(work)
        is_known = any(_MOST_WORK * one.work >= work for one in similar)
        if self._pending and not is_known:
            return inf
        if len(similar) < _FEWEST:
            return max([waited_s, *(one.first_s for one in similar)])
        line_s = _on_line(similar, work)
        if is_known and similar is own:
            self._known = work, line_s
        return max(waited_s, line_s)

    def _forget(self, now_s: float) -> None:
        """Forget what was measured too long ago."""
        while self._measured and now_s - self._measured[0].at_s > _MEMORY_S:
            self._measured.popleft()
            self._known = None

    def _similar(self, work: float) -> list[_Measured]:
        """Return what was measured beside up to so many times the work."""
        return [one for one in self._measured if one.work <= _MOST_WORK * work]


def _on_line(measured: list[_Measured], work: float) -> float:
    """Return the time at some work on the line through times, raised above most of them."""
    mean_work, mean_s = fmean(one.work for one in measured), fmean(one.first_s for one in measured)
    spread = sum((one.work - mean_work) ** 2 for one in measured)
    product = sum((one.work - mean_work) * (one.first_s - mean_s) for one in measured)
    rise = max(0.0, product / spread) if spread > 0 else 0.0
    above_s = sorted(one.first_s - mean_s - rise * (one.work - mean_work) for one in measured)
    return mean_s + rise * (work - mean_work) + above_s[ceil(_SHARE * len(above_s)) - 1]
