"""Name positions by content: equal keys at equal places mean equal inputs. Pure.

A key is an int of at most 63 bits. Ids that fit are the key itself; positions from audio have a
digest as key.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

_BYTES = 8
_MASK = (1 << 63) - 1
_PLACE_BIT, _PLACE_MASK = np.uint64(1 << 62), np.uint64((1 << 62) - 1)
_PLACE_FACTOR = np.uint64(0x9E3779B97F4A7C15)


def digest_array(values: npt.NDArray[Any]) -> int:
    """63 bits that name an array by its dtype, shape and contents."""
    hashed = blake2b(f"{values.dtype.str}{values.shape}".encode(), digest_size=_BYTES)
    hashed.update(np.ascontiguousarray(values).data)
    return int.from_bytes(hashed.digest(), "little") & _MASK


def digest_ints(values: Iterable[int]) -> int:
    """63 bits that name a row of integers of at most 64 bits each."""
    row = np.fromiter(values, dtype=np.int64)
    return int.from_bytes(blake2b(row.data, digest_size=_BYTES).digest(), "little") & _MASK


def place_keys(digest: int, size: int) -> npt.NDArray[np.int64]:
    """Return keys of the positions of what has this digest, (size,) int64.

    Their top bit differs from that of text ids, and an odd factor spreads positions over all bits,
    so that all keys differ.
    """
    places = np.arange(size, dtype=np.uint64) * _PLACE_FACTOR
    keys = ((np.uint64(digest) ^ places) & _PLACE_MASK) | _PLACE_BIT
    return keys.astype(np.int64)
