"""Fixed-size state of streams (codec history) in MLX, one row for each stream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from izwi.cache.state_rows import StateRows
from izwi.model.layers import StateSpec


@dataclass(frozen=True, slots=True, eq=False)
class SavedState:
    """A row's state on the host, bit-exact.

    Attributes:
        arrays: Arrays by name, (bytes,) uint8.
    """

    arrays: Mapping[str, npt.NDArray[np.uint8]]

    @property
    def num_bytes(self) -> int:
        """Host memory in bytes."""
        return sum(array.nbytes for array in self.arrays.values())


class MlxStateArena(StateRows):
    """Implements `izwi.backends.protocol.StateArena`."""

    def __init__(
        self,
        specs: Mapping[str, StateSpec],
        num_rows: int,
        dtype: mx.Dtype,
        stream: mx.Stream | None = None,
    ):
        """Allocate zeros.

        Args:
            specs: Arrays of a row.
            num_rows: Maximum number of streams.
            dtype: Dtype of arrays specified as "float".
            stream: Reads and writes rows beside the model's steps; None has no work in flight.
        """
        super().__init__(num_rows)
        self._stream = stream
        # (rows,) and arrays by name that are written when the arrays are used next: what still
        # reads an array makes writing to it a copy of all rows
        self._unwritten: list[tuple[mx.array, Mapping[str, mx.array]]] = []
        self._arrays = {
            name: mx.zeros(
                (num_rows, *spec.shape), dtype=mx.int64 if spec.dtype == "int64" else dtype
            )
            for name, spec in specs.items()
        }
        mx.eval(self.arrays)

    @property
    def arrays(self) -> list[mx.array]:
        """All arrays, including writes that are not evaluated yet."""
        return list(self._arrays.values())

    def side_stream(self) -> AbstractContextManager[None]:
        """Run the work inside in the arena's stream, if it has one."""
        return nullcontext() if self._stream is None else mx.stream(self._stream)

    def _write(self) -> None:
        """Write the states that streams have reached."""
        unwritten, self._unwritten = self._unwritten, []
        for index, state in unwritten:
            for name, array in self._arrays.items():
                array[index] = state[name].astype(array.dtype)

    def clear(self, row: int) -> None:
        """Zero a row, which starts a stream again, and commit it."""
        with self.side_stream():
            self._write()
            for name in self._arrays:
                self._arrays[name][row] = 0
        self.commit((row,))

    def gather(self, rows: Sequence[int]) -> dict[str, mx.array]:
        """Copy rows out, (len(rows), *shape) each."""
        index = mx.array(np.array(rows, dtype=np.int64))
        with self.side_stream():
            self._write()
            return {name: mx.take(array, index, axis=0) for name, array in self._arrays.items()}

    def scatter(self, rows: Sequence[int], state: Mapping[str, mx.array]) -> None:
        """Copy rows back in; the caller commits them."""
        # errors are raised here, before a row is written; an array that cannot be computed would
        # destroy the state of all streams
        evaluate = mx.eval if self._stream is None else mx.async_eval
        evaluate([state[name] for name in self._arrays])
        self.writing(rows)
        self._unwritten.append((mx.array(np.array(rows, dtype=np.int64)), state))

    def save(self, row: int) -> SavedState:
        """Copy a row to the host; it stays valid and may be released."""
        with self.side_stream():
            self._write()
            flat = {name: mx.view(x[row].reshape(-1), mx.uint8) for name, x in self._items()}
        return SavedState({name: np.array(part) for name, part in flat.items()})

    def restore(self, row: int, saved: Any) -> None:
        """Restore a saved row, into this or another row.

        Raises:
            ValueError: It was saved from an arena with other arrays, which is a bug.
        """
        sizes = {name: array.nbytes // array.shape[0] for name, array in self._items()}
        if sizes != {name: array.nbytes for name, array in saved.arrays.items()}:
            raise ValueError("the saved state has other arrays than this arena")
        with self.side_stream():
            self._write()
            for name, array in list(self._items()):
                part = mx.view(mx.array(saved.arrays[name]), array.dtype)
                self._arrays[name][row] = part.reshape(array.shape[1:])
        self.commit((row,))

    def _items(self) -> Iterable[tuple[str, mx.array]]:
        return self._arrays.items()
