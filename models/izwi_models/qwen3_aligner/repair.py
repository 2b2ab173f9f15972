"""Put times that were drawn one by one into order. Pure.

Source: qwen_asr 0.0.6, inference/qwen3_forced_aligner.py `fix_timestamp`.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
import numpy.typing as npt

# Up to this many consecutive times out of order take a neighbour's; more are interpolated.
_FEW = 2


def in_order(times_ms: Seq[float]) -> list[int]:
    """Keep the most times that rise together, and give the others times between them.

    Args:
        times_ms: In milliseconds, in the order in which they must not fall.

    Returns:
        As many, whole milliseconds, none smaller than the one before it.
    """
    times = np.asarray(times_ms, dtype=np.float64)
    fixed = times.tolist()
    kept = np.zeros(len(times) + 2, dtype=np.bool_)  # one more at both ends, for the gaps
    kept[0] = kept[-1] = True
    kept[_longest_rise(times) + 1] = True
    places = np.flatnonzero(kept) - 1
    for left, right in zip(places[:-1].tolist(), places[1:].tolist(), strict=True):
        before = fixed[left] if left >= 0 else None
        after = fixed[right] if right < len(fixed) else None
        fixed[left + 1 : right] = _between(before, after, right - left - 1)
    return [int(time) for time in fixed]


def _between(before: float | None, after: float | None, count: int) -> list[float]:
    """Times for `count` places between two that are kept; one of these may be missing."""
    if before is None or after is None:
        only = after if before is None else before
        return [] if only is None else [only] * count
    if count <= _FEW:
        return [before, after][:count]
    step = (after - before) / (count + 1)
    return [before + step * n for n in range(1, count + 1)]


def _longest_rise(times: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Indices of the longest subsequence that never falls; of equally long ones, the earliest."""
    if not len(times):
        return np.zeros(0, np.int64)
    lengths = np.ones(len(times), np.int64)
    parents = np.full(len(times), -1, np.int64)
    for n in range(1, len(times)):
        # argmax takes the first of equals, as the reference does
        before = np.where(times[:n] <= times[n], lengths[:n], 0)
        best = int(before.argmax())
        if before[best]:
            lengths[n], parents[n] = before[best] + 1, best
    places = [int(lengths.argmax())]
    while parents[places[-1]] >= 0:
        places.append(int(parents[places[-1]]))
    return np.asarray(places[::-1], np.int64)
