"""Speaker vectors become speakers: agglomeration and known speakers."""

from __future__ import annotations

import numpy as np

from izwi_api.services.speakers.clusters import (
    MAX_TOGETHER,
    centroids,
    cluster,
    match_known,
)


def voices(count, each, *, noise=0.15, seed=0):
    """Vectors around orthogonal directions, voice by voice in turn."""
    rng = np.random.default_rng(seed)
    directions = np.eye(16)[:count]
    truth = np.arange(count * each) % count
    return (directions[truth] + rng.normal(0, noise, (len(truth), 16))).astype(np.float32), truth


def test_each_voice_is_one_cluster_in_order():
    vectors, truth = voices(4, 12)
    assert cluster(vectors, 0.45).tolist() == truth.tolist()


def test_one_voice_is_one_cluster():
    vectors, _ = voices(1, 20)
    assert set(cluster(vectors, 0.45).tolist()) == {0}


def test_length_of_a_vector_does_not_count():
    vectors, truth = voices(2, 6)
    scaled = vectors * np.linspace(0.1, 10.0, len(vectors))[:, None]
    assert cluster(scaled.astype(np.float32), 0.45).tolist() == truth.tolist()


def test_long_recordings_are_clustered_in_blocks():
    vectors, truth = voices(3, MAX_TOGETHER // 3 + 40)
    assert len(vectors) > MAX_TOGETHER
    assert cluster(vectors, 0.45).tolist() == truth.tolist()


def test_known_speakers_match_once_and_not_below_the_threshold():
    vectors, truth = voices(3, 5)
    found = centroids(vectors, truth)
    known = [np.eye(16)[2], np.eye(16)[0], np.eye(16)[9]]
    assert match_known(found, known, 0.45) == {2: 0, 0: 1}
    assert match_known(found, [np.eye(16)[0]] * 2, 0.45) == {0: 0}
    assert match_known(found, [], 0.45) == {}
