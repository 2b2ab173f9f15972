"""Layout of the rows of one step in pages: host arithmetic, the same for every backend.

Rows of one step are packed without gaps. Rows of one new position (decodes) and rows of several
(prompts) attend in two groups, so that a prompt does not pad every decode to its length.

Only small arrays are computed here, with as many numpy calls for 512 rows as for one; a backend
expands block tables to slots and masks on its device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]

KEY_BLOCK = 64
QUERY_BLOCK = 4
# Numbers of keys, modulo 512, whose sums are split differently from those of their neighbours.
_ODD_KEYS = (256, 320)


@dataclass(frozen=True, slots=True)
class GroupLayout:
    """Rows that attend together.

    Attributes:
        num_keys: Keys that every row is padded to, whole blocks of KEY_BLOCK.
        tables: (rows, pages) pages of each row, padded with page 0; they cover `num_keys`.
        stops: (rows,) keys of each row that exist.
        queries: (rows, longest) position of each query; 0 for padding, which thus sees key 0 and
            has a valid softmax.
        tokens: (rows, longest) indices of the queries in the packed array, or None if the group has
            all rows of the step with one query each.
        used: Indices in the flattened `tokens` that are not padding, or None if all are.
    """

    num_keys: int
    tables: Int64
    stops: Int64
    queries: Int64
    tokens: Int64 | None
    used: Int64 | None


@dataclass(frozen=True, slots=True)
class PagedLayout:
    """Layout of one step.

    Attributes:
        positions: (tokens,) position of each packed token in its sequence.
        written: (tokens,) slot of each token's key and value.
        groups: One or two, the decodes first.
    """

    positions: Int64
    written: Int64
    groups: tuple[GroupLayout, ...]


def lay_out(
    spans: Sequence[tuple[int, int]], tables: Sequence[Sequence[int]], page_size: int
) -> PagedLayout:
    """Lay out a step.

    Args:
        spans: Positions [start, stop) that each row runs, at least one each.
        tables: Pages of each row, exactly those that cover [0, stop).
        page_size: Slots of one page.
    """
    num_rows = len(spans)
    flat_spans = np.fromiter(chain.from_iterable(spans), np.int64, 2 * num_rows)
    starts, stops = flat_spans[0::2], flat_spans[1::2]
    counts = stops - starts
    padded = _padded_tables(tables, -(-stops // page_size), _num_keys(stops), page_size)
    if int(counts.max()) == 1:  # only decodes: what a step mostly is
        written = padded[np.arange(num_rows), starts // page_size] * page_size + starts % page_size
        group = GroupLayout(_num_keys(stops), padded, stops, starts[:, None], None, None)
        return PagedLayout(starts, written, (group,))
    row_of = np.repeat(np.arange(num_rows), counts)
    places = np.cumsum(counts) - counts
    positions = np.arange(len(row_of)) + np.repeat(starts - places, counts)
    written = padded[row_of, positions // page_size] * page_size + positions % page_size
    groups = tuple(
        _group(starts[members], counts[members], places[members], padded[members], page_size)
        for members in (np.flatnonzero(counts == 1), np.flatnonzero(counts > 1))
        if len(members)
    )
    return PagedLayout(positions, written, groups)


def _num_keys(stops: Int64) -> int:
    # the sums over keys are cut into blocks; whole blocks of masked keys change no bit, so a
    # row's result does not depend on how long its neighbours are
    count = -(-int(stops.max()) // KEY_BLOCK) * KEY_BLOCK
    return count + 384 - count % 512 if count % 512 in _ODD_KEYS else count


def _padded_tables(
    tables: Sequence[Sequence[int]], widths: Int64, num_keys: int, page_size: int
) -> Int64:
    padded = np.zeros((len(tables), -(-num_keys // page_size)), dtype=np.int64)
    pages = np.fromiter(chain.from_iterable(tables), np.int64)
    padded[np.arange(padded.shape[1]) < widths[:, None]] = pages
    return padded


def _group(
    starts: Int64, counts: Int64, places: Int64, tables: Int64, page_size: int
) -> GroupLayout:
    stops = starts + counts
    num_keys = _num_keys(stops)
    # whole fours of queries, for the same reason
    longest = -(-int(counts.max()) // QUERY_BLOCK) * QUERY_BLOCK
    offsets = np.arange(longest if int(counts.max()) > 1 else 1)
    real = offsets < counts[:, None]
    return GroupLayout(
        num_keys=num_keys,
        tables=tables[:, : -(-num_keys // page_size)],
        stops=stops,
        queries=np.where(real, starts[:, None] + offsets, 0),
        tokens=np.where(real, places[:, None] + offsets, places[:, None]),
        used=None if real.all() else np.flatnonzero(real),
    )
