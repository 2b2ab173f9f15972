"""Fixed-size state of streams (codec history), one row a stream, in torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from izwi.model import StateSpec


class StateArena:
    """Rows of state with a free list. A row that is handed out is the start of a stream."""

    def __init__(
        self,
        specs: Mapping[str, StateSpec],
        num_rows: int,
        device: torch.device,
        dtype: torch.dtype,
    ):
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
        index = torch.tensor(list(rows))
        return {name: array[index.to(array.device)] for name, array in self._arrays.items()}

    def scatter(self, rows: Sequence[int], state: Mapping[str, Tensor]) -> None:
        """Copy rows back in."""
        index = torch.tensor(list(rows))
        for name, array in self._arrays.items():
            array[index.to(array.device)] = state[name].to(array.dtype)
