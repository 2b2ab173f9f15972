"""Run the audio encoders of one model, and cache their results: equal audio is encoded once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence as Seq
from typing import Any

from izwi.backends.padded import encode_together
from izwi.backends.protocol import Backend, CapturedSteps
from izwi.model.encoders import Encodes
from izwi.model.protocol import Model
from izwi.request.request import EncodeInput
from izwi.runner.batch import run_each


class EncodedCache:
    """An LRU cache of encoder results with a maximum size in bytes.

    Attributes:
        num_bytes: Bytes of the results that it holds.
    """

    def __init__(self, max_bytes: int):
        self._max_bytes = max_bytes
        self.num_bytes = 0
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
        self.num_bytes += num_bytes
        while self.num_bytes > self._max_bytes:
            _, (_, freed) = self._results.popitem(last=False)
            self.num_bytes -= freed


class Encoders:
    """The audio encoders of one model."""

    def __init__(
        self,
        model: Model,
        backend: Backend,
        max_pieces: int,
        cache: EncodedCache,
        graphs: CapturedSteps | None,
    ):
        """Set up.

        Args:
            model: The model with the encoders.
            backend: The backend of the model's weights.
            max_pieces: Maximum number of pieces in a batch.
            cache: Cache of results.
            graphs: Captured graphs of the model, if any.
        """
        self._model, self._backend, self._max_pieces = model, backend, max_pieces
        self._cache, self._graphs = cache, graphs

    def encode(self, pieces: Seq[EncodeInput]) -> list[Any | BaseException]:
        """Return the result of each piece, or its error; see `Runner.encode`."""
        missing = {(p.kind, p.digest): p for p in pieces if self._cache.get(p) is None}
        made = run_each(self._encode, list(missing.values()))
        fresh = dict(zip(missing, made, strict=True))
        results: list[Any | BaseException] = []
        for piece in pieces:
            result: Any = fresh.get((piece.kind, piece.digest))
            if result is None:
                result = self._cache.get(piece)
            elif not isinstance(result, BaseException):
                self._cache.put(piece, result, result.nbytes)
            results.append(result)
        return results

    def _encode(self, pieces: Seq[EncodeInput]) -> list[Any]:
        """Run the encoders, with graphs where captured; each result has its own memory."""
        results: dict[int, Any] = {}
        if self._graphs is not None:
            taken = [n for n, piece in enumerate(pieces) if self._graphs.encodes(piece)]
            captured = self._graphs.encode([pieces[n] for n in taken]) if taken else []
            results.update(zip(taken, captured, strict=True))
        plain = [n for n in range(len(pieces)) if n not in results]
        if plain:
            made = self.encode_plain([pieces[n] for n in plain])
            # a view would keep the whole batch alive
            copy = self._backend.own_copy
            results.update((n, copy(x)) for n, x in zip(plain, made, strict=True))
        return [results[n] for n in range(len(pieces))]

    def encode_plain(self, pieces: Seq[EncodeInput]) -> list[Any]:
        """Run the encoders without graphs; results may be views of one array."""
        if not self._backend.pads_encoders:
            # padding costs what batching saves, and results must not depend on the batch (ADR 5)
            assert isinstance(self._model, Encodes)
            return self._model.encode(pieces)
        return encode_together(self._model, self._backend.ops, self._max_pieces, pieces)
