"""Attention of captured steps in torch: gathers pages instead of walking them in a kernel.

As in `triton.attention_decode`, positions and tables are read on the device, so that a step can be
captured. Each row therefore gathers its maximum number of keys. Use this for comparison, or on
devices where the kernel is suspected to be wrong.
"""

from __future__ import annotations

import torch
from torch import Tensor

from izwi.backends.torch.attention.dense import RopeTable, attend
from izwi.ops.protocol import AttentionSpec


class StagedContext:
    """A context for `TorchOps.attention`, for rows of one position each."""

    def __init__(
        self,
        cache: tuple[Tensor, Tensor],
        page_size: int,
        positions: Tensor,
        tables: Tensor,
        table_width: Tensor,
        rope: tuple[Tensor, Tensor] | None,
        max_keys: int,
        table_of: Tensor | None = None,
        rotary: Tensor | None = None,
    ):
        """Lay out a step, from values on the device.

        Args:
            cache: Keys and values, (layers, slots + 1, kv_heads, head_dim); the last slot is the
                padding slot, which holds zeros.
            page_size: Slots of one page.
            positions: (rows,) int64; -1 marks an empty row, whose output is zeros.
            tables: Flat int32; the page of row r at place p is tables[r * table_width[0] + p].
            table_width: (1,) int32.
            rope: Cosine and sine, (max_positions, head_dim / 2), or None for no rotation.
            max_keys: Maximum number of keys of a row.
            table_of: (rows,) index of each row's table; None if row r has table r.
            rotary: (rows,) int64 rotary positions; None if they are the positions.
        """
        self._cache, self._rope = cache, rope
        self._at, here = positions.clamp_min(0), positions >= 0
        self._rotary = self._at if rotary is None else rotary
        padding = cache[0].shape[1] - 1
        keys = torch.arange(max_keys, device=positions.device)
        # entries past the end of a row's table are not its own and are masked
        if table_of is None:
            table_of = torch.arange(len(positions), device=positions.device)
        places = table_of[:, None] * table_width + keys // page_size
        pages = tables[places.clamp_max(len(tables) - 1)].long()
        seen = (keys <= self._at[:, None]) & here[:, None]
        # slots that are not seen may have a NaN, which a weight of 0 would not remove
        self._slots = torch.where(seen, pages * page_size + keys % page_size, padding)
        self._written = self._slots.gather(1, self._at[:, None])[:, 0]
        self._here = here[:, None, None]
        # an empty row sees a zero, since a softmax over nothing is a NaN
        self._mask = (seen | (keys == 0))[:, None]

    def rope(self, num_tokens: int, spec: AttentionSpec, dtype: torch.dtype) -> RopeTable:  # noqa: ARG002
        """Return cosine and sine of each row, (rows, 1, head_dim / 2)."""
        assert self._rope is not None
        cos, sin = self._rope
        return cos[self._rotary][:, None], sin[self._rotary][:, None]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store the new keys and values of all rows, then attend, (rows, heads, head_dim)."""
        keys, values = (plane[layer] for plane in self._cache)
        # an empty row writes zeros to the padding slot, which holds zeros
        keys[self._written] = torch.where(self._here, k, 0).to(keys.dtype)
        values[self._written] = torch.where(self._here, v, 0).to(values.dtype)
        shape = (*self._slots.shape, *keys.shape[1:])
        flat = self._slots.flatten()
        read = [plane.index_select(0, flat).view(shape) for plane in (keys, values)]
        return attend(q[:, None], read[0], read[1], self._mask)[:, 0]
