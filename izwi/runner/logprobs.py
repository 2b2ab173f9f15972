"""Log probabilities of what was drawn, as chunks have them."""

from __future__ import annotations

from izwi.sequence import Sequence as RequestSequence

Logprobs = float | tuple[float, ...]


def logprobs_of(sequence: RequestSequence, reported: float | list[float]) -> Logprobs:
    """What one row of `reported_logprobs` says for a request, which may have asked for less."""
    most = sequence.request.top_logprobs
    if isinstance(reported, float):
        return reported
    return tuple(reported[: 1 + 2 * most]) if most else reported[0]
