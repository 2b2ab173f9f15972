"""Digests that name pages by their content."""

from __future__ import annotations

import random

import pytest

from izwi.cache.radix import page_chain


def test_chain_names_whole_pages_and_all_before_them() -> None:
    rng = random.Random(1)
    keys = [rng.randrange(2**63) for _ in range(50)]
    chain = page_chain(keys, 16)
    assert len(chain) == len(set(chain)) == 3
    assert page_chain(keys[:32], 16) == chain[:2]
    assert page_chain(tuple(keys), 16) == chain
    changed = [*keys[:20], keys[20] ^ 1, *keys[21:]]
    same = [ours == theirs for ours, theirs in zip(page_chain(changed, 16), chain, strict=True)]
    assert same == [True, False, False]
    # the same page after another one is another page
    assert page_chain(keys[16:32], 16)[0] != chain[1]
    assert page_chain([], 16) == []
    with pytest.raises(OverflowError):
        page_chain([-1], 1)
