"""Paged keys and values in torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from izwi.backends.torch.attention.paged import PagedContext
from izwi.backends.torch.attention.slots import (
    KVSlots,
    PlainSlots,
    QuantizedSlots,
    bytes_per_slot,
    stored_dtype,
)
from izwi.backends.torch.conv_trailers import ConvTrailers
from izwi.backends.torch.transfer import to_device, to_host
from izwi.model.layers import KVSpec
from izwi.model.step_batch import Row
from izwi.request.rotary import RotatedPrompt, rotary_positions

# One row per page: the exact bits of all of its contents.
PageBytes = npt.NDArray[np.uint8]

_WORDS = (torch.int64, torch.int32, torch.int16, torch.uint8)


class PagedKV:
    """Keys and values of every layer of one model, in slots of one position.

    Page p has slots [p * page_size, (p + 1) * page_size). Attention reads and writes slots through
    the block tables of its context; all other code moves whole pages. Each page also stores inputs
    of short convolutions, as its trailer (`ConvTrailers`).
    """

    def __init__(
        self,
        spec: KVSpec,
        num_pages: int,
        page_size: int,
        device: torch.device,
        dtype: torch.dtype,
        kv_dtype: str = "auto",
    ):
        """Allocate.

        Args:
            spec: Layers, heads and sizes of what is stored for one position.
            num_pages: Number of pages.
            page_size: Positions per page.
            device: Device of the pages.
            dtype: Dtype of the model's keys and values.
            kv_dtype: Storage: "auto" (in `dtype`), "int8" or "fp8" (8 bits and a scale).

        Raises:
            InvalidRequest: `kv_dtype` is unknown, or the device does not support it.
        """
        stored = stored_dtype(kv_dtype, dtype, device)
        self.spec, self.num_pages = spec, num_pages
        shape = (spec.num_layers, num_pages, spec.num_kv_heads, spec.head_dim)
        self.page_size = page_size
        self.page_bytes = bytes_per_page(spec, page_size, dtype, kv_dtype)
        self._device = device
        self._slots: KVSlots = (
            PlainSlots(shape, page_size, device, dtype)
            if kv_dtype == "auto"
            else QuantizedSlots(shape, page_size, device, dtype, stored)
        )
        planes = [(_words(plane), page_size) for plane in self._slots.planes]
        self._trailers: ConvTrailers | None = None
        if spec.conv is not None:
            self._trailers = ConvTrailers(spec.conv, num_pages, page_size, device, dtype)
            planes.append((_words(self._trailers.plane), spec.conv.width))
        self._planes = planes  # and the slots of a page in each

    def context(self, rows: Sequence[Row]) -> PagedContext:
        """Return the attention context of packed rows, each over its own pages."""
        size = self.page_size
        spans = [(row.start, row.stop) for row in rows]
        # ceil(stop / size) pages; inlined, because it runs for every row of every step
        tables = [row.pages[: -(-row.stop // size)] for row in rows]
        rotary = None
        if self.spec.rope_sections:
            rotary = rotary_positions(
                [cast(RotatedPrompt, row.request.prompt) for row in rows], spans
            )
        return PagedContext(self._slots, spans, tables, self.spec.windows, self._trailers, rotary)

    @property
    def plain(self) -> tuple[Tensor, Tensor] | None:
        """Keys and values, (layers, slots, kv_heads, head_dim) each; None if quantized.

        Position i of page p is slot p * page_size + i.
        """
        if not isinstance(self._slots, PlainSlots):
            return None
        keys, values = self._slots.planes
        return keys, values

    @property
    def trailers(self) -> ConvTrailers | None:
        """Inputs of short convolutions; None for a model without them."""
        return self._trailers

    @torch.inference_mode()
    def copy(self, moves: Sequence[tuple[int, int, int]]) -> None:
        """Copy the first slots of pages to other pages, in all layers.

        Args:
            moves: (source page, destination page, number of slots). All sources are read before any
                destination is written. Destinations must be distinct.
        """
        if not moves:
            return
        table = np.array(moves, dtype=np.int64)
        sources, targets, counts = table.T
        in_page = np.arange(self.page_size)
        wanted = in_page < counts[:, None]
        slots = [(p[:, None] * self.page_size + in_page)[wanted] for p in (sources, targets)]
        index = to_device(torch.from_numpy(np.stack(slots)), self._device)
        assert self._trailers is None, "a part of a page has no trailer"
        for plane, _ in self._planes:
            plane[:, index[1]] = plane.index_select(1, index[0])

    @torch.inference_mode()
    def read_pages(self, pages: Sequence[int]) -> PageBytes:
        """Copy pages to the host, (pages, page_bytes), for `write_pages`; bit-exact.

        Blocks until the copy is complete. Rows are views of one array; copy those that you keep.
        """
        parts = []
        for plane, slots in self._planes:
            index = self._slot_index(pages, slots)
            part = plane.index_select(1, index)  # (layers, pages * slots, words)
            part = part.view(len(plane), len(pages), -1).transpose(0, 1).flatten(1)
            parts.append(part.view(torch.uint8))
        packed = torch.cat(parts, dim=1)
        return to_host([packed])[0].numpy() if packed.is_cuda else packed.cpu().numpy()

    @torch.inference_mode()
    def write_pages(self, pages: Sequence[int], data: PageBytes) -> None:
        """Write data from `read_pages` to these or other pages.

        Args:
            pages: The destination pages.
            data: (pages, page_bytes).

        Raises:
            ValueError: The data has another shape or dtype.
        """
        if data.shape != (len(pages), self.page_bytes) or data.dtype != np.uint8:
            raise ValueError(
                f"{len(pages)} pages take {self.page_bytes} bytes each, got {data.shape} "
                f"{data.dtype}"
            )
        host = torch.empty(data.shape, dtype=torch.uint8, pin_memory=self._device.type == "cuda")
        host.numpy()[:] = data
        packed = host.to(self._device, non_blocking=True)
        start = 0
        for plane, slots in self._planes:
            layers, _, words = plane.shape
            stop = start + layers * slots * words * plane.dtype.itemsize
            part = packed[:, start:stop].contiguous().view(plane.dtype)
            part = part.view(len(pages), layers, slots, words).transpose(0, 1)
            plane[:, self._slot_index(pages, slots)] = part.flatten(1, 2)
            start = stop

    def _slot_index(self, pages: Sequence[int], slots: int) -> Tensor:
        """Return the indices of the pages' slots in a plane with `slots` slots per page."""
        first = np.array(pages, dtype=np.int64)[:, None] * slots
        index = torch.from_numpy((first + np.arange(slots)).ravel())
        return to_device(index, self._device)


def bytes_per_page(spec: KVSpec, page_size: int, dtype: torch.dtype, kv_dtype: str = "auto") -> int:
    """Return the bytes of one page: keys and values of all layers, scales, and the trailer.

    Raises:
        InvalidRequest: `kv_dtype` is unknown.
    """
    stored = stored_dtype(kv_dtype, dtype, torch.device("cpu"))
    conv = spec.conv
    trailer = conv.num_layers * conv.width * conv.channels * dtype.itemsize if conv else 0
    slot = bytes_per_slot(spec.num_layers, spec.num_kv_heads, spec.head_dim, stored)
    return page_size * slot + trailer


def _words(plane: Tensor) -> Tensor:
    """View (layers, slots, ...) as (layers, slots, words) of the widest integers that fit.

    Copying integers preserves every bit of any dtype, and wide ones copy faster.
    """
    row_bytes = plane[0, 0].numel() * plane.dtype.itemsize
    word = next(word for word in _WORDS if row_bytes % word.itemsize == 0)
    return plane.flatten(2).view(word)
