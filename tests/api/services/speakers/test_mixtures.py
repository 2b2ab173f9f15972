"""Clusters of windows that lie over changes of two speakers."""

from __future__ import annotations

import numpy as np

from izwi_api.services.speakers.mixtures import explained, without_mixtures

AXES = np.eye(8)


def vectors(*parts):
    """Each direction so many times, with a little noise."""
    rng = np.random.default_rng(0)
    rows = [direction for direction, count in parts for _ in range(count)]
    return (np.array(rows) + rng.normal(0, 0.02, (len(rows), 8))).astype(np.float32)


def labels(*counts):
    return np.repeat(np.arange(len(counts)), counts)


def test_windows_over_a_change_go_to_the_nearer_speaker():
    nearer_first, nearer_second = 0.8 * AXES[0] + 0.6 * AXES[1], 0.6 * AXES[0] + 0.8 * AXES[1]
    found = without_mixtures(
        vectors((AXES[0], 8), (nearer_first, 1), (nearer_second, 1), (AXES[1], 8)),
        labels(8, 2, 8),
    )
    assert found.tolist() == [0] * 9 + [1] * 9


def test_a_third_voice_stays():
    own = AXES[0] + AXES[1] + 2 * AXES[2]
    made = labels(8, 4, 8)
    found = without_mixtures(vectors((AXES[0], 8), (own, 4), (AXES[1], 8)), made)
    assert found.tolist() == made.tolist()


def test_a_large_cluster_between_two_others_is_a_voice():
    between = AXES[0] + AXES[1]
    made = labels(9, 8, 9)
    found = without_mixtures(vectors((AXES[0], 9), (between, 8), (AXES[1], 9)), made)
    assert found.tolist() == made.tolist()


def test_two_clusters_cannot_be_mixtures():
    assert without_mixtures(vectors((AXES[0], 8), (AXES[1], 2)), labels(8, 2)).max() == 1


def test_one_voice_is_not_explained_by_two():
    assert explained(AXES[0], AXES[[0, 1]]) is None
    mixture = (AXES[0] + AXES[1]) / np.sqrt(2)
    assert explained(mixture, AXES[[0, 1]]) > 0.99
