"""Move a known prefix from one engine to another, page by page: what was computed, not how.

An engine reads the pages of a prefix (`PrefixReader`), and another writes them to pages of its own
(`PrefixWriter`), where its prefix tree then knows them. Both do it in parts, between their steps.
A prefix that arrives in part, or not at all, is computed like any other.
"""

from __future__ import annotations

from collections.abc import Sequence

from izwi.cache.memory import PagedMemory
from izwi.cache.tiers import Bytes
from izwi.runner.tiered import TieredPages


class PrefixReader:
    """The whole pages of a prefix that an engine knows, held while they are read."""

    def __init__(self, memory: PagedMemory, tiers: TieredPages, keys: Sequence[int]):
        """Claim the pages; call `close` in the end.

        Args:
            memory: The model's pages.
            tiers: Reads their contents.
            keys: Content keys of the prefix.
        """
        self._memory, self._tiers = memory, tiers
        self._pages = memory.claim_whole(keys)
        self._num_read = 0

    @property
    def page_bytes(self) -> int:
        """Bytes of a page."""
        return self._tiers.page_bytes

    @property
    def page_size(self) -> int:
        """Positions of a page."""
        return self._tiers.page_size

    @property
    def num_pages(self) -> int:
        """Pages of the prefix that are known."""
        return len(self._pages)

    @property
    def is_read(self) -> bool:
        """Whether no page is left."""
        return self._num_read == len(self._pages)

    def read(self, count: int) -> Bytes:
        """Return the next pages, (at most `count`, bytes of a page)."""
        pages = self._pages[self._num_read : self._num_read + count]
        self._num_read += len(pages)
        return self._tiers.read(pages)

    def close(self) -> None:
        """Release the pages."""
        self._memory.release(self._pages)
        self._pages = []


class PrefixWriter:
    """Pages of a prefix that come from another engine."""

    def __init__(self, memory: PagedMemory, tiers: TieredPages, keys: Sequence[int]):
        """Claim what is known of the prefix; call `close` in the end.

        Args:
            memory: The model's pages.
            tiers: Writes their contents.
            keys: Content keys of the prefix, of whole pages.
        """
        self._memory, self._tiers, self._keys = memory, tiers, list(keys)
        self._pages = memory.claim_whole(self._keys)

    @property
    def page_bytes(self) -> int:
        """Bytes of a page."""
        return self._tiers.page_bytes

    @property
    def num_known(self) -> int:
        """Pages that are known, or were written: the next one to write."""
        return len(self._pages)

    def write(self, data: Bytes) -> bool:
        """Write the next pages, (pages, bytes of a page); return False if there is no room."""
        if len(data) > self._memory.num_available:
            return False
        pages = self._memory.allocate(len(data))
        self._tiers.write(pages, data)
        self._pages += pages
        return True

    def close(self) -> None:
        """Let the prefix tree know what was written; it is kept there while memory lasts."""
        self._memory.publish(self._keys, self._pages)
        self._memory.release(self._pages)
        self._pages = []
