"""Operations that audio encoders and codecs need beyond the core. Part of `Ops`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from izwi.ops.protocol import Array, AttentionSpec


class AudioOps(Protocol):
    """What is used by few models and is worth an operation: its composition would be slow."""

    def conv2d(
        self,
        x: Array,
        weight: Array,
        bias: Array | None,
        *,
        stride: int,
        padding: int,
        groups: int = 1,
    ) -> Array:
        """Plain convolution of (batch, channels, height, width)."""
        ...

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
        """Attend both ways with relative positions, without a cache.

        The score of query i and key j is (q[i] + content) . k[j] + (q[i] + position) . d[i - j],
        times head_dim ** -0.5. Source: Transformer-XL (Dai et al. 2019), section 3.3.

        Args:
            q: (batch, tokens, num_heads * head_dim).
            k: The same shape; there are as many heads of keys as of queries.
            v: The same shape.
            distances: (2 * tokens - 1, num_heads * head_dim), d for i - j from tokens - 1 down to
                1 - tokens.
            spec: Heads and widths; nothing is rotated or normalised.
            biases: Content and position, (num_heads, head_dim) each.
            key_lengths: (batch,) int64 on the device, at least 1: hides the keys past each row's
                length. Nothing else depends on the values.

        Returns:
            Like `q`.
        """
        ...

    def spectral_frames(self, x: Array, weight: Array, bias: Array) -> Array:
        """Turn hidden states into windowed frames of samples, ready for overlap-add.

        A projection gives log magnitudes and angles (radians) of each frame's spectrum, which is
        transformed back and multiplied by a periodic Hann window. All of it is float32 whatever
        the dtype of `x`: an angle of some turns has no bfloat16 that is worth hearing.
        Source: the inverse STFT head of Vocos (Siuzdak 2023), without its bound on magnitudes.

        Args:
            x: (..., in).
            weight: (n + 2, in), n even: n / 2 + 1 log magnitudes, then as many angles.
            bias: (n + 2,).

        Returns:
            (..., n) float32.
        """
        ...
