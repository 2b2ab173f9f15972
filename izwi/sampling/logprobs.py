"""Log probabilities of sampled tokens, in the form that chunks have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from izwi.model.step_batch import Row
from izwi.request.request import Request

Logprobs = float | tuple[float, ...]


class AskedLogprobs:
    """The rows of one step that request log probabilities, and how many top ids they request.

    Attributes:
        rows: Rows that request log probabilities.
        most: Maximum number of top ids that any row requests; 0 for none.
    """

    def __init__(self, draws: Sequence[Row]):
        self._draws = draws
        self.rows = [n for n, draw in enumerate(draws) if draw.request.logprobs]
        self.most = max((draws[n].request.top_logprobs for n in self.rows), default=0)

    def by_row(self, reported: Iterable[float | list[float]]) -> dict[int, Logprobs]:
        """Return log probabilities by row, from those reported for `rows` in order."""
        pairs = zip(self.rows, reported, strict=True)
        return {row: logprobs_of(self._draws[row].request, values) for row, values in pairs}


def logprobs_of(request: Request, reported: float | list[float]) -> Logprobs:
    """Convert one row of `reported_logprobs`; keep only as many top ids as the request wants."""
    most = request.top_logprobs
    if isinstance(reported, float):
        return reported
    return tuple(reported[: 1 + 2 * most]) if most else reported[0]
