"""Group speaker vectors by speaker: agglomeration with average linkage. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from izwi.arrays import Float32, Int64

Float64 = npt.NDArray[np.float64]

# Agglomeration needs the square of this in memory. More vectors are clustered in blocks, and the
# clusters of all blocks once more.
MAX_TOGETHER = 768


def unit(vectors: npt.ArrayLike) -> Float64:
    """Return vectors of length 1, (n, size) or (size,)."""
    values = np.asarray(vectors, np.float64)
    scaled: Float64 = values / np.maximum(np.linalg.norm(values, axis=-1, keepdims=True), 1e-12)
    return scaled


def cluster(vectors: Float32, threshold: float) -> Int64:
    """Cluster vectors, so that the mean cosine between two clusters is below the threshold.

    Args:
        vectors: (n, size).
        threshold: Cosine from -1 to 1. Clusters with a larger mean cosine are joined.

    Returns:
        (n,) labels from 0, in the order of their first vectors.
    """
    units = unit(vectors).reshape(len(vectors), -1)
    if len(units) <= MAX_TOGETHER:
        return _in_order(_agglomerated(units, np.ones(len(units)), threshold))
    labels = np.zeros(len(units), np.int64)
    means: list[Float64] = []
    sizes: list[int] = []
    for start in range(0, len(units), MAX_TOGETHER):
        block = units[start : start + MAX_TOGETHER]
        local = _in_order(_agglomerated(block, np.ones(len(block)), threshold))
        labels[start : start + len(block)] = local + len(means)
        for label in range(int(local.max()) + 1):
            means.append(block[local == label].mean(axis=0))
            sizes.append(int((local == label).sum()))
    joined = _agglomerated(np.array(means), np.array(sizes, np.float64), threshold)
    return _in_order(joined[labels])


def _agglomerated(means: Float64, sizes: Float64, threshold: float) -> Int64:
    """Join the two most similar clusters until none are more similar than the threshold.

    The mean cosine between the members of two clusters is the product of the means of their unit
    vectors, so joining needs no history.
    """
    count = len(means)
    labels = np.arange(count)
    means, sizes = means.copy(), sizes.copy()
    similar = means @ means.T
    np.fill_diagonal(similar, -np.inf)
    best = similar.max(axis=1) if count else np.zeros(0)
    while count:
        first = int(best.argmax())
        if best[first] < threshold:
            break
        second = int(similar[first].argmax())
        total = sizes[first] + sizes[second]
        means[first] = (sizes[first] * means[first] + sizes[second] * means[second]) / total
        sizes[first] = total
        labels[labels == second] = first
        row = means @ means[first]
        row[np.isneginf(best)] = -np.inf  # joined before
        row[[first, second]] = -np.inf
        similar[first], similar[:, first] = row, row
        similar[second], similar[:, second] = -np.inf, -np.inf
        best = similar.max(axis=1)
        best[second] = -np.inf
    return labels


def _in_order(labels: Int64) -> Int64:
    order = {label: place for place, label in enumerate(dict.fromkeys(labels.tolist()))}
    return np.array([order[label] for label in labels.tolist()], np.int64)


def centroids(vectors: Float32, labels: Int64) -> Float64:
    """Return the direction of each cluster, (clusters, size) of length 1."""
    units = unit(vectors)
    means = [units[labels == label].mean(axis=0) for label in range(int(labels.max()) + 1)]
    return unit(np.array(means))


def match_known(found: Float64, known: Sequence[Float32], threshold: float) -> Mapping[int, int]:
    """Match clusters with known speakers, the most similar pair first, each at most once.

    Args:
        found: (clusters, size) from `centroids`.
        known: (size,) of each known speaker.
        threshold: Pairs with a smaller cosine do not match.

    Returns:
        Cluster -> place in `known`.
    """
    if not len(known) or not len(found):
        return {}
    scores = found @ unit(np.stack(known)).T  # (clusters, known)
    matches: dict[int, int] = {}
    for place in np.argsort(-scores, axis=None).tolist():
        row, column = divmod(place, scores.shape[1])
        if scores[row, column] < threshold:
            break
        if row not in matches and column not in matches.values():
            matches[row] = column
    return matches
