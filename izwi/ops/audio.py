"""Operations of codecs and audio encoders: compositions of the core that a backend may replace."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from izwi.ops.arithmetic import ArithmeticOps
from izwi.ops.core import Array, AttentionContext, Conv, Snake


class AudioOps(ArithmeticOps, Protocol):
    """Convolutions of streams and images, and spectra, over (batch, channels, time)."""

    def snake(self, x: Array, alpha: Array, beta: Array) -> Array:
        """Compute SnakeBeta per channel: x + sin(x * exp(alpha)) ** 2 / (exp(beta) + 1e-9)."""
        wave = self.sin(x * self.exp(alpha).reshape(-1, 1))
        return x + (1.0 / (self.exp(beta) + 1e-9)).reshape(-1, 1) * (wave * wave)

    def causal_conv1d(
        self,
        x: Array,
        weight: Array,
        bias: Array | None,
        state: Array,
        *,
        dilation: int = 1,
        groups: int = 1,
        snake: Snake | None = None,
    ) -> tuple[Array, Array]:
        """Convolve a stream: `state` has the (kernel - 1) * dilation columns before `x`.

        Zeros as state are the start of a stream. With `snake`, its alpha and beta, `x` goes through
        Snake first, and the state has the columns after Snake. Returns the output, as long as `x`,
        and the state for the next call.
        """
        x = x if snake is None else self.snake(x, *snake)
        past = state.shape[-1]
        joined = self.concat([state, x], -1) if past else x
        out = self.conv1d(joined, weight, bias, dilation=dilation, groups=groups)
        return out, joined[..., joined.shape[-1] - past :]

    def causal_conv_transpose1d(
        self,
        x: Array,
        weight: Array,
        bias: Array | None,
        state: Array,
        *,
        stride: int,
        snake: Snake | None = None,
    ) -> tuple[Array, Array]:
        """Upsample a stream; weight is (in, out, kernel) with kernel stride or 2 * stride.

        `state` has the input column before `x`, or no column if the kernel equals the stride;
        `snake` as in `causal_conv1d`. Returns (batch, out, time * stride) and the state for the
        next call.
        """
        x = x if snake is None else self.snake(x, *snake)
        channels, outputs, taps = weight.shape
        past, time = state.shape[-1], x.shape[-1]
        joined = self.concat([state, x], -1) if past else x
        # each column of the output depends on one or two of the input: `stride` convolutions
        reach = weight.reshape(channels, outputs, taps // stride, stride)
        latest_last = [reach[:, :, back : back + 1] for back in reversed(range(taps // stride))]
        each = self.transpose(self.concat(latest_last, 2), (1, 3, 0, 2))
        out = self.conv1d(joined, each.reshape(outputs * stride, channels, taps // stride))
        out = self.transpose(out.reshape(-1, outputs, stride, time), (0, 1, 3, 2))
        out = out.reshape(-1, outputs, time * stride)
        kept = joined[..., joined.shape[-1] - past :]
        return out if bias is None else out + bias.reshape(-1, 1), kept

    def residual_unit(
        self,
        x: Array,
        snakes: tuple[Snake, Snake],
        convs: tuple[Conv, Conv],
        state: Array,
        *,
        dilation: int,
    ) -> tuple[Array, Array]:
        """Compute a stream of x + conv(snake(causal_conv(snake(x)))).

        Args:
            x: (batch, channels, time).
            snakes: alpha and beta of the Snakes before the first and the second convolution.
            convs: Weight and bias of the causal convolution and of the one with a kernel of 1.
            state: State of the causal convolution with its Snake; see `causal_conv1d`.
            dilation: Dilation of the causal convolution.

        Returns:
            An array like `x`, and the state for the next call.
        """
        y, after = self.causal_conv1d(x, *convs[0], state, dilation=dilation, snake=snakes[0])
        return x + self.conv1d(self.snake(y, *snakes[1]), *convs[1]), after

    def gated_short_conv(
        self, projected: Array, weight: Array, *, context: AttentionContext, layer: int
    ) -> Array:
        """Compute the operator of LFM2: a short convolution with gated input and output.

        Args:
            projected: (positions, 3 * channels): gate of the input, gate of the output, input.
            weight: (channels, width), weight of the convolution.
            context: The context of attention in the same step.
            layer: Index among the model's short convolutions.

        Returns:
            (positions, channels).
        """
        width = weight.shape[0]
        gate_in, gate_out, x = (projected[..., n * width : (n + 1) * width] for n in range(3))
        return gate_out * self.short_conv(gate_in * x, weight, context=context, layer=layer)

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
        """Convolve (batch, channels, height, width) without padding."""
        batch, channels, height, width = x.shape
        outputs, _, taps, _ = weight.shape
        edge = self.cast(self.zeros((batch, channels, padding, width)), x)
        x = self.pad(self.concat([edge, x, edge], 2), padding, padding)
        count = (height + 2 * padding - taps) // stride + 1
        out: Array = 0.0
        for tap in range(taps):  # a row of the kernel over its rows of the picture
            rows = x[:, :, tap : tap + (count - 1) * stride + 1 : stride]
            rows = self.transpose(rows, (0, 2, 1, 3)).reshape(batch * count, channels, -1)
            out = out + self.conv1d(rows, weight[:, :, tap], stride=stride, groups=groups)
        out = self.transpose(out.reshape(batch, count, outputs, -1), (0, 2, 1, 3))
        return out if bias is None else out + bias.reshape(-1, 1, 1)

    def spectral_frames(self, x: Array, weight: Array, bias: Array) -> Array:
        """Turn hidden states into windowed frames of samples, ready for overlap-add.

        A projection gives log magnitudes and angles (radians) of each frame's spectrum, which is
        transformed back and multiplied by a periodic Hann window. All of it is float32 for any
        dtype of `x`, because bfloat16 is too coarse for angles of several turns. Source: the
        inverse STFT head of Vocos (Siuzdak 2023), without its bound on magnitudes.

        Args:
            x: (..., in).
            weight: (n + 2, in), n even: n / 2 + 1 log magnitudes, then as many angles.
            bias: (n + 2,).

        Returns:
            (..., n) float32.
        """
        length = weight.shape[0] - 2
        half = length // 2 + 1
        spectrum = self.linear(self.cast(x), self.cast(weight), self.cast(bias))
        magnitude, angle = self.exp(spectrum[..., :half]), spectrum[..., half:]
        # the inverse transform as two products; the window is in their weights
        time, bins = np.arange(length), np.arange(half)
        turns = 2 * np.pi * time[:, None] * bins / length
        scale = (0.5 - 0.5 * np.cos(2 * np.pi * time / length))[:, None] / length
        scale = scale * np.where((bins == 0) | (2 * bins == length), 1.0, 2.0)
        real = self.linear(
            magnitude * cosine(self, angle), self.array(scale * np.cos(turns), wide=True)
        )
        sines = self.array(scale * np.sin(turns), wide=True)
        return real - self.linear(magnitude * self.sin(angle), sines)


def cosine(ops: ArithmeticOps, x: Array) -> Array:
    """Compute the cosine of radians; the sine of x + pi / 2 would round large angles twice."""
    half = ops.sin(0.5 * x)
    return 1.0 - 2.0 * (half * half)
