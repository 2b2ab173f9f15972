"""Attention over whole arrays in torch: no cache, or a scratch cache of a few positions."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)
from torch import Tensor

from izwi.backends.torch.host_arrays import is_host_array, rotated
from izwi.ops.protocol import AttentionSpec
from izwi.ops.rope_axes import frequency_axes

RopeTable = tuple[Tensor, Tensor]


class TorchContext(Protocol):
    """The context that `TorchOps.attention` works with."""

    def rope(self, num_tokens: int, spec: AttentionSpec, dtype: torch.dtype) -> RopeTable:
        """Return cosine and sine of the positions of this call, broadcastable over heads."""
        ...

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend over (..., tokens, heads, head_dim); store keys and values if there is a cache."""
        ...

    def before(self, layer: int, x: Tensor, width: int) -> list[Tensor]:
        """Return the inputs 1, 2, ... width - 1 positions before each of `x`; store `x`."""
        ...


_QUERY_BLOCK = 4


def split_heads(
    q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec
) -> tuple[Tensor, Tensor, Tensor]:
    """View (..., tokens, heads * head_dim) as (..., tokens, heads, head_dim)."""
    return (
        q.view(*q.shape[:-1], spec.num_heads, spec.head_dim),
        k.view(*k.shape[:-1], spec.num_kv_heads, spec.head_dim),
        v.view(*v.shape[:-1], spec.num_kv_heads, spec.head_dim),
    )


