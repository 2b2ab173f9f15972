"""Log probabilities of what was drawn, as chunks have them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from izwi.sequence import Sequence as RequestSequence

Logprobs = float | tuple[float, ...]


class AskedLogprobs:
    """Which rows of one step ask for log probabilities, and for how many of the likeliest.

    Attributes:
        rows: Those that ask.
        most: Likeliest ids that any of them asks for; 0 for none.
    """

    def __init__(self, sequences: Sequence[RequestSequence]):
        self._sequences = sequences
        self.rows = [row for row, s in enumerate(sequences) if s.request.logprobs]
        self.most = max((sequences[row].request.top_logprobs for row in self.rows), default=0)

    def by_row(self, reported: Iterable[float | list[float]]) -> dict[int, Logprobs]:
        """Return what each row that asks is given, of what was reported for them, in order."""
        pairs = zip(self.rows, reported, strict=True)
        return {row: logprobs_of(self._sequences[row], values) for row, values in pairs}


def logprobs_of(sequence: RequestSequence, reported: float | list[float]) -> Logprobs:
    """What one row of `reported_logprobs` says for a request, which may have asked for less."""
    most = sequence.request.top_logprobs
    if isinstance(reported, float):
        return reported
    return tuple(reported[: 1 + 2 * most]) if most else reported[0]
