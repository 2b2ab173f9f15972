"""Convolutions of (batch, channels, columns) in MLX, which itself has channels last."""

from __future__ import annotations

import mlx.core as mx


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
