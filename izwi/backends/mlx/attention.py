"""Attention in MLX: without a cache, over a scratch cache, over a window of a stream."""

from __future__ import annotations

from typing import Protocol, cast

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from izwi.ops.protocol import AttentionContext, AttentionSpec
from izwi.ops.rope_axes import HEIGHT, WIDTH, frequency_axes

RopeTable = tuple[mx.array, mx.array]


class MlxContext(Protocol):
    """What `MlxOps.attention` needs from a context."""

    def rope(self, num_tokens: int, spec: AttentionSpec, dtype: mx.Dtype) -> RopeTable:
        """Return cosine and sine of the positions of this call, broadcastable over heads."""
        ...

    def attend(self, layer: int, q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        """Attend with heads split, (..., tokens, heads, head_dim), and update the cache."""
        ...

    def before(self, layer: int, x: mx.array, width: int) -> list[mx.array]:
        """Return the inputs 1, 2, ... width - 1 positions before each of `x`, and keep `x`."""
        ...


class MlxAttention:
    """The attention of `izwi.ops.protocol.Ops`."""

    dtype: mx.Dtype

    def dense_context(
        self,
        batch: int,
        length: int,
        *,
        causal: bool = True,
        key_lengths: mx.array | npt.NDArray[np.int64] | None = None,
    ) -> DenseContext:
        """As `Ops.dense_context`."""
        return DenseContext(batch, length, causal, key_lengths)

    def scratch_context(
        self, batch: int, capacity: int, num_layers: int, spec: AttentionSpec
    ) -> ScratchCache:
        """As `Ops.scratch_context`."""
        return ScratchCache(batch, capacity, num_layers, spec, self.dtype)

    def attention(
        self,
        q: mx.array,
        k: mx.array,
        v: mx.array,
        *,
        spec: AttentionSpec,
        context: AttentionContext,
        layer: int,
        q_norm: mx.array | None = None,
        k_norm: mx.array | None = None,
    ) -> mx.array:
        """As `Ops.attention`."""
        view = cast(MlxContext, context)  # every context that this backend hands out is one
        q, k, v = _split_heads(q, k, v, spec)
        if q_norm is not None and k_norm is not None:
            q = mx.fast.rms_norm(q, q_norm, spec.norm_eps)
            k = mx.fast.rms_norm(k, k_norm, spec.norm_eps)
        if spec.rope_theta is not None:
            table = view.rope(q.shape[-3], spec, q.dtype)
            q, k = rotate(q, table), rotate(k, table)
        return mx.flatten(view.attend(layer, q, k, v), -2)

    def window_attention(
        self,
        q: mx.array,
        k: mx.array,
        v: mx.array,
        *,
        spec: AttentionSpec,
        window: int,
        start: mx.array,
        k_state: mx.array,
        v_state: mx.array,
    ) -> tuple[mx.array, mx.array, mx.array]:
        """As `Ops.window_attention`."""
        q, k, v = _split_heads(q, k, v, spec)
        tokens, past = q.shape[1], window - 1
        offsets = np.arange(tokens)
        if spec.rope_theta is not None:
            positions = start[:, None] + mx.array(offsets)
            table = rope_table(positions, spec.head_dim, spec.rope_theta, q.dtype)
            q, k = rotate(q, table), rotate(k, table)
        keys = mx.concatenate([k_state, k], axis=1)  # (batch, past + tokens, kv_heads, head_dim)
        values = mx.concatenate([v_state, v], axis=1)
        # key j is at stream position start - past + j, query i at start + i
        j = np.arange(past + tokens)
        near = (j <= offsets[:, None] + past) & (j > offsets[:, None] + past - window)
        real = start[:, None] + mx.array(j - past) >= 0
        out = attend(q, keys, values, mx.array(near) & real[:, None])
        return mx.flatten(out, -2), keys[:, tokens:], values[:, tokens:]


def _split_heads(
    q: mx.array, k: mx.array, v: mx.array, spec: AttentionSpec
) -> tuple[mx.array, mx.array, mx.array]:
    """View (..., tokens, heads * head_dim) as (..., tokens, heads, head_dim)."""
    return (
        q.reshape(*q.shape[:-1], spec.num_heads, spec.head_dim),
        k.reshape(*k.shape[:-1], spec.num_kv_heads, spec.head_dim),
        v.reshape(*v.shape[:-1], spec.num_kv_heads, spec.head_dim),
    )


def rope_table(positions: mx.array, head_dim: int, theta: float, dtype: mx.Dtype) -> RopeTable:
    """Return cosine and sine, (*positions.shape, 1, head_dim / 2), in float32 and then cast."""
    # on the host: a power that is off by one bit turns far positions visibly
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    frequencies = np.float32(1.0) / np.power(np.float32(theta), exponents)
    angles = positions[..., None].astype(mx.float32) * mx.array(frequencies)
    return (
        mx.cos(angles).astype(dtype)[..., None, :],
        mx.sin(angles).astype(dtype)[..., None, :],
    )


def rope_table_by_axes(positions: mx.array, spec: AttentionSpec, dtype: mx.Dtype) -> RopeTable:
    """Return the table of rotary positions of three axes, (3, tokens), as `rope_table`."""
    assert spec.rope_theta is not None
    axes = frequency_axes(spec.rope_sections, spec.head_dim // 2)
    cos, sin = (
        mx.where(
            mx.array(axes == WIDTH), part[2], mx.where(mx.array(axes == HEIGHT), part[1], part[0])
        )
        for part in rope_table(positions, spec.head_dim, spec.rope_theta, dtype)
    )
    return cos, sin


def rotate(x: mx.array, table: RopeTable) -> mx.array:
    """Rotate (..., tokens, heads, head_dim): the first half of a head pairs with the second."""
    cos, sin = (part.astype(x.dtype) for part in table)
    first, second = mx.split(x, 2, axis=-1)
    return mx.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def attend(
    q: mx.array, k: mx.array, v: mx.array, mask: mx.array | None, causal: bool = False
) -> mx.array:
    """Scaled dot-product attention of (batch, tokens, heads, head_dim) arrays.

    Args:
        q: Queries.
        k: Keys, (batch, keys, kv_heads, head_dim).
        v: Values.
        mask: (batch or 1, tokens or 1, keys) bool, True where a query sees a key, or None.
        causal: With no mask: query i sees keys 0..i.
    """
    shown: mx.array | str | None = None if mask is None else mask[:, None]
    if mask is None and causal and q.shape[1] > 1:
        shown = "causal"
    q, k, v = q.swapaxes(1, 2), k.swapaxes(1, 2), v.swapaxes(1, 2)
    out = mx.fast.scaled_dot_product_attention(q, k, v, scale=q.shape[-1] ** -0.5, mask=shown)
    return out.swapaxes(1, 2)


class DenseContext:
    """Attention without a cache: each call uses only its own keys."""

    def __init__(
        self,
        batch: int,
        length: int,
        causal: bool,
        key_lengths: mx.array | npt.NDArray[np.int64] | None,
    ):
        self._positions = np.arange(length)
        self._causal = causal
        self._table: RopeTable | None = None
        self._mask: mx.array | None = None
        if key_lengths is not None:
            seen = mx.array(self._positions) < mx.array(key_lengths)[:, None]
            self._mask = mx.broadcast_to(seen[:, None], (batch, 1, length))
            if causal:
                before = self._positions <= self._positions[:, None]
                self._mask = self._mask & mx.array(before)

    def rope(self, num_tokens: int, spec: AttentionSpec, dtype: mx.Dtype) -> RopeTable:  # noqa: ARG002
        if self._table is None:  # the same for every layer of one call
            assert spec.rope_theta is not None
            positions = mx.array(self._positions[None])
            self._table = rope_table(positions, spec.head_dim, spec.rope_theta, dtype)
        return self._table

    def attend(self, layer: int, q: mx.array, k: mx.array, v: mx.array) -> mx.array:  # noqa: ARG002
        return attend(q, k, v, self._mask, causal=self._causal)

    def before(self, layer: int, x: mx.array, width: int) -> list[mx.array]:  # noqa: ARG002
        lead, length = [(0, 0)] * (x.ndim - 2), x.shape[-2]
        return [mx.pad(x, [*lead, (back, 0), (0, 0)])[..., :length, :] for back in range(1, width)]


class ScratchCache:
    """Keys and values of one step's inner loop, all rows at the same position."""

    def __init__(
        self, batch: int, capacity: int, num_layers: int, spec: AttentionSpec, dtype: mx.Dtype
    ):
        nothing = mx.zeros((batch, 0, spec.num_kv_heads, spec.head_dim), dtype=dtype)
        self._keys, self._values = [nothing] * num_layers, [nothing] * num_layers
        self._table: RopeTable | None = None
        if spec.rope_theta is not None:
            positions = mx.arange(capacity)
            self._table = rope_table(positions, spec.head_dim, spec.rope_theta, dtype)
        self._start = 0

    def advance(self, num_tokens: int) -> None:
        self._start += num_tokens

    def rope(self, num_tokens: int, spec: AttentionSpec, dtype: mx.Dtype) -> RopeTable:  # noqa: ARG002
        assert self._table is not None
        cos, sin = self._table
        stop = self._start + num_tokens
        return cos[self._start : stop], sin[self._start : stop]

    def attend(self, layer: int, q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        tokens, start = q.shape[1], self._start
        # a call may be repeated at an earlier position, which drops everything after it
        self._keys[layer] = keys = mx.concatenate([self._keys[layer][:, :start], k], axis=1)
        self._values[layer] = values = mx.concatenate([self._values[layer][:, :start], v], axis=1)
        mask = None
        if tokens > 1 and start > 0:
            seen = np.arange(start + tokens) <= start + np.arange(tokens)[:, None]
            mask = mx.array(seen)[None]
        return attend(q, keys, values, mask, causal=True)
