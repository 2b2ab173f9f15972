"""Allocate rows of streaming state and track which rows hold a valid state.

Without arrays: each backend's state arena adds these.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable


class StateRows(ABC):
    """Rows with a free list. An allocated row holds the initial state of a stream."""

    def __init__(self, num_rows: int):
        """Start with all rows free; the lowest is allocated first."""
        self._free = list(range(num_rows - 1, -1, -1))
        self._uncommitted: set[int] = set()

    @property
    def num_free(self) -> int:
        """Number of free rows."""
        return len(self._free)

    def allocate(self) -> int:
        """Allocate a zeroed row. The caller checks `num_free` first."""
        row = self._free[-1]
        self.clear(row)  # may fail; the row then stays free
        self._free.pop()
        return row

    @abstractmethod
    def clear(self, row: int) -> None:
        """Zero a row, which is the initial state of a stream, and commit it."""

    def release(self, row: int) -> None:
        """Free a row.

        Raises:
            ValueError: The row is free already, which is a bug in the caller.
        """
        if row in self._free:
            raise ValueError(f"state row {row} is released twice")
        self._free.append(row)

    def writing(self, rows: Iterable[int]) -> None:
        """Mark rows as invalid before work that may fail overwrites them; see `commit`."""
        self._uncommitted.update(rows)

    def commit(self, rows: Iterable[int]) -> None:
        """Mark rows as valid: the work that wrote them succeeded."""
        self._uncommitted.difference_update(rows)

    def is_committed(self, row: int) -> bool:
        """Whether the row holds a valid state: no work that wrote it has failed."""
        return row not in self._uncommitted
