"""Attention beyond the core's, composed of it unless a backend has a faster implementation."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from izwi.ops.attention_spec import AttentionSpec
from izwi.ops.audio import AudioOps, cosine
from izwi.ops.core import Array, AttentionContext


class AttentionOps(AudioOps, Protocol):
    """Attention with its projection, over a window of a stream, and with relative positions."""

    def normed_attention(
        self,
        x: Array,
        norm: Array | None,
        eps: float,
        weight: Array,
        *,
        spec: AttentionSpec,
        context: AttentionContext,
        layer: int,
        q_norm: Array | None = None,
        k_norm: Array | None = None,
    ) -> Array:
        """Compute norm, projection to queries, keys and values, and `attention`.

        Args:
            x: (..., tokens, in).
            norm: (in,) weight of the RMS norm; None if it is in `weight`.
            eps: Epsilon of the norm.
            weight: ((num_heads + 2 * num_kv_heads) * head_dim, in): queries, keys, values.
            spec: As in `attention`; so is the result.
            context: Context that determines the visible keys.
            layer: Index of the layer's cache.
            q_norm: Weight of the norm over each query head.
            k_norm: The same for keys.
        """
        q, k, v = divide(self.normed_linear(x, norm, eps, weight), spec)
        return self.attention(
            q, k, v, spec=spec, context=context, layer=layer, q_norm=q_norm, k_norm=k_norm
        )

    def window_attention(
        self,
        q: Array,
        k: Array,
        v: Array,
        *,
        spec: AttentionSpec,
        window: int,
        start: Array,
        k_state: Array,
        v_state: Array,
    ) -> tuple[Array, Array, Array]:
        """Compute causal attention of a stream over its last `window` positions, including itself.

        Args:
            q: (batch, tokens, num_heads * head_dim).
            k: (batch, tokens, num_kv_heads * head_dim).
            v: The same shape as `k`.
            spec: Heads, widths and rotation.
            window: Number of positions that a query sees.
            start: (batch,) int64, the stream position of the first token of each row.
            k_state: (batch, window - 1, num_kv_heads, head_dim), rotated keys before `start`; keys
                before position 0 are ignored.
            v_state: The same for values.

        Returns:
            The output and the two states for the next call.
        """
        batch, tokens, _ = q.shape
        q = q.reshape(batch, tokens, spec.num_heads, spec.head_dim)
        k, v = (x.reshape(batch, tokens, spec.num_kv_heads, spec.head_dim) for x in (k, v))
        if spec.rope_theta is not None:
            positions = start.reshape(-1, 1) + self.arange(tokens)
            q, k = (_rotated(self, x, positions, spec.rope_theta) for x in (q, k))
        keys, values = self.concat([k_state, k], 1), self.concat([v_state, v], 1)
        # key j is at stream position start - past + j, query i at start + i
        past = window - 1
        j, i = np.arange(past + tokens), np.arange(tokens)[:, None]
        near = self.array(((j <= i + past) & (j >= i)).astype(np.int64)) > 0
        real = start.reshape(-1, 1, 1) + self.array(j - past) >= 0  # (batch, 1, keys)
        groups = spec.num_heads // spec.num_kv_heads
        q = q.reshape(batch, tokens, spec.num_kv_heads, groups * spec.head_dim)
        q = self.transpose(q, (0, 2, 1, 3)).reshape(batch, -1, tokens, groups, spec.head_dim)
        q = self.transpose(q, (0, 1, 3, 2, 4))  # (batch, kv_heads, groups, tokens, head_dim)
        by_head = self.transpose(keys, (0, 2, 3, 1)).reshape(batch, -1, 1, spec.head_dim, len(j))
        seen = (near & real).reshape(batch, 1, 1, tokens, len(j))
        scores = self.where(seen, (q @ by_head) * spec.head_dim**-0.5, float("-inf"))
        by_head = self.transpose(values, (0, 2, 1, 3)).reshape(batch, -1, 1, len(j), spec.head_dim)
        out = self.transpose(self.softmax(scores) @ by_head, (0, 3, 1, 2, 4))
        return out.reshape(batch, tokens, -1), keys[:, tokens:], values[:, tokens:]

    def relative_attention(
        self,
        q: Array,
        k: Array,
        v: Array,
        distances: Array,
        *,
        spec: AttentionSpec,
        biases: tuple[Array, Array],
        key_lengths: Array | None = None,
    ) -> Array:
        """Attend in both directions with relative positions, without a cache.

        The score of query i and key j is (q[i] + content) . k[j] + (q[i] + position) . d[i - j],
        times head_dim ** -0.5. Source: Transformer-XL (Dai et al. 2019), section 3.3.

        Args:
            q: (batch, tokens, num_heads * head_dim).
            k: The same shape; there are as many heads of keys as of queries.
            v: The same shape.
            distances: (2 * tokens - 1, num_heads * head_dim), d for i - j from tokens - 1 down to
                1 - tokens.
            spec: Heads and widths; there is no rotation or norm.
            biases: Content and position, (num_heads, head_dim) each.
            key_lengths: (batch,) int64 on the device, at least 1: hides the keys after each row's
                length. Only the mask depends on the values.

        Returns:
            An array like `q`.
        """
        batch, tokens, _ = q.shape
        heads, head_dim = spec.num_heads, spec.head_dim
        q, k, v = (x.reshape(batch, tokens, heads, head_dim) for x in (q, k, v))
        content, positional = (self.transpose(q + bias, (0, 2, 1, 3)) for bias in biases)
        d = self.transpose(distances.reshape(-1, heads, head_dim), (1, 2, 0))
        # by distance, which falls from row to row: one column more shifts each row by one
        relative = self.pad(positional @ d, 1, 0).reshape(batch, heads, 2 * tokens, tokens)
        relative = relative[:, :, 1:].reshape(batch, heads, tokens, 2 * tokens - 1)[..., :tokens]
        scores = (content @ self.transpose(k, (0, 2, 3, 1)) + relative) * head_dim**-0.5
        if key_lengths is not None:
            seen = self.arange(tokens) < key_lengths.reshape(-1, 1, 1, 1)
            scores = self.where(seen, scores, float("-inf"))
        out = self.softmax(scores) @ self.transpose(v, (0, 2, 1, 3))
        return self.transpose(out, (0, 2, 1, 3)).reshape(batch, tokens, heads * head_dim)


def divide(qkv: Array, spec: AttentionSpec) -> tuple[Array, Array, Array]:
    """Split the result of one product into queries, keys and values, (..., width) each."""
    k_start = spec.num_heads * spec.head_dim
    v_start = k_start + spec.num_kv_heads * spec.head_dim
    return qkv[..., :k_start], qkv[..., k_start:v_start], qkv[..., v_start:]


def _rotated(ops: AudioOps, x: Array, positions: Array, theta: float) -> Array:
    """Rotate (batch, tokens, heads, head_dim): the first half of a head pairs with the second."""
    half = x.shape[-1] // 2
    frequencies = theta ** (-np.arange(half) / half)
    angles = ops.cast(positions)[..., None, None] * ops.array(frequencies, wide=True)
    cos, sin = ops.cast(cosine(ops, angles), x), ops.cast(ops.sin(angles), x)
    first, second = x[..., :half], x[..., half:]
    return ops.concat([first * cos - second * sin, second * cos + first * sin], -1)
