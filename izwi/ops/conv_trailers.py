"""Inputs of short convolutions, kept with the pages: what a step reads and writes, in torch.

A page has a trailer of `width` columns a layer. The input of position p lies in column
(p % page_size) % width of its page, so the page's last inputs are in the trailer at its end: what
the next page begins with. One column more than the width - 1 that an output reads, so that the last
position may be run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from izwi.layers import ConvSpec
from izwi.ops.transfer import to_device

Int64 = npt.NDArray[np.int64]


class ConvTrailers:
    """The trailers of every page of one model.

    Attributes:
        plane: (layers, pages * width + 1, channels): all there is to them. The last column is
            zeros, what comes before position 0; nothing is written to it.
    """

    def __init__(
        self,
        spec: ConvSpec,
        num_pages: int,
        page_size: int,
        device: torch.device,
        dtype: torch.dtype,
    ):
        self.spec, self.page_size = spec, page_size
        self.zeros_column = num_pages * spec.width
        shape = spec.num_layers, self.zeros_column + 1, spec.channels
        self.plane = torch.empty(shape, device=device, dtype=dtype)
        self.plane[:, -1].zero_()

    def columns(self, positions: Int64, pages: Int64) -> Int64:
        """Column of each position, whose page is given; that of zeros before position 0."""
        width = self.spec.width
        found = pages * width + positions % self.page_size % width
        columns: Int64 = np.where(positions < 0, self.zeros_column, found)
        return columns


class ConvStep:
    """One step's packed rows: which inputs came before each position, and which are kept."""

    def __init__(
        self,
        trailers: ConvTrailers,
        spans: Sequence[tuple[int, int]],
        tables: Sequence[Sequence[int]],
    ):
        """Lay out a step.

        Args:
            trailers: Where inputs are kept.
            spans: Positions [start, stop) that each row runs, at least one each.
            tables: Pages of each row, exactly those that cover [0, stop).
        """
        self._trailers = trailers
        width, size, device = trailers.spec.width, trailers.page_size, trailers.plane.device
        flat = np.fromiter(chain.from_iterable(spans), np.int64, 2 * len(spans))
        starts, stops = flat[0::2], flat[1::2]
        counts = stops - starts
        row_of = np.repeat(np.arange(len(spans)), counts)
        first = (np.cumsum(counts) - counts)[row_of]  # place of the row's first position
        places = np.arange(len(row_of))
        positions = places - first + starts[row_of]
        lengths = np.array([len(table) for table in tables])
        pages = np.fromiter(chain.from_iterable(tables), np.int64)
        offsets = np.cumsum(lengths) - lengths  # of each row's pages

        def page_of(rows: Int64, at: Int64) -> Int64:
            found: Int64 = pages[offsets[rows] + np.maximum(at, 0) // size]
            return found

        back = np.arange(1, width)
        rows, before = np.arange(len(spans))[:, None], starts[:, None] - back
        history = trailers.columns(before, page_of(rows, before))  # (rows, width - 1)
        own = places[:, None] - back  # (positions, width - 1), place in the packed array
        beyond = back - (positions - starts[row_of])[:, None]  # positions before the row's first
        kept = row_of[:, None] * (width - 1) + beyond - 1
        sources = np.where(beyond > 0, kept, history.size + own)
        last = np.minimum(stops[row_of], (positions // size + 1) * size)
        written = np.flatnonzero(positions >= last - width)
        columns = trailers.columns(positions, page_of(row_of, positions))[written]
        arrays = [history.ravel(), sources.T.ravel(), written, columns]
        packed = to_device(torch.from_numpy(np.concatenate(arrays)), device)
        stops_at = accumulate(len(array) for array in arrays)
        self._history, source, self._written, self._columns = (
            packed[stop - len(array) : stop] for stop, array in zip(stops_at, arrays, strict=True)
        )
        self._source = source.view(width - 1, len(places))

    def before(self, layer: int, x: Tensor) -> list[Tensor]:
        """Inputs 1, 2, ... width - 1 positions before each, like `x`; and keep `x`.

        Args:
            layer: Which of the short convolutions.
            x: (positions, channels) inputs of the packed rows.
        """
        plane = self._trailers.plane[layer]
        known = torch.cat([plane[self._history], x])  # a copy, so that writing changes nothing
        plane[self._columns] = x[self._written]
        return [known[source] for source in self._source]
