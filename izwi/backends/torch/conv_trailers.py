"""Inputs of short convolutions, stored with the pages, in torch; see `izwi.ops.conv_layout`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from izwi.backends.torch.transfer import to_device
from izwi.model.layers import ConvSpec
from izwi.ops.conv_layout import lay_out_conv, trailer_columns


class ConvTrailers:
    """The trailers of every page of one model.

    Attributes:
        plane: (layers, pages * width + 1, channels): the data of all trailers. The last column is
            never written: it holds the zeros before position 0.
        columns: The column of each position.
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
        self.columns = trailer_columns(num_pages, page_size, spec.width)
        shape = spec.num_layers, self.columns.zeros + 1, spec.channels
        self.plane = torch.empty(shape, device=device, dtype=dtype)
        self.plane[:, -1].zero_()


class ConvStep:
    """One step's packed rows: the inputs before each position, and which inputs to store."""

    def __init__(
        self,
        trailers: ConvTrailers,
        spans: Sequence[tuple[int, int]],
        tables: Sequence[Sequence[int]],
    ):
        """Lay out a step.

        Args:
            trailers: Storage of the inputs.
            spans: Positions [start, stop) of each row, at least one each.
            tables: Pages of each row, exactly those that cover [0, stop).
        """
        self._trailers = trailers
        layout = lay_out_conv(spans, tables, trailers.columns)
        arrays = [layout.history, layout.sources.ravel(), layout.written, layout.columns]
        packed = to_device(torch.from_numpy(np.concatenate(arrays)), trailers.plane.device)
        stops_at = accumulate(len(array) for array in arrays)
        self._history, source, self._written, self._columns = (
            packed[stop - len(array) : stop] for stop, array in zip(stops_at, arrays, strict=True)
        )
        self._source = source.view(layout.sources.shape)

    def before(self, layer: int, x: Tensor) -> list[Tensor]:
        """Return the inputs 1, 2, ... width - 1 positions before each, like `x`; store `x`.

        Args:
            layer: Index among the short convolutions.
            x: (positions, channels) inputs of the packed rows.
        """
        plane = self._trailers.plane[layer]
        known = torch.cat([plane[self._history], x])  # a copy, not affected by the write
        plane[self._columns] = x[self._written]
        return [known[source] for source in self._source]
