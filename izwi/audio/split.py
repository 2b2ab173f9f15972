"""Cut long audio where it is quietest. Pure: samples in, ranges out.

Source: qwen_asr 0.0.6, inference/utils.py `split_audio_into_chunks`.
"""

from __future__ import annotations

import numpy as np

from izwi.arrays import Float32, Samples

_ENERGY_SECONDS = 0.1  # the quietest stretch of this length is looked for
_MIN_PIECE_SECONDS = 0.5


def split_at_silence(
    samples: Samples, sample_rate: int, *, limit_s: float, search_s: float, overrun: bool
) -> list[tuple[int, int]]:
    """Cut `samples` into pieces of about `limit_s`, which join up to the whole.

    The reference pads a last piece below half a second with zeros; here the last cut is placed
    as early as the search allows, to leave that much.

    Args:
        samples: Read near the cuts alone.
        sample_rate: In Hz.
        limit_s: Audio up to this long stays whole.
        search_s: A cut is looked for this far on both sides of its place.
        overrun: Search around `limit_s`, as the reference does, so that a piece may be longer
            by `search_s`; otherwise below it, so that none is.

    Returns:
        Ranges [start, stop) of sample indices, in order.
    """
    limit, search = int(limit_s * sample_rate), int(search_s * sample_rate)
    smallest = _smallest(sample_rate, limit)
    pieces, start = [], 0
    while len(samples) - start > limit:
        centre = start + (limit if overrun else limit - search)
        left = max(start + smallest, centre - search)
        right = max(left, min(centre + search, len(samples) - smallest))
        stop = left + _quietest(samples[left:right], int(_ENERGY_SECONDS * sample_rate))
        pieces.append((start, stop))
        start = stop
    return [*pieces, (start, len(samples))]


def enough_to_cut(sample_rate: int, limit_s: float) -> int:
    """Samples from which the first cut is the same whatever follows, without overrun."""
    limit = int(limit_s * sample_rate)
    return limit + max(1, _smallest(sample_rate, limit))


def _smallest(sample_rate: int, limit: int) -> int:
    return min(int(_MIN_PIECE_SECONDS * sample_rate), limit // 2)


def _quietest(samples: Float32, stretch: int) -> int:
    """Index of the smallest sample inside the quietest stretch."""
    loudness = np.abs(samples)
    if len(samples) <= stretch:
        return len(samples)
    sums = np.concatenate([[0.0], np.cumsum(loudness, dtype=np.float64)])
    quiet = int(np.argmin(sums[stretch:] - sums[:-stretch]))
    return quiet + int(np.argmin(loudness[quiet : quiet + stretch]))
