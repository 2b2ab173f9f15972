"""Reference counts of pages. Without tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class PagePool:
    """A fixed number of pages with reference counts.

    The prefix cache is a special holder: it `adopt`s pages. A page that only the cache holds is
    *idle* and can be reclaimed at once. The number of idle pages is updated at every change, so
    that reading it needs no search.
    """

    def __init__(self, num_pages: int):
        self._counts = [0] * num_pages
        self._free = list(range(num_pages - 1, -1, -1))
        self._adopted = bytearray(num_pages)
        self._num_idle = 0
        self._idled: set[int] = set()

    @property
    def num_pages(self) -> int:
        """Return the total number of pages."""
        return len(self._counts)

    @property
    def num_free(self) -> int:
        """Number of free pages."""
        return len(self._free)

    @property
    def num_idle(self) -> int:
        """Return the number of adopted pages that only the cache holds."""
        return self._num_idle

    def num_holders(self, page: int) -> int:
        """Return a page's reference count, including the cache."""
        return self._counts[page]

    def num_users(self, page: int) -> int:
        """Return how many sequences hold a page."""
        return self._counts[page] - self._adopted[page]

    def is_idle(self, page: int) -> bool:
        """Return whether only the cache holds a page."""
        return self._counts[page] == 1 and self._adopted[page] == 1

    def count_idle(self, pages: Iterable[int]) -> int:
        """Return how many of these pages are idle: holding them reduces `num_idle` by this."""
        counts, adopted = self._counts, self._adopted
        return sum([counts[page] == 1 and adopted[page] == 1 for page in pages])

    def allocate(self, count: int) -> list[int]:
        """Allocate `count` pages with one reference each.

        Raises:
            ValueError: Fewer are free, which is a bug in the caller (see `num_free`).
        """
        left = len(self._free) - count
        if left < 0 or count < 0:
            raise ValueError(f"{count} pages asked for, {len(self._free)} free")
        pages = self._free[left:]
        del self._free[left:]
        pages.reverse()
        for page in pages:
            self._counts[page] = 1
        return pages

    def share(self, pages: Sequence[int]) -> None:
        """Add a reference to each page."""
        counts = self._counts
        for page in pages:
            count = counts[page]
            if count == 0:
                raise ValueError(f"page {page} is free and cannot be shared")
            if count == 1 and self._adopted[page]:
                self._num_idle -= 1
            counts[page] = count + 1

    def release(self, pages: Sequence[int]) -> None:
        """Remove a reference from each page; a page without references is free.

        Raises:
            ValueError: The page is free, or held by the cache alone, which uses `disown`.
        """
        counts = self._counts
        for page in pages:
            count = counts[page] - 1
            if count < 0 or (count == 0 and self._adopted[page]):
                raise ValueError(f"page {page} is released twice")
            counts[page] = count
            if count == 0:
                self._free.append(page)
            elif count == 1 and self._adopted[page]:
                self._num_idle += 1
                self._idled.add(page)

    def adopt(self, pages: Sequence[int]) -> None:
        """Add the cache's reference to each page.

        Raises:
            ValueError: A page is free, or the cache holds it already.
        """
        for page in pages:
            if self._counts[page] == 0:
                raise ValueError(f"page {page} is free and cannot be adopted")
            if self._adopted[page]:
                raise ValueError(f"page {page} is adopted twice")
            self._adopted[page] = 1
            self._counts[page] += 1

    def disown(self, pages: Sequence[int]) -> None:
        """Remove the cache's reference from each page; idle pages become free.

        Raises:
            ValueError: The cache does not hold the page.
        """
        for page in pages:
            if not self._adopted[page]:
                raise ValueError(f"page {page} is not adopted")
            self._adopted[page] = 0
            self._counts[page] -= 1
            if self._counts[page] == 0:
                self._num_idle -= 1
                self._free.append(page)

    def take_idled(self) -> set[int]:
        """Return pages that became idle since the last call; some may be in use or free by now."""
        idled, self._idled = self._idled, set()
        return idled


def pages_for(num_positions: int, page_size: int) -> int:
    """Return the number of pages for this many positions."""
    return -(-num_positions // page_size)
