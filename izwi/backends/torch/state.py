"""Fixed-size state of streams (codec history), one row per stream, in torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from izwi.backends.torch.transfer import to_device, to_host
from izwi.cache.state_rows import StateRows
from izwi.model.layers import StateSpec


@dataclass(frozen=True, slots=True, eq=False)
class SavedState:
    """A bit-exact copy of a row's state on the host.

    Attributes:
        arrays: Arrays by name, with the shapes of the specs, without the row axis.
    """

    arrays: Mapping[str, Tensor]

    @property
    def num_bytes(self) -> int:
        """Size in host memory."""
        return sum(array.nbytes for array in self.arrays.values())


class StateArena(StateRows):
    """Rows of state in torch.

    All arrays of one dtype are adjacent in memory, so that clearing, gathering or scattering a row
    takes one copy instead of one per array: on a GPU each copy is a launch.

    Attributes:
        device: Device of the rows.
        side_stream: Context in which rows are read and written: the device's side stream.
    """

    def __init__(
        self,
        specs: Mapping[str, StateSpec],
        num_rows: int,
        device: torch.device,
        dtype: torch.dtype,
        side_stream: Callable[[], AbstractContextManager[None]] = nullcontext,
    ):
        """Allocate zeros.

        Args:
            specs: Arrays of a row.
            num_rows: Maximum number of streams.
            device: Device of the rows.
            dtype: Dtype of arrays that are "float" in the specs.
            side_stream: Context in which rows are read and written: the device's side stream.
        """
        super().__init__(num_rows)
        self.device, self.side_stream = device, side_stream
        self._places: dict[torch.dtype, dict[str, tuple[int, int, tuple[int, ...]]]] = {}
        widths: dict[torch.dtype, int] = {}
        for name, spec in specs.items():
            kind = torch.int64 if spec.dtype == "int64" else dtype
            start = widths.get(kind, 0)
            widths[kind] = start + math.prod(spec.shape)
            self._places.setdefault(kind, {})[name] = (start, widths[kind], spec.shape)
        # one spare row, for the empty rows of fixed-size batches
        with side_stream():
            self._flat = {
                kind: torch.zeros((num_rows + 1, width), device=device, dtype=kind)
                for kind, width in widths.items()
            }
        views = {
            name: view
            for kind, flat in self._flat.items()
            for name, view in self._split(kind, flat)
        }
        self._arrays = {name: views[name] for name in specs}
        self.spare_row = num_rows

    def _split(self, kind: torch.dtype, flat: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Yield views of (rows, width) by name, (rows, *shape) each."""
        for name, (start, stop, shape) in self._places[kind].items():
            yield name, flat[:, start:stop].view(len(flat), *shape)

    def clear(self, row: int) -> None:
        """Zero a row, which is the initial state of a stream, and commit it."""
        with self.side_stream():
            for flat in self._flat.values():
                flat[row].zero_()
        self.commit((row,))

    def gather(self, rows: Sequence[int] | Tensor) -> dict[str, Tensor]:
        """Copy rows out, (len(rows), *shape) each; `rows` may be (rows,) int64 on the device.

        Runs on the caller's stream, like `scatter`.
        """
        index = self._index(rows)
        state = {
            name: view
            for kind, flat in self._flat.items()
            for name, view in self._split(kind, flat.index_select(0, index))
        }
        return {name: state[name] for name in self._arrays}

    def scatter(self, rows: Sequence[int] | Tensor, state: Mapping[str, Tensor]) -> None:
        """Copy rows back. The caller commits them, and for a tensor also calls `writing`."""
        index = self._index(rows)
        written = []
        for kind, flat in self._flat.items():
            parts = [state[name].to(kind).reshape(len(index), -1) for name in self._places[kind]]
            written.append((flat, torch.cat(parts, 1)))
        if not isinstance(rows, Tensor):
            self.writing(rows)
        for flat, part in written:
            flat.index_copy_(0, index, part)

    def save(self, row: int) -> SavedState:
        """Copy a row to the host; the row is unchanged and may be released."""
        with self.side_stream():
            copies = to_host([array[row] for array in self._arrays.values()])
        return SavedState(dict(zip(self._arrays, copies, strict=True)))

    def restore(self, row: int, saved: SavedState) -> None:
        """Restore a saved state into a row, which may be another one.

        Raises:
            ValueError: The state is from an arena with other arrays, which is a bug in the caller.
        """
        shapes = {name: (array.shape[1:], array.dtype) for name, array in self._arrays.items()}
        if shapes != {name: (array.shape, array.dtype) for name, array in saved.arrays.items()}:
            raise ValueError("the saved state has other arrays than this arena")
        with self.side_stream():
            for name, array in self._arrays.items():
                array[row].copy_(saved.arrays[name], non_blocking=True)
        self.commit((row,))

    def _index(self, rows: Sequence[int] | Tensor) -> Tensor:
        if isinstance(rows, Tensor):
            return rows
        return to_device(torch.tensor(list(rows)), self.device)
