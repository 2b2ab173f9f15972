"""Edges of the prefix tree. Knows keys and page numbers, no reference counts."""

from __future__ import annotations

from bisect import bisect_left

ABSENT = -1  # stands for a page that is in a lower tier


class Edge:
    """A run of whole pages, and the edges that follow it, sorted by the keys of their first page.

    Attributes:
        parent: The edge before, None for the root, whose run is empty.
        start: Pages before this run.
        page_size: Positions of a page.
        keys: Content keys of the run, page_size for each page.
        pages: The run; ABSENT where `stored` has a handle.
        stamp: When it was last used; never later than the parent.
        heads: Keys of each child's first page, in ascending order.
        children: As `heads`.
        stored: Index in the sequence to handle, for each absent page.
        idle_stop: Pages that only the tree holds, if any, come before this index in the sequence;
            those that became idle only just may not be counted yet.
        queued: Whether it is in the eviction queue.
        digests: Running digests of its pages, as `izwi.cache.radix.page_chain`; of those that were
            asked for.
    """

    __slots__ = (
        "children",
        "digests",
        "heads",
        "idle_stop",
        "keys",
        "page_size",
        "pages",
        "parent",
        "queued",
        "stamp",
        "start",
        "stored",
    )

    def __init__(
        self, parent: Edge | None, start: int, keys: list[int], pages: list[int], page_size: int
    ):
        self.parent, self.start = parent, start
        self.keys, self.pages, self.page_size = keys, pages, page_size
        self.stamp = 0
        self.heads: list[list[int]] = []
        self.children: list[Edge] = []
        self.stored: dict[int, int] = {}
        self.idle_stop = 0
        self.queued = False
        self.digests: list[int] = []

    @property
    def stop(self) -> int:
        """Pages up to the end of the run."""
        return self.start + len(self.pages)

    def attach(self, child: Edge) -> None:
        """Add a child edge, in sorted order."""
        head = child.keys[: self.page_size]
        place = bisect_left(self.heads, head)
        self.heads.insert(place, head)
        self.children.insert(place, child)

    def detach(self, child: Edge) -> None:
        """Remove a child edge."""
        place = bisect_left(self.heads, child.keys[: self.page_size])
        del self.heads[place], self.children[place]

    def truncate(self, count: int) -> None:
        """End the run before page `count` of the sequence, with nothing after it."""
        keep = count - self.start
        del self.keys[keep * self.page_size :], self.pages[keep:], self.digests[keep:]
        self.heads, self.children = [], []
        self.idle_stop = min(self.idle_stop, count)

    def split(self, count: int) -> Edge:
        """Move what follows page `count` of the sequence to a new child, and return that."""
        keep = count - self.start
        keys, pages = self.keys[keep * self.page_size :], self.pages[keep:]
        lower = Edge(self, count, keys, pages, self.page_size)
        lower.stamp, lower.idle_stop = self.stamp, self.idle_stop
        lower.digests = self.digests[keep:]
        lower.heads, lower.children = self.heads, self.children
        for child in lower.children:
            child.parent = lower
        for index in [index for index in self.stored if index >= count]:
            lower.stored[index] = self.stored.pop(index)
        self.truncate(count)
        self.attach(lower)
        return lower


def follow(edge: Edge, count: int, keys: list[int], limit: int) -> tuple[Edge, int]:
    """Follow keys along equal pages.

    Args:
        edge: Where to start.
        count: Pages that are known to be equal; within the edge or at its end.
        keys: Content keys from the first position of the sequence on.
        limit: Pages to go to at most.

    Returns:
        The edge with the last equal page, which may be in the midst of it, and the equal pages.
    """
    size = edge.page_size
    while True:
        stop = min(edge.stop, limit)
        if stop > count:
            first = (count - edge.start) * size
            theirs = edge.keys
            if first > 0 or stop < edge.stop:
                theirs = theirs[first : first + (stop - count) * size]
            count += _num_equal(theirs, keys[count * size : stop * size]) // size
        if count < edge.stop or count == limit:
            return edge, count
        head = keys[count * size : (count + 1) * size]
        place = bisect_left(edge.heads, head)
        if place == len(edge.heads) or edge.heads[place] != head:
            return edge, count
        edge = edge.children[place]


def nearest(edge: Edge, tail: list[int]) -> tuple[int | None, int]:
    """Return the page after an edge with the longest common prefix with `tail`, and its length.

    Children are sorted, so what is shared only shrinks with the distance on either side.
    """
    best, slots = None, 0
    middle = bisect_left(edge.heads, tail)
    for side in (range(middle, len(edge.heads)), range(middle - 1, -1, -1)):
        for place in side:
            page = edge.children[place].pages[0]
            if page != ABSENT:
                shared = _num_equal(edge.heads[place], tail)
                if shared > slots:
                    best, slots = page, shared
                break
    return best, slots


def _num_equal(ours: list[int], theirs: list[int]) -> int:
    """How many first elements are equal. Halves what differs, so lists are compared in C."""
    if ours == theirs:
        return len(ours)
    equal, differs = 0, min(len(ours), len(theirs)) + 1
    while differs - equal > 1:
        middle = (equal + differs) // 2
        if ours[equal:middle] == theirs[equal:middle]:
            equal = middle
        else:
            differs = middle
    return equal
