"""Move pages and codec states between the device and the lower tiers."""

from __future__ import annotations

from collections import OrderedDict
from itertools import count

from izwi.backends.protocol import PagedKV, SavedRow, StateArena
from izwi.cache.tiers import PageStore, Tier


class TieredPages:
    """Implements `izwi.cache.memory.PageMover` over one model's pages."""

    def __init__(self, kv: PagedKV, store: PageStore):
        self._kv, self._store = kv, store
        self._moves: list[tuple[int, int, int]] = []

    def copy(self, source: int, target: int, num_slots: int) -> None:
        """Copy the first slots of a page, with all others of its step: a copy is ten launches."""
        self._moves.append((source, target, num_slots))

    def flush(self) -> None:
        """Carry out what is left to copy."""
        moves, self._moves = self._moves, []
        self._kv.copy(moves)

    def demote(self, page: int) -> int | None:
        """Keep a page's contents in a lower tier, if that is cheaper than making them again."""
        self.flush()
        # what comes before it is kept or rebuilt on its own account
        num_positions = self._kv.page_size
        if self._store.tier_for(num_positions) is Tier.DROP:
            return None
        return self._store.put(self._kv.read_pages([page])[0], num_positions)

    def promote(self, handle: int, page: int) -> bool:
        """Bring back what `demote` kept and forget it; False if it is gone."""
        self.flush()
        data = self._store.get(handle)
        if data is not None:
            self._kv.write_pages([page], data[None])
            self._store.drop(handle)
        return data is not None

    def drop(self, handle: int) -> None:
        """Forget what `demote` kept."""
        self._store.drop(handle)

    def take_dropped(self) -> list[int]:
        """Handles that the store had to give up since the last call."""
        return self._store.take_dropped()


class TieredStates:
    """Implements `izwi.scheduler.codec_rows.StateRows` over an arena and some host memory."""

    def __init__(self, arena: StateArena, host_bytes: int):
        self._arena, self._host_bytes = arena, host_bytes
        self._saved: OrderedDict[int, SavedRow] = OrderedDict()  # the oldest first
        self._bytes = 0
        self._handles = count()

    @property
    def num_free(self) -> int:
        """Free rows."""
        return self._arena.num_free

    def allocate(self) -> int:
        """Hand out a row: the start of a stream."""
        return self._arena.allocate()

    def release(self, row: int) -> None:
        """Take a row back."""
        self._arena.release(row)

    def save(self, row: int) -> int | None:
        """Keep a row's contents in host memory, for which the oldest may go."""
        saved = self._arena.save(row)
        if saved.num_bytes > self._host_bytes:
            return None
        handle = next(self._handles)
        self._saved[handle] = saved
        self._bytes += saved.num_bytes
        while self._bytes > self._host_bytes:
            self.forget(next(iter(self._saved)))
        return handle

    def restore(self, row: int, handle: int) -> bool:
        """Bring back what `save` kept and forget it; False if it is gone."""
        if handle not in self._saved:
            return False
        self._arena.restore(row, self._saved[handle])
        self.forget(handle)
        return True

    def forget(self, handle: int) -> None:
        """Let go of what `save` kept; nothing if it is gone."""
        saved = self._saved.pop(handle, None)
        if saved is not None:
            self._bytes -= saved.num_bytes
