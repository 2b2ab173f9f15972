"""The prefix tree (radix tree): which pages hold the keys and values of which positions.

Independent of tensors. A position has a content key, an int. Two positions are equal if their keys
and all keys before them are equal. An edge of the tree is a run of whole pages; edges split at page
boundaries. The tree holds one reference to each of its pages, so pages of finished sequences can
still be found until `evict` frees them.

Eviction takes the least recently used page first, and of two that were used together the deeper
one. Using a page also uses all pages before it, so eviction proceeds from the leaves toward the
root. Pages in use are skipped. A page before one in use may still be evicted, because a sequence
can recompute what the tree has and continue from its own copy. The tree then forgets the pages that
follow, without taking them from their users; they are found again once that sequence is inserted
again.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from hashlib import blake2b
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count as counter
from typing import NamedTuple

from izwi.cache.edge import ABSENT, Edge, follow, nearest
from izwi.cache.pages import PagePool

Demote = Callable[[int, int], int | None]
_DIGEST_BYTES = 8


class Match(NamedTuple):
    """The longest known prefix of some keys. Holds no references: valid until the tree changes.

    Known pages in order: `pages`, and from the first one in a lower tier on, `stored` and
    `beyond`, which together have each further index once. Without loading anything,
    len(pages) * page_size positions can be used.

    Attributes:
        pages: Whole pages on the device, from the start.
        num_positions: Known positions, in any tier.
        copy_from: A page on the device whose first `num_positions % page_size` slots hold the
            positions after the known whole pages: to be copied, never shared. None: no such.
        stored: (index in the sequence, handle) of pages in a lower tier.
        beyond: (index in the sequence, page) of pages on the device after the first stored one.
    """

    pages: list[int]
    num_positions: int
    copy_from: int | None = None
    stored: tuple[tuple[int, int], ...] = ()
    beyond: tuple[tuple[int, int], ...] = ()


class RadixTree:
    """The prefix tree over one pool's pages. Only one tree may adopt pages of a pool.

    Attributes:
        num_pages: Pages that the tree holds a reference to.
        positions_asked: Positions that `match` was called with, excluding peeks.
        positions_hit: Of these, positions that were known.
        num_changes: How often its contents have changed.
    """

    def __init__(self, pool: PagePool, page_size: int, *, whole_pages: bool = False):
        """Start empty.

        Args:
            pool: Of the pages.
            page_size: Positions of a page.
            whole_pages: Only match whole pages.
        """
        self._pool, self._page_size, self._whole_pages = pool, page_size, whole_pages
        self._root = Edge(None, 0, [], [], page_size)
        self._clock = 0
        self._owners: list[Edge | None] = [None] * pool.num_pages
        self._indices = [0] * pool.num_pages  # of an owned page in its sequence
        # edges with idle pages, (stamp, -start, serial, edge); the stamp may lag behind the edge's
        self._queue: list[tuple[int, int, int, Edge]] = []
        self._serials = counter()
        self._places: dict[int, tuple[Edge, int]] = {}  # handle to edge and index
        self._orphans: list[int] = []
        self.num_pages = self.positions_asked = self.positions_hit = self.num_changes = 0

    @property
    def num_evictable(self) -> int:
        """Return the number of pages that `evict` can free now."""
        return self._pool.num_idle

    @property
    def num_stored(self) -> int:
        """Return the number of known pages in lower tiers."""
        return len(self._places)

    def match(self, keys: Sequence[int], *, peek: bool = False) -> Match:
        """Find the longest known prefix and mark it as used now.

        Args:
            keys: Content keys from the first position on; a list is fastest.
            peek: Change neither the eviction order nor the statistics.
        """
        keys = keys if isinstance(keys, list) else list(keys)
        size = self._page_size
        self._queue_idled()
        edge, count = self._descend(self._root, 0, keys, len(keys) // size)
        copy_from, slots = None, 0
        if edge.children and len(keys) > count * size and not self._whole_pages:
            copy_from, slots = nearest(edge, keys[count * size : (count + 1) * size])
        path = self._path(edge)
        pages: list[int] = []
        for step in path:
            pages += step.pages
        num_positions = count * size + slots
        if not peek:
            self._use(path)
            self.positions_asked += len(keys)
            self.positions_hit += num_positions
        if not any(step.stored for step in path):
            return Match(pages, num_positions, copy_from)
        stored = tuple(item for step in path for item in sorted(step.stored.items()))
        first = stored[0][0]
        beyond = [(index, pages[index]) for index in range(first, count) if pages[index] != ABSENT]
        return Match(pages[:first], num_positions, copy_from, stored, tuple(beyond))

    def insert(self, keys: Sequence[int], pages: Sequence[int]) -> int:
        """Add whole pages to the tree and mark their path as used now.

        Where the tree has a page for the same positions already, it keeps its own; where it has
        one in a lower tier, the given page takes its place and the handle is orphaned. Work is
        done only for the pages after the last one that the tree has taken from this sequence, so
        this may be called each time another page is full.

        Args:
            keys: Content keys from the first position on, at least those of the pages.
            pages: Pages from the first on, every slot of them written; held by the caller, who
                keeps its references.

        Returns:
            Pages newly adopted: the tree holds a reference of its own to each.

        Raises:
            ValueError: Fewer keys than the pages have positions; a page that is free, or that
                the tree knows by other keys.
        """
        size, before, count = self._page_size, self.num_pages, len(pages)
        if count * size > len(keys):
            raise ValueError(f"{count} pages of {size} positions, but {len(keys)} keys")
        keys = keys if isinstance(keys, list) else list(keys)
        self._queue_idled()
        edge, known = self._last_known(keys, pages)
        edge, known = self._descend(edge, known, keys, count)
        path = self._path(edge)
        self._use(path)
        for step in path:
            if step.stored:
                for index in sorted(step.stored):
                    self._fill(step, index, pages[index])
        if known < count:
            self._append(edge, keys[known * size : count * size], list(pages[known:]))
        return self.num_pages - before

    def evict(self, count: int, demote: Demote | None = None) -> list[int]:
        """Evict up to `count` unused pages, the least recently used first.

        Args:
            count: Pages wanted; `num_evictable` of them are there.
            demote: Called as demote(page, positions from the start to the end of that page)
                before a page is given back. If it returns a handle, unused so far, the page's
                place stays known and `match` reports the handle there. It may call `drop`.

        Returns:
            The pages given back; each is free in the pool.
        """
        self._queue_idled()
        freed: list[int] = []
        queue, pool = self._queue, self._pool
        while len(freed) < count and queue:
            stamp, _, _, edge = queue[0]
            index = edge.idle_stop - 1
            if index < edge.start:
                heappop(queue)
                edge.queued = False
                continue
            if stamp != edge.stamp:
                heapreplace(queue, (edge.stamp, -edge.start, next(self._serials), edge))
                continue
            edge.idle_stop = index
            page = edge.pages[index - edge.start]
            if page == ABSENT or not pool.is_idle(page):
                continue
            handle = demote(page, (index + 1) * self._page_size) if demote else None
            owner = self._owners[page]
            if owner is None:  # its place was dropped while `demote` made room
                self._orphans += [] if handle is None else [handle]
            elif handle is None:
                self._cut(owner, index)
            else:
                self._store(owner, index, handle)
            freed.append(page)
        return freed

    def restore(self, match: Match, pages: Sequence[int]) -> int:
        """Put loaded pages in the place of `match.stored`, in its order, and orphan the handles.

        The tree may have changed since the match: a page whose handle is no longer known is not
        added. The caller keeps its own references to all pages.

        Args:
            match: The match whose stored pages were loaded.
            pages: Pages of the first stored ones, held by the caller.

        Returns:
            Pages newly adopted.
        """
        before, deepest, count = self.num_pages, self._root, 0
        for (_, handle), page in zip(match.stored, pages, strict=False):
            if handle in self._places:
                deepest, index = self._places[handle]
                self._fill(deepest, index, page)
                count = index + 1
        if self.num_pages > before:
            self._use(self._path(self._end(deepest, count)))
        return self.num_pages - before

    def drop(self, handle: int) -> None:
        """Remove a page that the lower tier has dropped, and all pages after it.

        Following unused pages are free again, following handles are orphaned. Tiers should throw
        away in the order in which they were given pages: ends come first. A handle that is not
        known is ignored: it may have been orphaned a moment ago.
        """
        if handle in self._places:
            first = len(self._orphans)
            self._cut(*self._places[handle])
            del self._orphans[first]  # the handle itself, of which the tier knows

    def digests(self, limit: int) -> list[int]:
        """Return the running digests of known pages, in any tier, as `page_chain` makes them.

        With a page, all pages before it are there. Where there are more than `limit`, pages used
        last come first. Digests are kept, so that only new pages are hashed.
        """
        found: list[int] = []
        serials = counter()
        edges = [(-edge.stamp, next(serials), edge, b"") for edge in self._root.children]
        heapify(edges)
        while edges and len(found) < limit:
            _, _, edge, before = heappop(edges)
            known = edge.digests
            if known:
                before = known[-1].to_bytes(_DIGEST_BYTES, "little")
            if len(known) < len(edge.pages):
                known += page_chain(
                    edge.keys[len(known) * self._page_size :], self._page_size, before
                )
                before = known[-1].to_bytes(_DIGEST_BYTES, "little")
            found += known
            for child in edge.children:
                heappush(edges, (-child.stamp, next(serials), child, before))
        return found[:limit]

    def take_orphans(self) -> list[int]:
        """Return handles that the tree has dropped since the last call, for the tier to free."""
        orphans, self._orphans = self._orphans, []
        return orphans

    def _path(self, edge: Edge) -> list[Edge]:
        """Edges from the root to a edge, the root left out."""
        path: list[Edge] = []
        while edge.parent is not None:
            path.append(edge)
            edge = edge.parent
        path.reverse()
        return path

    def _use(self, path: list[Edge]) -> None:
        self._clock += 1
        for edge in path:
            edge.stamp = self._clock

    def _descend(self, edge: Edge, count: int, keys: list[int], limit: int) -> tuple[Edge, int]:
        """`follow` the keys, and end an edge where the known pages end."""
        edge, count = follow(edge, count, keys, limit)
        return self._end(edge, count), count

    def _end(self, edge: Edge, count: int) -> Edge:
        """Split an edge, if need be, so that it ends after page `count` of the sequence."""
        if count < edge.stop:
            lower = edge.split(count)
            for page in lower.pages:
                if page != ABSENT:
                    self._owners[page] = lower
            for index, handle in lower.stored.items():
                self._places[handle] = (lower, index)
            if edge.queued:
                self._enqueue(lower)
        return edge

    def _last_known(self, keys: list[int], pages: Sequence[int]) -> tuple[Edge, int]:
        """Return the edge with the last of `pages` in the tree, and the number of pages up to it.

        The pages before it need no comparison, because a page in use is never written again.
        """
        size = self._page_size
        for index in range(len(pages) - 1, -1, -1):
            edge = self._owners[pages[index]]
            if edge is not None and self._indices[pages[index]] == index:
                first = (index - edge.start) * size
                if edge.keys[first : first + size] != keys[index * size : (index + 1) * size]:
                    raise ValueError(f"page {pages[index]} is known by other keys")
                return edge, index + 1
        return self._root, 0

    def _append(self, edge: Edge, keys: list[int], pages: list[int]) -> None:
        """Append pages after an edge that has no such child yet."""
        self._pool.adopt(pages)
        self.num_changes += 1
        start, count = edge.stop, len(pages)
        if edge.parent is not None and not edge.children:
            edge.keys += keys
            edge.pages += pages
        else:
            parent = edge
            edge = Edge(parent, start, keys, pages, self._page_size)
            edge.stamp = self._clock
            parent.attach(edge)
        for index, page in zip(range(start, start + count), pages, strict=True):
            self._owners[page] = edge
            self._indices[page] = index
        self.num_pages += count

    def _fill(self, edge: Edge, index: int, page: int) -> None:
        """Replace a handle by a page."""
        self._pool.adopt([page])
        handle = edge.stored.pop(index)
        del self._places[handle]
        self._orphans.append(handle)
        edge.pages[index - edge.start] = page
        self._owners[page], self._indices[page] = edge, index
        self.num_pages += 1

    def _store(self, edge: Edge, index: int, handle: int) -> None:
        """Replace a page by a handle, and release the page."""
        if handle in self._places:
            raise ValueError(f"handle {handle} is in use")
        page = edge.pages[index - edge.start]
        edge.pages[index - edge.start] = ABSENT
        edge.stored[index] = handle
        self._places[handle] = (edge, index)
        self._disown([page])

    def _disown(self, pages: list[int]) -> None:
        for page in pages:
            self._owners[page] = None
        self._pool.disown(pages)
        self.num_pages -= len(pages)

    def _cut(self, edge: Edge, index: int) -> None:
        """Remove a page and all pages after it."""
        keep = index - edge.start
        self.num_changes += 1
        gone, edges = edge.pages[keep:], list(edge.children)
        handles = [edge.stored.pop(at) for at in sorted(edge.stored) if at >= index]
        while edges:
            below = edges.pop()
            below.idle_stop = 0
            gone += below.pages
            handles += below.stored.values()
            edges += below.children
        self._disown([page for page in gone if page != ABSENT])
        for handle in handles:
            del self._places[handle]
        self._orphans += handles
        if keep == 0 and edge.parent is not None:
            edge.parent.detach(edge)
        edge.truncate(index)

    def _queue_idled(self) -> None:
        """Line up what became idle since the last time; often, so that no call finds much."""
        for page in self._pool.take_idled():
            edge = self._owners[page]
            if edge is not None:
                edge.idle_stop = max(edge.idle_stop, self._indices[page] + 1)
                if not edge.queued:
                    self._enqueue(edge)

    def _enqueue(self, edge: Edge) -> None:
        edge.queued = True
        heappush(self._queue, (edge.stamp, -edge.start, next(self._serials), edge))


def page_chain(keys: Sequence[int], page_size: int, before: bytes = b"") -> list[int]:
    """Return a running digest of each whole page of content keys.

    Equal digests at the same index mean equal positions up to the end of that page. This shows,
    without comparing keys, that another sequence is computing the same page.

    Args:
        keys: Content keys from the first position on, 0 <= key < 2**64.
        page_size: Positions of a page.
        before: The digest of the page before the first, little-endian; empty if there is none.

    Returns:
        64-bit digests, one a whole page.

    Raises:
        OverflowError: A key is negative or too large.
    """
    packed = array("Q", keys).tobytes()
    step = page_size * 8
    digest, chain = before, []
    for start in range(0, len(packed) - step + 1, step):
        # as the salt, the digest before takes no second block of the hash
        page = packed[start : start + step]
        digest = blake2b(page, digest_size=_DIGEST_BYTES, salt=digest).digest()
        chain.append(int.from_bytes(digest, "little"))
    return chain
