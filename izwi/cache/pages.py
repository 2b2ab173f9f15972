"""Count pages. Knows no tensors: who holds which page, and how often."""

from __future__ import annotations


class PagePool:
    """A fixed number of pages with reference counts."""

    def __init__(self, num_pages: int):
        self._counts = [0] * num_pages
        self._free = list(range(num_pages - 1, -1, -1))

    @property
    def num_pages(self) -> int:
        """Pages in all."""
        return len(self._counts)

    @property
    def num_free(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Hand out `count` pages, each held once.

        Raises:
            ValueError: Fewer are free; the caller plans with `num_free`, so it is our own bug.
        """
        if count > len(self._free):
            raise ValueError(f"{count} pages asked for, {len(self._free)} free")
        pages = [self._free.pop() for _ in range(count)]
        for page in pages:
            self._counts[page] = 1
        return pages

    def share(self, pages: list[int]) -> None:
        """Hold pages once more."""
        for page in pages:
            if self._counts[page] == 0:
                raise ValueError(f"page {page} is free and cannot be shared")
            self._counts[page] += 1

    def release(self, pages: list[int]) -> None:
        """Let pages go; one that nobody holds any more is free again."""
        for page in pages:
            if self._counts[page] == 0:
                raise ValueError(f"page {page} is released twice")
            self._counts[page] -= 1
            if self._counts[page] == 0:
                self._free.append(page)


def pages_for(num_positions: int, page_size: int) -> int:
    """Pages that hold so many positions."""
    return -(-num_positions // page_size)
