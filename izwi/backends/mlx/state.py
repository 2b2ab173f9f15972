"""Fixed-size state of streams (codec history), one row a stream, in MLX."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from izwi.layers import StateSpec


@dataclass(frozen=True, slots=True, eq=False)
class SavedState:
    """A row's state on the host, exact bits.

    Attributes:
        arrays: By name, (bytes,) uint8.
    """

    arrays: Mapping[str, npt.NDArray[np.uint8]]

    @property
    def num_bytes(self) -> int:
        """Host memory that it takes."""
        return sum(array.nbytes for array in self.arrays.values())


class MlxStateArena:
    """Implements `izwi.backends.protocol.StateArena`."""

    def __init__(self, specs: Mapping[str, StateSpec], num_rows: int, dtype: mx.Dtype):
        """Allocate zeros.

        Args:
            specs: Arrays of a row.
            num_rows: Streams that can be held.
            dtype: Of what is "float".
        """
        self._arrays = {
            name: mx.zeros(
                (num_rows, *spec.shape), dtype=mx.int64 if spec.dtype == "int64" else dtype
            )
            for name, spec in specs.items()
        }
        mx.eval(self.arrays)
        self._free = list(range(num_rows - 1, -1, -1))
        self._uncommitted: set[int] = set()

    @property
    def arrays(self) -> list[mx.array]:
        """All that is kept, as it is after what was asked for so far."""
        return list(self._arrays.values())

    @property
    def num_free(self) -> int:
        """Free rows."""
        return len(self._free)

    def beside(self) -> AbstractContextManager[None]:
        """Nothing runs beside the model's steps."""
        return nullcontext()

    def allocate(self) -> int:
        """Hand out a zeroed row. The caller checks `num_free` first."""
        row = self._free[-1]
        self.clear(row)
        self._free.pop()
        return row

    def clear(self, row: int) -> None:
        """Make a row the start of a stream again."""
        for name in self._arrays:
            self._arrays[name][row] = 0
        self._uncommitted.discard(row)

    def release(self, row: int) -> None:
        """Take a row back."""
        if row in self._free:
            raise ValueError(f"state row {row} is released twice")
        self._free.append(row)

    def commit(self, rows: Iterable[int]) -> None:
        """Note that what wrote rows has succeeded: their state is that of their streams."""
        self._uncommitted.difference_update(rows)

    def is_committed(self, row: int) -> bool:
        """Whether the row's state is known: nothing that wrote it has failed."""
        return row not in self._uncommitted

    def gather(self, rows: Sequence[int]) -> dict[str, mx.array]:
        """Copy rows out, (len(rows), *shape) each."""
        index = mx.array(np.array(rows, dtype=np.int64))
        return {name: mx.take(array, index, axis=0) for name, array in self._arrays.items()}

    def scatter(self, rows: Sequence[int], state: Mapping[str, mx.array]) -> None:
        """Copy rows back in; the caller commits them."""
        index = mx.array(np.array(rows, dtype=np.int64))
        # what fails does so here, before a row is written: an array that holds what cannot be
        # computed would take every stream's state with it
        mx.eval([state[name] for name in self._arrays])
        self._uncommitted.update(rows)
        for name in self._arrays:
            self._arrays[name][index] = state[name].astype(self._arrays[name].dtype)

    def save(self, row: int) -> SavedState:
        """Copy a row to the host; it stays as it is and may be released."""
        flat = {name: mx.view(array[row].reshape(-1), mx.uint8) for name, array in self._items()}
        return SavedState({name: np.array(part) for name, part in flat.items()})

    def restore(self, row: int, saved: Any) -> None:
        """Make a row what was saved, of this or another row.

        Raises:
            ValueError: It was saved from an arena of other arrays, which is our own bug.
        """
        sizes = {name: array.nbytes // array.shape[0] for name, array in self._items()}
        if sizes != {name: array.nbytes for name, array in saved.arrays.items()}:
            raise ValueError("the saved state has other arrays than this arena")
        for name, array in list(self._items()):
            part = mx.view(mx.array(saved.arrays[name]), array.dtype)
            self._arrays[name][row] = part.reshape(array.shape[1:])
        self._uncommitted.discard(row)

    def _items(self) -> Iterable[tuple[str, mx.array]]:
        return self._arrays.items()
