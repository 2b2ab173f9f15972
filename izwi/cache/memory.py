"""The pages of one model: those of sequences, and those of the prefix tree.

Works with page numbers only; a `PageMover` moves the contents of pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from izwi.cache.pages import PagePool
from izwi.cache.radix import Match, RadixTree


class PageMover(Protocol):
    """Moves page contents, within the device and to lower tiers."""

    def copy(self, source: int, target: int, num_slots: int) -> None:
        """Copy the first slots of a page; may be deferred until `flush`."""
        ...

    def flush(self) -> None:
        """Execute deferred copies. Call it before anything writes to pages."""
        ...

    def demote(self, page: int) -> int | None:
        """Save a page in a lower tier; return a handle, or None if rebuilding is cheaper."""
        ...

    def promote(self, handle: int, page: int) -> bool:
        """Restore a demoted page and forget its handle; return False if it was dropped."""
        ...

    def drop(self, handle: int) -> None:
        """Drop a demoted page."""
        ...

    def take_dropped(self) -> list[int]:
        """Return the handles that the tiers have dropped since the last call."""
        ...


class PagedMemory:
    """The pages of one model.

    Attributes:
        num_demoted: Pages moved to a lower tier so far.
        num_promoted: Pages restored so far.
    """

    def __init__(
        self, num_pages: int, page_size: int, mover: PageMover, *, whole_pages: bool = False
    ):
        """Start with all pages free; with `whole_pages` known prefixes end at page borders."""
        self._page_size, self._mover = page_size, mover
        self._pool = PagePool(num_pages)
        self._tree = RadixTree(self._pool, page_size, whole_pages=whole_pages)
        self.num_demoted = self.num_promoted = 0

    @property
    def num_pages(self) -> int:
        """Return the total number of pages."""
        return self._pool.num_pages

    @property
    def num_free(self) -> int:
        """Return the number of free pages."""
        return self._pool.num_free

    @property
    def num_available(self) -> int:
        """Return the pages that can be allocated: free ones, and those that only the tree holds."""
        return self._pool.num_free + self._tree.num_evictable

    @property
    def positions_asked(self) -> int:
        """Positions of all prefixes that were looked up."""
        return self._tree.positions_asked

    @property
    def positions_hit(self) -> int:
        """Of these, positions that were known already."""
        return self._tree.positions_hit

    @property
    def num_prefix_changes(self) -> int:
        """How often the known prefixes have changed."""
        return self._tree.num_changes

    def digests(self, limit: int) -> list[int]:
        """Return running digests of known pages, the most recently used first, up to a limit."""
        return self._tree.digests(limit)

    def find(self, keys: Sequence[int]) -> Match:
        """Look up the longest known prefix, without claiming its pages."""
        return self._tree.match(keys, peek=True)

    def num_shared_by_others(self, match: Match) -> int:
        """Pages of a match that sequences use now, so sharing them uses up none."""
        pages = match.pages + [page for _, page in match.beyond]
        return len(pages) - self._pool.count_idle(pages)

    def num_shared(self, pages: Sequence[int]) -> int:
        """Of pages that the caller holds, those that another sequence holds too."""
        return sum(self._pool.num_users(page) > 1 for page in pages)

    def claim(self, keys: Sequence[int]) -> tuple[list[int], int]:
        """Claim the longest known prefix, and bring its pages back from lower tiers.

        Returns:
            Its pages, which the caller must release, and their number of positions. If the last
            page is not whole, it is a copy of the page in which the prefixes diverge.
        """
        match = self._tree.match(keys)
        pages, whole = list(match.pages), True
        self._pool.share(pages)
        if match.stored:
            whole = self._bring_back(match, pages)
        slots = match.num_positions % self._page_size
        num_positions = len(pages) * self._page_size
        if whole and match.copy_from is not None:
            self._pool.share([match.copy_from])  # protects it from eviction for its own copy
            if self.num_available:
                pages += self.allocate(1)
                self._mover.copy(match.copy_from, pages[-1], slots)
                num_positions = match.num_positions
            self._pool.release([match.copy_from])
        return pages, num_positions

    def claim_whole(self, keys: Sequence[int]) -> list[int]:
        """Claim the whole pages of the longest known prefix; the caller must release them."""
        size = self._page_size
        num_whole = self.find(keys).num_positions // size
        pages, _ = self.claim(list(keys[: num_whole * size]))  # so no part of a page is copied
        return pages

    def flush(self) -> None:
        """Execute the copies that `claim` deferred. Call it before anything writes to pages."""
        self._mover.flush()

    def allocate(self, count: int) -> list[int]:
        """Allocate pages; unused prefixes may be evicted or demoted for them.

        Raises:
            ValueError: Fewer are available (`num_available`), which is a bug in the caller.
        """
        missing = count - self._pool.num_free
        if missing > 0:
            self._tree.evict(missing, self._demote)
            self._settle()
        return self._pool.allocate(count)

    def publish(self, keys: Sequence[int], pages: Sequence[int]) -> None:
        """Add whole pages to the prefix tree; the caller keeps its references."""
        self._tree.insert(keys, pages)
        self._settle()

    def release(self, pages: Sequence[int]) -> None:
        """Release pages. Published ones stay in the prefix tree while memory lasts."""
        self._pool.release(pages)

    def _demote(self, page: int, num_positions: int) -> int | None:
        del num_positions  # a page is rebuilt from the one before it, so its depth does not matter
        handle = self._mover.demote(page)
        self.num_demoted += handle is not None
        return handle

    def _bring_back(self, match: Match, pages: list[int]) -> bool:
        """Restore stored pages and claim those after them, in order; return whether all exist."""
        beyond = dict(match.beyond)
        self._pool.share(list(beyond.values()))  # protects them from eviction for the loaded pages
        loaded: list[int] = []
        stored = dict(match.stored)
        while len(pages) in stored or len(pages) in beyond:
            index = len(pages)
            if index in beyond:
                pages.append(beyond.pop(index))
                continue
            if not self.num_available:
                break
            (page,) = self.allocate(1)
            if not self._mover.promote(stored.pop(index), page):
                self._pool.release([page])
                stored[index] = -1
                break
            self.num_promoted += 1
            loaded.append(page)
            pages.append(page)
        self._tree.restore(match, loaded)
        self._settle()
        self._pool.release(list(beyond.values()))
        return not beyond and not stored

    def _settle(self) -> None:
        """Synchronize dropped handles between tree and tiers."""
        for handle in self._mover.take_dropped():
            self._tree.drop(handle)
        for handle in self._tree.take_orphans():
            self._mover.drop(handle)