def rope_table(positions: Tensor, head_dim: int, theta: float, dtype: torch.dtype) -> RopeTable:
    """Return cosine and sine, (*positions.shape, 1, head_dim / 2), computed in float32, cast."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=positions.device)
    frequencies = 1.0 / (theta ** (exponents / head_dim))
    angles = positions[..., None].float() * frequencies
    return angles.cos().to(dtype)[..., None, :], angles.sin().to(dtype)[..., None, :]


def rope_table_by_axes(positions: Tensor, spec: AttentionSpec, dtype: torch.dtype) -> RopeTable:
    """Return the table of rotary positions of three axes, (3, tokens), as `rope_table`."""
    axes = torch.from_numpy(frequency_axes(spec.rope_sections, spec.head_dim // 2).copy())
    assert spec.rope_theta is not None
    tables = (
        part[axes.to(positions.device), :, 0, torch.arange(len(axes), device=positions.device)]
        for part in rope_table(positions, spec.head_dim, spec.rope_theta, dtype)
    )
    cos, sin = (part.T[:, None] for part in tables)  # (tokens, 1, head_dim / 2)
    return cos, sin


def rotate(x: Tensor, table: RopeTable) -> Tensor:
    """Rotate (..., tokens, heads, head_dim): the first half of a head pairs with the second."""
    cos, sin = table
    if is_host_array(x) and cos.dtype == torch.float32:
        return torch.from_numpy(rotated(x.numpy(), cos.numpy(), sin.numpy()))
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool = False) -> Tensor:
    """Scaled dot-product attention of (batch, tokens, heads, head_dim) arrays.

    Args:
        q: Queries.
        k: Keys, (batch, keys, kv_heads, head_dim).
        v: Values.
        mask: (batch or 1, tokens or 1, keys), or None: bool, True where a query sees a key, or of
            the queries' dtype, to be added to the scores.
        causal: With no mask: query i sees keys 0..i.
    """
    batch, tokens, heads, head_dim = q.shape
    kv_heads = k.shape[2]
    group = heads // kv_heads
    # on a CPU a query's bits are the same in any batch only among whole fours (ADR 5)
    padding = -group % _QUERY_BLOCK if q.device.type == "cpu" else 0
    if tokens == 1 and (group > 1 or padding):
        # one query a row: its group of heads becomes the query axis, so keys are not repeated
        q = q.reshape(batch, kv_heads, group, head_dim)
        q = F.pad(q, (0, 0, 0, padding)) if padding else q
        mask = None if mask is None else mask[:, None]
        out = F.scaled_dot_product_attention(q, k.transpose(1, 2), v.transpose(1, 2), mask)
        return out[:, :, :group].reshape(batch, 1, heads, head_dim)
    if group > 1:
        k, v = k.repeat_interleave(group, dim=2), v.repeat_interleave(group, dim=2)
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        None if mask is None else mask[:, None],
        is_causal=causal and mask is None and tokens > 1,
    )
    return out.transpose(1, 2)


class DenseContext:
    """No cache: each call attends only to its own keys."""

    def __init__(
        self,
        batch: int,
        length: int,
        causal: bool,
        key_lengths: Tensor | npt.NDArray[np.int64] | None,
        device: torch.device,
    ):
        self._batch = batch
        self._positions = torch.arange(length, device=device)[None]
        self._causal = causal
        self._lengths: Tensor | None = None
        if key_lengths is not None:
            self._lengths = torch.as_tensor(key_lengths, device=device)
        self._mask: Tensor | None = None
        self._table: RopeTable | None = None

    def rope(self, num_tokens: int, spec: AttentionSpec, dtype: torch.dtype) -> RopeTable:  # noqa: ARG002
        if self._table is None:  # the same for every layer of one call
            assert spec.rope_theta is not None
            self._table = rope_table(self._positions, spec.head_dim, spec.rope_theta, dtype)
        return self._table

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # noqa: ARG002
        if self._mask is None and self._lengths is not None:
            self._mask = self._hiding(self._lengths, q.dtype)
        return attend(q, k, v, self._mask, causal=self._causal)

    def before(self, layer: int, x: Tensor, width: int) -> list[Tensor]:  # noqa: ARG002
        length = x.shape[-2]
        return [F.pad(x, (0, 0, back, 0))[..., :length, :] for back in range(1, width)]

    def _hiding(self, lengths: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the mask that hides keys past the lengths, computed once for all layers.

        Rows are aligned to eight elements, because kernels copy an unaligned mask in every layer.
        """
        keys = self._positions.shape[1]
        hidden = self._positions[:, None] >= lengths[:, None, None]  # (batch, 1, keys)
        if self._causal:
            hidden = hidden | (self._positions[:, None] > self._positions[..., None])
        rows = lengths.new_zeros((self._batch, hidden.shape[1], -(-keys // 8) * 8), dtype=dtype)
        return rows[..., :keys].masked_fill_(hidden, float("-inf"))


class ScratchCache:
    """Cache of keys and values for the inner loop of one step; all rows are at one position."""

    def __init__(
        self,
        batch: int,
        capacity: int,
        num_layers: int,
        spec: AttentionSpec,
        device: torch.device,
        dtype: torch.dtype,
    ):
        shape = (num_layers, batch, capacity, spec.num_kv_heads, spec.head_dim)
        self._keys = torch.empty(shape, device=device, dtype=dtype)
        self._values = torch.empty(shape, device=device, dtype=dtype)
        theta = spec.rope_theta
        self._table = (
            None
            if theta is None
            else rope_table(torch.arange(capacity, device=device), spec.head_dim, theta, dtype)
        )
        self._start = 0

    def advance(self, num_tokens: int) -> None:
        self._start += num_tokens

    def rope(self, num_tokens: int, spec: AttentionSpec, dtype: torch.dtype) -> RopeTable:  # noqa: ARG002
        assert self._table is not None
        cos, sin = self._table
        stop = self._start + num_tokens
        return cos[self._start : stop], sin[self._start : stop]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        tokens = q.shape[1]
        stop = self._start + tokens
        keys, values = self._keys[layer], self._values[layer]
        keys[:, self._start : stop] = k
        values[:, self._start : stop] = v
        mask = None
        if tokens > 1 and self._start > 0:  # causal from 0 on, or for one token, needs none
            mask = q.new_ones((1, tokens, stop), dtype=torch.bool).tril(self._start)
        return attend(q, keys[:, :stop], values[:, :stop], mask, causal=True)


class WindowView:
    """Rotation and mask of one chunk of a stream, shared by all layers."""

    def __init__(self, start: Tensor, tokens: int, window: int, spec: AttentionSpec):
        """Lay out a chunk; see `Ops.window_attention`."""
        self.key = (tokens, window, spec)
        self.start = start
        past = window - 1
        offsets = torch.arange(tokens, device=start.device)
        # key j is at stream position start - past + j, query i at start + i
        j = torch.arange(past + tokens, device=start.device)
        near = (j <= offsets[:, None] + past) & (j > offsets[:, None] + past - window)
        real = start[:, None] - past + j >= 0
        self.mask = near & real[:, None]  # (batch, tokens, keys)
        self.rope: RopeTable | None = None
        if spec.rope_theta is not None:
            positions = start[:, None] + offsets
            self.rope = rope_table(positions, spec.head_dim, spec.rope_theta, torch.float32)
