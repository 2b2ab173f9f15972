"""Operations of audio encoders and codecs in MLX."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from izwi.ops.protocol import AttentionSpec


class MlxAudioOps:
    """What `MlxOps` takes instead of compositions."""

    def conv2d(
        self,
        x: mx.array,
        weight: mx.array,
        bias: mx.array | None,
        *,
        stride: int,
        padding: int,
        groups: int = 1,
    ) -> mx.array:
        last, taps = mx.transpose(x, (0, 2, 3, 1)), mx.transpose(weight, (0, 2, 3, 1))
        out = mx.conv2d(last, taps, stride, padding, 1, groups)
        return mx.transpose(out if bias is None else out + bias, (0, 3, 1, 2))

    def relative_attention(
        self,
        q: mx.array,
        k: mx.array,
        v: mx.array,
        distances: mx.array,
        *,
        spec: AttentionSpec,
        biases: tuple[mx.array, mx.array],
        key_lengths: mx.array | None = None,
    ) -> mx.array:
        batch, tokens, _ = q.shape
        heads, head_dim = spec.num_heads, spec.head_dim
        scale = head_dim**-0.5
        q, k, v = (x.reshape(batch, tokens, heads, head_dim).swapaxes(1, 2) for x in (q, k, v))
        positional = (q + biases[1][:, None]) * scale
        d = mx.transpose(distances.reshape(-1, heads, head_dim), (1, 2, 0))
        scores = positional @ d  # (batch, heads, queries, distances)
        # distance i - j of query i and key j stands at tokens - 1 - (i - j)
        at = np.arange(tokens)[None, :] - np.arange(tokens)[:, None] + tokens - 1
        index = mx.broadcast_to(mx.array(at)[None, None], (batch, heads, tokens, tokens))
        mask = mx.take_along_axis(scores, index, axis=-1)
        if key_lengths is not None:
            seen = mx.arange(tokens) < key_lengths[:, None]
            mask = mx.where(seen[:, None, None], mask, mx.array(-np.inf, dtype=mask.dtype))
        out = mx.fast.scaled_dot_product_attention(
            q + biases[0][:, None], k, v, scale=scale, mask=mask
        )
        return out.swapaxes(1, 2).reshape(batch, tokens, heads * head_dim)

    def spectral_frames(self, x: mx.array, weight: mx.array, bias: mx.array) -> mx.array:
        wide = x.astype(mx.float32) @ weight.astype(mx.float32).T + bias.astype(mx.float32)
        log_magnitude, angle = mx.split(wide, 2, axis=-1)
        magnitude, length = mx.exp(log_magnitude), weight.shape[0] - 2
        spectrum = magnitude * mx.cos(angle) + 1j * (magnitude * mx.sin(angle))
        window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(length) / length)
        return mx.fft.irfft(spectrum, length) * mx.array(window.astype(np.float32))
