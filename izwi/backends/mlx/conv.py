"""Convolutions of (batch, channels, columns) in MLX, which itself has channels last."""

from __future__ import annotations

import mlx.core as mx

# Products of one output column that make it worth to transform inputs and weights, for all columns
# of one stream: about two frames of a codec. Streams of a batch do not count, so that a stream has
# the same bits in any batch.
_LEAST_PRODUCTS = 1 << 20


def conv1d(
    x: mx.array,
    weight: mx.array,
    bias: mx.array | None,
    *,
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
) -> mx.array:
    """Convolve without padding; weight is (out, in / groups, kernel)."""
    if weight.shape[-1] == 1 and stride == 1 and groups == 1:
        out = weight[:, :, 0] @ x
    elif groups == 1 and mx.default_device().type == mx.cpu:
        outputs, channels, kernel = weight.shape
        columns = x.shape[2] - (kernel - 1) * dilation
        if kernel == 7 and stride == 1 and outputs * channels * columns >= _LEAST_PRODUCTS:
            out = _seven_taps(x, weight, dilation)
        else:
            out = _as_product(x, weight, stride, dilation)
    else:
        last, taps = x.swapaxes(1, 2), weight.swapaxes(1, 2)
        out = mx.conv1d(last, taps, stride, 0, dilation, groups).swapaxes(1, 2)
    return out if bias is None else out + bias[:, None]


def _as_product(x: mx.array, weight: mx.array, stride: int, dilation: int) -> mx.array:
    """Convolve as one product over a copy of the windows, for a CPU.

    `mx.conv1d` takes five times as long with a dilation. The weight is on the left because the
    reference BLAS is two to three times as fast if neither side is transposed.

    Args:
        x: (batch, channels, columns).
        weight: (out, channels, kernel).
        stride: Stride of the windows.
        dilation: Dilation of their columns.
    """
    outputs, channels, kernel = weight.shape
    count = (x.shape[2] - (kernel - 1) * dilation - 1) // stride + 1
    starts = [tap * dilation for tap in range(kernel)]
    parts = [x[:, :, start : start + (count - 1) * stride + 1 : stride] for start in starts]
    taps_first = weight.swapaxes(1, 2).reshape(outputs, kernel * channels)
    return taps_first @ mx.concatenate(parts, axis=1)


def _seven_taps(x: mx.array, weight: mx.array, dilation: int) -> mx.array:
    """Convolve with seven taps by 10 products for two columns of the output, not 14, for a CPU.

    Winograd's F(2, 3): with three taps w, the columns y0 = w0 x0 + w1 x1 + w2 x2 and
    y1 = w0 x1 + w1 x2 + w2 x3 are a + b + c and b - c - d, where a = w0 (x0 - x2),
    b = (w0 + w1 + w2) / 2 (x1 + x2), c = (w0 - w1 + w2) / 2 (x2 - x1), d = w2 (x1 - x3). Taps 0 to
    2 and 3 to 5 go this way; tap 6 is added to the first and the last product.

    Args:
        x: (batch, channels, columns + 6 * dilation).
        weight: (out, channels, 7).
        dilation: Distance of two taps, and of the two columns.

    Returns:
        (batch, out, columns); rounding differs by whether a column is a first or a second one.
    """
    batch, channels, length = x.shape
    columns = length - 6 * dilation
    blocks = -(-columns // (2 * dilation))
    missing = (blocks + 3) * 2 * dilation - length
    x = mx.pad(x, [(0, 0), (0, 0), (0, missing)]) if missing else x
    pairs = x.reshape(batch, channels, blocks + 3, 2, dilation)
    # input 2 m of block n is even[n + m], input 2 m + 1 is odd[n + m]
    even, odd = pairs[:, :, :, 0], pairs[:, :, :, 1]  # (batch, channels, blocks + 3, dilation)
    falls = even[:, :, :-1] - even[:, :, 1:], odd[:, :, :-1] - odd[:, :, 1:]
    sums = odd[:, :, :-1] + even[:, :, 1:], even + odd
    rises = even[:, :, 1:] - odd[:, :, :-1], odd - even

    def inputs(*parts: tuple[mx.array, int]) -> mx.array:
        chosen = [part[:, :, first : first + blocks] for part, first in parts]
        return mx.concatenate(chosen, axis=1).reshape(batch, -1, blocks * dilation)

    taps = [weight[:, :, tap] for tap in range(7)]
    outer = [0.5 * (taps[n] + taps[n + 2]) for n in (0, 3)]
    inner = [0.5 * taps[n + 1] for n in (0, 3)]
    a = mx.concatenate([taps[0], taps[3], taps[6]], axis=1) @ inputs(
        (falls[0], 0), (falls[1], 1), (even, 3)
    )
    b = mx.concatenate([outer[n] + inner[n] for n in (0, 1)], axis=1) @ inputs(
        (sums[0], 0), (sums[1], 2)
    )
    c = mx.concatenate([outer[n] - inner[n] for n in (0, 1)], axis=1) @ inputs(
        (rises[0], 0), (rises[1], 2)
    )
    d = mx.concatenate([taps[2], taps[5], -taps[6]], axis=1) @ inputs(
        (falls[1], 0), (falls[0], 2), (odd, 3)
    )
    halves = [half.reshape(batch, -1, blocks, dilation) for half in (a + (b + c), (b - c) - d)]
    return mx.stack(halves, axis=3).reshape(batch, len(weight), -1)[:, :, :columns]


def conv_transpose1d(x: mx.array, weight: mx.array, bias: mx.array | None, stride: int) -> mx.array:
    """Compute a transposed convolution, kernel stride or 2 * stride; weight is (in, out, kernel).

    A product gives the output of each column; overlapping halves of neighbours are added.

    Returns:
        (batch, out, columns * stride), or stride columns more for the longer kernel.
    """
    channels, outputs, taps = weight.shape
    batch, _, columns = x.shape
    spread = x.swapaxes(1, 2) @ weight.reshape(channels, outputs * taps)
    pieces = spread.reshape(batch, columns, outputs, taps)
    if taps > stride:
        pieces = mx.pad(pieces[..., :stride], [(0, 0), (0, 1), (0, 0), (0, 0)]) + mx.pad(
            pieces[..., stride:], [(0, 0), (1, 0), (0, 0), (0, 0)]
        )
    out = mx.transpose(pieces, (0, 2, 1, 3)).reshape(batch, outputs, -1)
    return out if bias is None else out + bias[:, None]
