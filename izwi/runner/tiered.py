"""Move pages and codec states between the device and the lower tiers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import count

from izwi.backends.protocol import PagedKV, SavedRow, StateArena
from izwi.cache.tiers import Bytes, PageStore, Tier
from izwi.runner.ranks import RankedPages


class TieredPages:
    """Implements `izwi.cache.memory.PageMover` over one model's pages."""

    def __init__(self, kv: PagedKV | RankedPages, store: PageStore):
        self._kv, self._store = kv, store
        self._moves: list[tuple[int, int, int]] = []

    @property
    def page_bytes(self) -> int:
        """Bytes of a page, on all ranks together."""
        return self._store.page_bytes

    @property
    def page_size(self) -> int:
        """Positions of a page."""
        return self._kv.page_size

    def copy(self, source: int, target: int, num_slots: int) -> None:
        """Queue a copy of a page's first slots; `flush` does all at once to save launches."""
        self._moves.append((source, target, num_slots))

    def flush(self) -> None:
        """Perform the queued copies."""
        moves, self._moves = self._moves, []
        self._kv.copy(moves)

    def demote(self, page: int) -> int | None:
        """Move a page's contents to a lower tier, if that is cheaper than recomputing them."""
        self.flush()
        # only this page's positions count: earlier pages are kept or recomputed separately
        num_positions = self._kv.page_size
        if self._store.tier_for(num_positions) is Tier.DROP:
            return None
        return self._store.put(self._kv.read_pages([page])[0], num_positions)

    def promote(self, handle: int, page: int) -> bool:
        """Restore a demoted page and drop the copy; return False if it was evicted."""
        self.flush()
        data = self._store.get(handle)
        if data is not None:
            self._kv.write_pages([page], data[None])
            self._store.drop(handle)
        return data is not None

    def read(self, pages: Sequence[int]) -> Bytes:
        """Copy pages to the host, (pages, bytes of a page), for another engine."""
        self.flush()
        return self._kv.read_pages(pages)

    def write(self, pages: Sequence[int], data: Bytes) -> None:
        """Write what another engine has read from its pages."""
        self.flush()
        self._kv.write_pages(pages, data)

    def drop(self, handle: int) -> None:
        """Drop a demoted page."""
        self._store.drop(handle)

    def take_dropped(self) -> list[int]:
        """Return the handles of pages that the store evicted since the last call."""
        return self._store.take_dropped()


class TieredStates:
    """Implements `izwi.scheduler.codec_rows.CodecRowStore` over an arena and some host memory.

    Attributes:
        num_saved_bytes: Bytes of the rows that it holds in host memory.
    """

    def __init__(self, arena: StateArena, host_bytes: int):
        self._arena, self._host_bytes = arena, host_bytes
        self._saved: OrderedDict[int, SavedRow] = OrderedDict()  # oldest first
        self.num_saved_bytes = 0
        self._handles = count()

    @property
    def num_free(self) -> int:
        """Number of free rows."""
        return self._arena.num_free

    def allocate(self) -> int:
        """Allocate a row with the initial state of a stream."""
        return self._arena.allocate()

    def release(self, row: int) -> None:
        """Free a row."""
        self._arena.release(row)

    def save(self, row: int) -> int | None:
        """Copy a row to host memory, evicting the oldest copies if needed; return a handle."""
        saved = self._arena.save(row)
        if saved.num_bytes > self._host_bytes:
            return None
        handle = next(self._handles)
        self._saved[handle] = saved
        self.num_saved_bytes += saved.num_bytes
        while self.num_saved_bytes > self._host_bytes:
            self.forget(next(iter(self._saved)))
        return handle

    def restore(self, row: int, handle: int) -> bool:
        """Restore a saved row and drop the copy; return False if it was evicted."""
        if handle not in self._saved:
            return False
        self._arena.restore(row, self._saved[handle])
        self.forget(handle)
        return True

    def forget(self, handle: int) -> None:
        """Drop a saved row; do nothing if it was evicted."""
        saved = self._saved.pop(handle, None)
        if saved is not None:
            self.num_saved_bytes -= saved.num_bytes
