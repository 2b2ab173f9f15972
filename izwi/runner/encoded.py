"""Cache results of the audio encoders, so that equal audio is encoded once."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from izwi.request.request import EncodeInput


class EncodedCache:
    """An LRU cache of encoder results with a maximum size in bytes."""

    def __init__(self, max_bytes: int):
        self._max_bytes = max_bytes
        self._bytes = 0
        self._results: OrderedDict[tuple[str, int], tuple[Any, int]] = OrderedDict()

    def get(self, piece: EncodeInput) -> Any | None:
        """Return the result of an equal piece, or None."""
        key = piece.kind, piece.digest
        if key not in self._results:
            return None
        self._results.move_to_end(key)
        return self._results[key][0]

    def put(self, piece: EncodeInput, result: Any, num_bytes: int) -> None:
        """Store a result, unless it alone is larger than the cache."""
        key = piece.kind, piece.digest
        if key in self._results or num_bytes > self._max_bytes:
            return
        self._results[key] = result, num_bytes
        self._bytes += num_bytes
        while self._bytes > self._max_bytes:
            _, (_, freed) = self._results.popitem(last=False)
            self._bytes -= freed
