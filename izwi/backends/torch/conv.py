"""Convolutions whose bits do not depend on the batch, on a CPU, in torch.

oneDNN uses other kernels for a batch of short rows than for a single row, and they round
differently. Where it does so, the convolution is computed as one matrix product over all rows,
whose rounding does not depend on the batch (ADR 5). Elsewhere torch's own convolution is used.
"""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812 (torch's own name for it)
from torch import Tensor, from_numpy, matmul

from izwi.backends.torch.host_arrays import is_host_array, padded_rows

# Observed with torch 2.13: rows with fewer columns and at least this many channels are affected.
_SHORT_COLUMNS = 256
_WIDE_CHANNELS = 64
_WIDE_TRANSPOSED_CHANNELS = 192
# Dilated rows with fewer columns are also faster as a product.
_SHORT_DILATED_COLUMNS = 512


def conv1d(x: Tensor, weight: Tensor, bias: Tensor | None, dilation: int, groups: int) -> Tensor:
    """Convolve (batch, channels, columns) without padding."""
    taps = weight.shape[-1]
    if x.device.type == "cpu" and groups == 1:
        columns = x.shape[-1] - (taps - 1) * dilation
        if taps == 1:
            # broadcast to one product a row: pointwise, there is nothing to gather
            out = matmul(weight[:, :, 0], x)
            return out if bias is None else out + bias[:, None]
        limit = _SHORT_COLUMNS if dilation == 1 else _SHORT_DILATED_COLUMNS
        if columns < limit and x.shape[1] >= _WIDE_CHANNELS:
            return _as_product(x, weight, bias, dilation, columns)
    return F.conv1d(x, weight, bias, dilation=dilation, groups=groups)


def conv_transpose1d(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int) -> Tensor:
    """Transposed convolution of (batch, channels, columns), kernel stride or 2 * stride.

    Returns:
        (batch, out, columns * stride), or stride columns more for the longer kernel.
    """
    channels, outputs, taps = weight.shape
    if x.device.type != "cpu" or channels < _WIDE_TRANSPOSED_CHANNELS:
        return F.conv_transpose1d(x, weight, bias, stride=stride)
    batch, _, columns = x.shape
    rows = x.transpose(1, 2).reshape(batch * columns, channels)
    spread = linear_in_fours(rows, weight.reshape(channels, outputs * taps).t(), None)
    pieces = spread.view(batch, columns, outputs, taps)
    if taps > stride:  # the second half of each column's reach falls on the next one
        pieces = F.pad(pieces[..., :stride], (0, 0, 0, 0, 0, 1)) + F.pad(
            pieces[..., stride:], (0, 0, 0, 0, 1, 0)
        )
    out = pieces.permute(0, 2, 1, 3).reshape(batch, outputs, -1)
    return out if bias is None else out + bias[:, None]


def linear_in_fours(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute `F.linear` of (rows, channels), padded to a multiple of four rows.

    MKL computes the last one to three rows of a thread's share with other kernels, which round
    differently, so that a row's bits would depend on its batch. Groups of four avoid that.
    """
    rows = x.shape[0]
    if rows % 4 == 0:
        return F.linear(x, weight, bias)
    if is_host_array(x):
        fours = from_numpy(padded_rows(x.numpy(), 4))
    else:
        fours = F.pad(x, (0, 0, 0, -rows % 4))
    return F.linear(fours, weight, bias)[:rows]


def _as_product(
    x: Tensor, weight: Tensor, bias: Tensor | None, dilation: int, columns: int
) -> Tensor:
    """Convolve by one matrix product over a copy of the windows of all rows."""
    batch, channels, _ = x.shape
    reach = (weight.shape[-1] - 1) * dilation + 1
    windows = x.transpose(1, 2).unfold(1, reach, 1)[..., ::dilation]  # (batch, columns, in, taps)
    flat = windows.reshape(batch * columns, channels * weight.shape[-1])
    out = linear_in_fours(flat, weight.flatten(1), bias)
    return out.view(batch, columns, -1).transpose(1, 2)
