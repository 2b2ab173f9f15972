"""Row numbers of stream state: which are free, and which hold the state of their stream.

Knows no arrays: each backend's state arena adds these.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable


class StateRows(ABC):
    """Rows with a free list. A row that is handed out is the start of a stream."""

    def __init__(self, num_rows: int):
        """Start with all rows free; the lowest is handed out first."""
        self._free = list(range(num_rows - 1, -1, -1))
        self._uncommitted: set[int] = set()

    @property
    def num_free(self) -> int:
        """Free rows."""
        return len(self._free)

    def allocate(self) -> int:
        """Hand out a zeroed row. The caller checks `num_free` first."""
        row = self._free[-1]
        self.clear(row)  # may fail, and then the row stays free
        self._free.pop()
        return row

    @abstractmethod
    def clear(self, row: int) -> None:
        """Zero a row, which starts a stream again, and commit it."""

    def release(self, row: int) -> None:
        """Take a row back.

        Raises:
            ValueError: It is free already, which is our own bug.
        """
        if row in self._free:
            raise ValueError(f"state row {row} is released twice")
        self._free.append(row)

    def writing(self, rows: Iterable[int]) -> None:
        """Note that rows are about to be overwritten by work that may fail; see `commit`."""
        self._uncommitted.update(rows)

    def commit(self, rows: Iterable[int]) -> None:
        """Note that the work that wrote rows succeeded: they have the state of their streams."""
        self._uncommitted.difference_update(rows)

    def is_committed(self, row: int) -> bool:
        """Whether the row's state is known: no work that wrote it has failed."""
        return row not in self._uncommitted
