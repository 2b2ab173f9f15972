"""Results of encoders are kept up to a number of bytes, and the cache says how many it holds."""

from __future__ import annotations

import numpy as np

from izwi.request.request import EncodeInput
from izwi.runner.encoding import EncodedCache


def piece(value: float) -> EncodeInput:
    return EncodeInput("clip", np.float32([value]))


def test_cache_drops_the_result_unused_for_longest_and_counts_what_it_holds() -> None:
    cache = EncodedCache(100)
    cache.put(piece(1), "a", 40)
    cache.put(piece(1), "a", 40)
    cache.put(piece(2), "b", 50)
    assert cache.num_bytes == 90
    assert cache.get(piece(1)) == "a"
    cache.put(piece(3), "c", 60)
    assert [cache.get(piece(n)) for n in (1, 2, 3)] == ["a", None, "c"]
    assert cache.num_bytes == 100


def test_a_result_larger_than_the_cache_is_not_kept() -> None:
    cache = EncodedCache(100)
    cache.put(piece(1), "a", 101)
    assert cache.get(piece(1)) is None
    assert cache.num_bytes == 0
