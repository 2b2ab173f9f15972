"""The keys and values themselves, in pages, in torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from izwi.cache.pages import pages_for
from izwi.model import KVSpec, Row
from izwi.ops.attention.torch_paged import PagedContext


class PagedKV:
    """Keys and values of every layer of one model, in slots of one position.

    Page p owns slots [p * page_size, (p + 1) * page_size). Attention writes and reads them
    through the block tables of its context; nobody else does.
    """

    def __init__(
        self, spec: KVSpec, num_pages: int, page_size: int, device: torch.device, dtype: torch.dtype
    ):
        shape = (spec.num_layers, num_pages * page_size, spec.num_kv_heads, spec.head_dim)
        self.page_size = page_size
        self.keys = torch.empty(shape, device=device, dtype=dtype)
        self.values = torch.empty(shape, device=device, dtype=dtype)
        # rows are padded with slot 0, whose weight is 0; but 0 times a stray NaN is NaN
        self.keys[:, 0].zero_()
        self.values[:, 0].zero_()

    def context(self, rows: Sequence[Row]) -> PagedContext:
        """Attention of packed rows, each seeing its own pages."""
        tables = [row.sequence.pages[: pages_for(row.stop, self.page_size)] for row in rows]
        spans = [(row.start, row.stop) for row in rows]
        return PagedContext(self.keys, self.values, self.page_size, spans, tables)


def bytes_per_page(spec: KVSpec, page_size: int, dtype: torch.dtype) -> int:
    """Bytes that one page takes, keys and values of all layers."""
    return 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim * page_size * dtype.itemsize
