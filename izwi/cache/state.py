"""Fixed-size state of streams (codec history), one row a stream, in torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from izwi.cache.transfer import to_host
from izwi.model import StateSpec


@dataclass(frozen=True, slots=True, eq=False)
class SavedState:
    """A row's state on the host, exact bits.

    Attributes:
        arrays: By name, the shapes of the specs, without the row axis.
    """

    arrays: Mapping[str, Tensor]

    @property
    def num_bytes(self) -> int:
        """Host memory that it takes."""
        return sum(array.nbytes for array in self.arrays.values())


class StateArena:
    """Rows of state with a free list. A row that is handed out is the start of a stream."""

    def __init__(
        self,
        specs: Mapping[str, StateSpec],
        num_rows: int,
        device: torch.device,
        dtype: torch.dtype,
    ):
        self._device = device
        self._arrays = {
            name: torch.zeros(
                (num_rows, *spec.shape),
                device=device,
                dtype=torch.int64 if spec.dtype == "int64" else dtype,
            )
            for name, spec in specs.items()
        }
        self._free = list(range(num_rows - 1, -1, -1))

    @property
    def num_free(self) -> int:
        """Rows that nobody holds."""
        return len(self._free)

    def allocate(self) -> int:
        """Hand out a zeroed row. The caller checks `num_free` first."""
        row = self._free.pop()
        self.clear(row)
        return row

    def clear(self, row: int) -> None:
        """Make a row the start of a stream again."""
        for array in self._arrays.values():
            array[row].zero_()

    def release(self, row: int) -> None:
        """Take a row back."""
        if row in self._free:
            raise ValueError(f"state row {row} is released twice")
        self._free.append(row)

    def gather(self, rows: Sequence[int]) -> dict[str, Tensor]:
        """Copy rows out, (len(rows), *shape) each."""
        index = self._index(rows)
        return {name: array[index] for name, array in self._arrays.items()}

    def scatter(self, rows: Sequence[int], state: Mapping[str, Tensor]) -> None:
        """Copy rows back in."""
        index = self._index(rows)
        for name, array in self._arrays.items():
            array[index] = state[name].to(array.dtype)

    def save(self, row: int) -> SavedState:
        """Copy a row to the host; it stays as it is and may be released."""
        copies = to_host([array[row] for array in self._arrays.values()])
        return SavedState(dict(zip(self._arrays, copies, strict=True)))

    def restore(self, row: int, saved: SavedState) -> None:
        """Make a row what was saved, of this or another row.

        Raises:
            ValueError: It was saved from an arena of other arrays, which is our own bug.
        """
        shapes = {name: (array.shape[1:], array.dtype) for name, array in self._arrays.items()}
        if shapes != {name: (array.shape, array.dtype) for name, array in saved.arrays.items()}:
            raise ValueError("the saved state has other arrays than this arena")
        for name, array in self._arrays.items():
            array[row].copy_(saved.arrays[name], non_blocking=True)

    def _index(self, rows: Sequence[int]) -> Tensor:
        return torch.tensor(list(rows), device=self._device)
