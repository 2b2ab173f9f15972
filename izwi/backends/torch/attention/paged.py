"""Paged attention in plain torch: reads and writes pages through block tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from izwi.backends.torch.attention.dense import (
    RopeTable,
    attend,
    rope_table,
    rope_table_by_axes,
)
from izwi.backends.torch.attention.slots import KVSlots
from izwi.backends.torch.conv_trailers import ConvStep, ConvTrailers
from izwi.backends.torch.transfer import to_device
from izwi.ops.paged_layout import GroupLayout, lay_out
from izwi.ops.protocol import AttentionSpec


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows that attend together.

    Attributes:
        slots: (rows, keys) int64 slots of the rows' keys, padded with the padding slot.
        mask: (rows, longest, keys) bool.
        queries: (rows, longest) int64 position of each query.
        tokens: (rows, longest) int64 indices of the rows' tokens in the packed array, or None if
            each row has one token and this is the only group.
        used: (tokens,) int64 indices of the unpadded places in the rows, or None if all are.
    """

    slots: Tensor
    mask: Tensor
    queries: Tensor
    tokens: Tensor | None
    used: Tensor | None


class PagedContext:
    """Attention of one step's packed rows over the pages of one model."""

    def __init__(
        self,
        kv: KVSlots,
        spans: Sequence[tuple[int, int]],
        tables: Sequence[Sequence[int]],
        windows: Sequence[int | None] = (),
        trailers: ConvTrailers | None = None,
        rotary: npt.NDArray[np.int64] | None = None,
    ):
        """Lay out a step.

        Args:
            kv: Storage of keys and values.
            spans: Positions [start, stop) of each row.
            tables: Pages of each row, exactly those that cover [0, stop).
            windows: Window of each attention layer in positions; empty for full attention.
            trailers: Storage of inputs of short convolutions, if there are any.
            rotary: (3, tokens) rotary positions of three axes; None: tokens turn by position.
        """
        self._kv, self._windows = kv, windows
        self._convs = ConvStep(trailers, spans, tables) if trailers is not None else None
        layout = lay_out(spans, tables, kv.page_size)
        host: list[npt.NDArray[np.int64] | None] = [layout.positions, layout.written]
        for group in layout.groups:
            host += [group.tables, group.stops, group.queries, group.tokens, group.used]
        arrays = _to_device(host, kv.device)
        positions, written = arrays[:2]
        self._axes = None if rotary is None else _to_device([rotary], kv.device)[0]
        assert positions is not None
        assert written is not None
        self._positions, self._written = positions, written
        self._rope: RopeTable | None = None
        self._groups = [
            _expand(group, arrays[2 + 5 * i : 7 + 5 * i], kv)
            for i, group in enumerate(layout.groups)
        ]

    def rope(self, num_tokens: int, spec: AttentionSpec, dtype: torch.dtype) -> RopeTable:
        assert num_tokens == len(self._positions)
        if self._rope is None:  # the same for every layer of one step
            assert spec.rope_theta is not None
            if self._axes is not None:
                self._rope = rope_table_by_axes(self._axes, spec, dtype)
            else:
                self._rope = rope_table(self._positions, spec.head_dim, spec.rope_theta, dtype)
        return self._rope

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self._kv.write(layer, self._written, k, v)
        first = self._groups[0]
        if first.tokens is None:
            return self._attend_group(first, layer, q[:, None])[:, 0]
        out = torch.empty_like(q)
        for group in self._groups:
            assert group.tokens is not None
            rows = self._attend_group(group, layer, q[group.tokens]).flatten(0, 1)
            tokens = group.tokens.flatten()
            if group.used is not None:
                rows, tokens = rows[group.used], tokens[group.used]
            out[tokens] = rows
        return out

    def before(self, layer: int, x: Tensor, width: int) -> list[Tensor]:
        assert self._convs is not None
        inputs = self._convs.before(layer, x)
        assert len(inputs) == width - 1
        return inputs

    def _attend_group(self, group: _Group, layer: int, q: Tensor) -> Tensor:
        keys, values = self._kv.read(layer, group.slots)
        mask, window = group.mask, self._windows[layer] if self._windows else None
        if window is not None:
            oldest = group.queries[:, :, None] - window
            mask = mask & (_arange(mask.shape[2], mask.device) > oldest)
        return attend(q, keys, values, mask)


def _to_device(
    arrays: Sequence[npt.NDArray[np.int64] | None], device: torch.device
) -> list[Tensor | None]:
    """Copy many small arrays in one transfer, because on a GPU each copy has a fixed cost."""
    if device.type == "cpu":
        return [None if array is None else torch.from_numpy(array) for array in arrays]
    packed = torch.from_numpy(np.concatenate([a.ravel() for a in arrays if a is not None]))
    packed = to_device(packed, device)
    views: list[Tensor | None] = []
    place = 0
    for array in arrays:
        if array is None:
            views.append(None)
            continue
        views.append(packed[place : place + array.size].view(array.shape))
        place += array.size
    return views


@lru_cache(maxsize=256)
def _arange(stop: int, device: torch.device) -> Tensor:
    # one of few lengths, since keys come in blocks; on a GPU each would be a launch in every step
    return torch.arange(stop, device=device)


def _expand(layout: GroupLayout, arrays: Sequence[Tensor | None], kv: KVSlots) -> _Group:
    """Compute slots and mask of a group from its arrays on the device."""
    tables, stops, queries, tokens, used = arrays
    assert tables is not None
    assert stops is not None
    assert queries is not None
    in_page, keys = _arange(kv.page_size, kv.device), _arange(layout.num_keys, kv.device)
    seen = keys < stops[:, None]
    slots = (tables[:, :, None] * kv.page_size + in_page).flatten(1)[:, : layout.num_keys]
    # slots past the end may contain NaN, which a weight of 0 would not remove
    slots = torch.where(seen, slots, kv.padding_slot)
    if queries.shape[1] == 1:  # the one query of a row stands at its last key
        return _Group(slots, seen[:, None], queries, tokens, used)
    return _Group(slots, keys <= queries[:, :, None], queries, tokens, used)
