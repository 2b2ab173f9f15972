"""Speaker vectors of two voices, at once or one after the other in a window. Pure.

Such a vector lies between those of the two voices. It is explained by both if their shares, the
least-squares solution, are large enough, and if together they are closer to it than one of them.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from izwi.arrays import Float32, Int64
from izwi_api.services.speakers.clusters import Float64, unit

_LEAST_SHARE, _LEAST_GAIN = 0.3, 0.06
# A cluster whose windows all lie over changes and overlaps is small, and explained so well.
_MOST_WINDOWS, _LEAST_COSINE = 6, 0.6


def explained(vector: Float64, voices: Float64) -> float | None:
    """Return the cosine of a vector with the best mixture of two voices; None if it is no mixture.

    Args:
        vector: (size,) of length 1.
        voices: (2, size) of length 1.
    """
    shares = np.linalg.lstsq(voices.T, vector, rcond=None)[0]
    if shares.min() < _LEAST_SHARE:
        return None
    cosine = float(unit(shares @ voices) @ vector)
    is_better = cosine - float((voices @ vector).max()) >= _LEAST_GAIN
    return cosine if is_better else None


def without_mixtures(vectors: Float32, labels: Int64) -> Int64:
    """Give the windows of small clusters that are a mixture of two larger ones to these.

    Windows over changes of two speakers are alike, so they are easily taken for a third one.

    Args:
        vectors: (windows, size), a speaker vector of each.
        labels: (windows,) cluster of each, from 0.

    Returns:
        (windows,) labels from 0 of the clusters that remain.
    """
    units, labels = unit(vectors), labels.copy()
    while (pair := _mixture(units, labels)) is not None:
        mixed, voices = pair
        means = np.stack([_mean(units, labels, voice) for voice in voices])
        inside = np.flatnonzero(labels == mixed)
        labels[inside] = np.array(voices)[(units[inside] @ means.T).argmax(axis=1)]
    remaining: Int64 = np.unique(labels, return_inverse=True)[1].astype(np.int64)
    return remaining


def _mixture(units: Float64, labels: Int64) -> tuple[int, tuple[int, int]] | None:
    """Return the smallest cluster that is a mixture, and the two that explain it best."""
    sizes = np.bincount(labels)
    present = np.flatnonzero(sizes).tolist()
    means = {label: _mean(units, labels, label) for label in present}
    for label in sorted(present, key=lambda one: (sizes[one], one)):
        if sizes[label] > _MOST_WINDOWS:
            return None
        larger = [one for one in present if one != label and sizes[one] >= sizes[label]]
        scored = [
            (cosine, pair)
            for pair in combinations(larger, 2)
            if (cosine := explained(means[label], np.stack([means[one] for one in pair])))
            is not None
            and cosine >= _LEAST_COSINE
        ]
        if scored:
            return label, max(scored)[1]
    return None


def _mean(units: Float64, labels: Int64, label: int) -> Float64:
    return unit(units[labels == label].mean(axis=0))
