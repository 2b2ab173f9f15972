"""Layout of the inputs of short convolutions in pages: host arithmetic, the same for every backend.

A page has a trailer of `width` columns for each layer. The input of position p is in column
(p % page_size) % width of its page, so at its end the trailer has the page's last inputs, which the
next page begins with. An output reads width - 1 earlier columns; there is one column more, so that
the last position may be run again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TrailerColumns:
    """Columns of all pages' trailers, concatenated, and one more of zeros.

    Attributes:
        page_size: Positions of a page.
        width: Columns of a page.
        zeros: The last column, for positions before 0; never written.
    """

    page_size: int
    width: int
    zeros: int

    def lookup(self, positions: Int64, pages: Int64) -> Int64:
        """Return the column of each position in the given pages; `zeros` before position 0."""
        found = pages * self.width + positions % self.page_size % self.width
        columns: Int64 = np.where(positions < 0, self.zeros, found)
        return columns


def trailer_columns(num_pages: int, page_size: int, width: int) -> TrailerColumns:
    """Return the number of columns of a number of pages."""
    return TrailerColumns(page_size, width, num_pages * width)


@dataclass(frozen=True, slots=True)
class ConvLayout:
    """One step's packed rows: which inputs precede each position, and which inputs are stored.

    Attributes:
        history: Columns of earlier inputs, before each row.
        sources: (width - 1, positions): for 1, 2, ... positions before each position, the index of
            the input in `history` followed by the packed inputs.
        written: Indices of the packed inputs that are stored.
        columns: Columns in which they are stored.
    """

    history: Int64
    sources: Int64
    written: Int64
    columns: Int64


def lay_out_conv(
    spans: Sequence[tuple[int, int]],
    tables: Sequence[Sequence[int]],
    columns: TrailerColumns,
) -> ConvLayout:
    """Lay out a step.

    Args:
        spans: Positions [start, stop) that each row runs, at least one each.
        tables: Pages of each row, exactly those that cover [0, stop).
        columns: Columns of the model's pages.
    """
    width, size = columns.width, columns.page_size
    flat = np.fromiter(chain.from_iterable(spans), np.int64, 2 * len(spans))
    starts, stops = flat[0::2], flat[1::2]
    counts = stops - starts
    row_of = np.repeat(np.arange(len(spans)), counts)
    first = (np.cumsum(counts) - counts)[row_of]  # place of the row's first position
    places = np.arange(len(row_of))
    positions = places - first + starts[row_of]
    page_of = _pages_of(tables, size)
    back = np.arange(1, width)
    rows, before = np.arange(len(spans))[:, None], starts[:, None] - back
    history = columns.lookup(before, page_of(rows, before))  # (rows, width - 1)
    own = places[:, None] - back  # (positions, width - 1), place in the packed array
    beyond = back - (positions - starts[row_of])[:, None]  # positions before the row's first
    kept = row_of[:, None] * (width - 1) + beyond - 1
    sources = np.where(beyond > 0, kept, history.size + own)
    last = np.minimum(stops[row_of], (positions // size + 1) * size)
    written = np.flatnonzero(positions >= last - width)
    at = columns.lookup(positions, page_of(row_of, positions))[written]
    return ConvLayout(history.ravel(), sources.T, written, at)


def _pages_of(tables: Sequence[Sequence[int]], page_size: int) -> Callable[[Int64, Int64], Int64]:
    lengths = np.array([len(table) for table in tables])
    pages = np.fromiter(chain.from_iterable(tables), np.int64)
    offsets = np.cumsum(lengths) - lengths  # of each row's pages

    def page_of(rows: Int64, at: Int64) -> Int64:
        found: Int64 = pages[offsets[rows] + np.maximum(at, 0) // page_size]
        return found

    return page_of
