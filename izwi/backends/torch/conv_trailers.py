"""Inputs of short convolutions, kept with the pages, in torch; see `izwi.ops.conv_layout`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from izwi.backends.torch.transfer import to_device
from izwi.layers import ConvSpec
from izwi.ops.conv_layout import lay_out_conv, trailer_columns


class ConvTrailers:
    """The trailers of every page of one model.

    Attributes:
        plane: (layers, pages * width + 1, channels): all there is to them. The last column is
            zeros, what comes before position 0; nothing is written to it.
        columns: Of each position.
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
        layout = lay_out_conv(spans, tables, trailers.columns)
        arrays = [layout.history, layout.sources.ravel(), layout.written, layout.columns]
        packed = to_device(torch.from_numpy(np.concatenate(arrays)), trailers.plane.device)
        stops_at = accumulate(len(array) for array in arrays)
        self._history, source, self._written, self._columns = (
            packed[stop - len(array) : stop] for stop, array in zip(stops_at, arrays, strict=True)
        )
        self._source = source.view(layout.sources.shape)

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
