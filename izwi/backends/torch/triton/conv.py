"""Convolutions of streams, in Triton, fused with the operations before and after them.

Arrays are (batch, channels, time) by shape, as everywhere, but the results are channels-last in
memory: a transposed contiguous (batch, time, channels). A tap of a convolution is then a shift by
whole rows, and a convolution is a matrix product that reads its rows in place.

Everything is summed in float32 and rounded once.
"""

from __future__ import annotations

# mypy: allow-untyped-calls
from typing import Any, TypeAlias

import torch
import triton
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from izwi.backends.torch.triton import conv_kernels as kernels
from izwi.backends.torch.triton.conv_tiles import (
    Tiles,
    even_part,
    main_part,
    tiles_for,
    unit_tiles_for,
)
from izwi.backends.torch.triton.launch import overlap_option
from izwi.backends.torch.triton.shared_memory import shared_bytes

# alpha and beta of a Snake; weight and bias of a convolution.
Snake: TypeAlias = tuple[Tensor, Tensor]
Conv: TypeAlias = tuple[Tensor, Tensor | None]


_MAX_SINGLE_TAPS = 16
# Values that one program of the kernels without a product processes.
_BLOCK = 2048


def takes(x: Tensor, weight: Tensor, groups: int = 1) -> bool:
    """Return whether `causal_conv1d` supports these shapes. Callers check the dtypes."""
    outputs, inputs, taps = weight.shape
    if groups > 1:
        return groups == outputs == x.shape[1] and inputs == 1
    if outputs == 1 and taps > _MAX_SINGLE_TAPS:
        return False
    return inputs % 16 == 0 and inputs == x.shape[1]


def takes_transposed(x: Tensor, weight: Tensor, stride: int) -> bool:
    """Return whether `causal_conv_transpose1d` supports these shapes."""
    inputs, _, taps = weight.shape
    return inputs % 16 == 0 and inputs == x.shape[1] and taps in (stride, 2 * stride)


def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    state: Tensor,
    *,
    dilation: int = 1,
    groups: int = 1,
    snake: Snake | None = None,
) -> tuple[Tensor, Tensor]:
    """Convolve a stream, its new columns through Snake first if there is one.

    Args:
        x: (batch, channels, time), of any strides; channels-last is the fastest.
        weight: (out, channels / groups, taps), of the dtype of `x`; see `takes`.
        bias: (out,).
        state: (batch, channels, (taps - 1) * dilation), of any strides: the columns that were
            convolved before, that is, after Snake.
        dilation: Columns between two taps.
        groups: 1, or as many as channels and outputs.
        snake: Its alpha and beta, (channels,) each.

    Returns:
        (batch, out, time), channels-last, and the next state, contiguous.
    """
    outputs, _, taps = weight.shape
    if outputs == 1 and groups == 1:
        return _single(x, weight, bias, state, dilation, snake)
    joined, after = _join(x, state, snake)
    batch, channels, time = x.shape
    if groups == 1:
        out = _convolve(joined, _by_output(weight), bias, time, dilation, taps)
        return out.transpose(1, 2), after
    out = x.new_empty((batch, time, channels))
    rows, width = _block_of(channels)
    _launch(
        kernels.by_channel,
        (triton.cdiv(batch * time, rows), triton.cdiv(channels, width)),
        (joined, _by_tap(weight), bias, out, batch * time, time, joined.shape[1], dilation),
        CHANNELS=channels,
        TAPS=taps,
        ROWS=rows,
        WIDTH=width,
    )
    return out.transpose(1, 2), after


def causal_conv_transpose1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    state: Tensor,
    *,
    stride: int,
    snake: Snake | None = None,
) -> tuple[Tensor, Tensor]:
    """Upsample a stream, its new columns through Snake first if there is one.

    Args:
        x: (batch, channels, time), of any strides; channels-last is the fastest.
        weight: (channels, out, stride) or (channels, out, 2 * stride).
        bias: (out,).
        state: (batch, channels, 0), or (batch, channels, 1) for the longer kernel.
        stride: Output columns of one input column.
        snake: Its alpha and beta, (channels,) each.

    Returns:
        (batch, out, time * stride), channels-last, and the next state, contiguous.
    """
    batch, _, time = x.shape
    joined, after = _join(x, state, snake)
    # the stride * out outputs of a column are its `stride` columns of channels-last output
    spread = _transposed_by_output(weight, stride)
    out = _convolve(joined, spread, bias, time, 1, weight.shape[2] // stride)
    return out.view(batch, time * stride, -1).transpose(1, 2), after


def residual_unit(
    x: Tensor,
    first_snake: Snake,
    first: Conv,
    second_snake: Snake,
    second: Conv,
    state: Tensor,
    *,
    dilation: int,
) -> tuple[Tensor, Tensor]:
    """Compute x + second(snake(first(snake(x)))), where `second` has a kernel of 1.

    Args:
        x: (batch, channels, time), of any strides; channels-last is the fastest.
        first_snake: alpha and beta, (channels,) each.
        first: Weight (channels, channels, taps) and bias of a causal convolution; the channels
            are a multiple of 16.
        second_snake: alpha and beta.
        second: Weight (channels, channels, 1) and bias.
        state: Of `first`; see `causal_conv1d`.
        dilation: Of `first`.

    Returns:
        Like `x`, channels-last, and the next state, contiguous.
    """
    rows = _last(x)
    joined, after = _join(x, state, first_snake)
    (weight, bias), (weight_2, bias_2) = first, second
    _, time, channels = rows.shape
    taps = weight.shape[2]
    count = rows.shape[0] * time
    tiles = unit_tiles_for(count, channels, shared_bytes(x.device) // x.element_size())
    if tiles is None or bias is None:
        y = _convolve(joined, _by_output(weight), bias, time, dilation, taps, snake=second_snake)
        out = _convolve(y, _by_output(weight_2), bias_2, time, 1, 1, residual=rows)
        return out.transpose(1, 2), after
    out = torch.empty_like(rows)
    inner = (_by_output(weight), bias, *second_snake, _by_output(weight_2), bias_2)
    _launch(
        kernels.unit,
        (triton.cdiv(count, tiles.rows),),
        (joined, *inner, rows, out, count, time, joined.shape[1], dilation),
        CHANNELS=channels,
        MAIN=main_part(channels),
        TAPS=taps,
        BLOCK_ROWS=tiles.rows,
        **_loop(tiles, channels),
    )
    return out.transpose(1, 2), after


# -- weights as the kernels read them --------------------------------------------------------
_arranged: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def _cache_derived(weight: Tensor, arranged: Tensor) -> Tensor:
    """Cache an array derived from a weight for as long as the weight exists.

    An array made while a graph is captured has no values before its launch, so it is not cached.
    """
    if not (weight.is_cuda and torch.cuda.is_current_stream_capturing()):
        _arranged[weight] = arranged
    return arranged


def _by_output(weight: Tensor) -> Tensor:
    """(out, in, taps) as (out, taps, in)."""
    if weight.shape[2] == 1 and weight.is_contiguous():
        return weight
    known: Tensor | None = _arranged.get(weight)
    return _cache_derived(weight, weight.transpose(1, 2).contiguous()) if known is None else known


def _by_tap(weight: Tensor) -> Tensor:
    """(channels, 1, taps) as (taps, channels)."""
    known: Tensor | None = _arranged.get(weight)
    return _cache_derived(weight, weight[:, 0].t().contiguous()) if known is None else known


def _transposed_by_output(weight: Tensor, stride: int) -> Tensor:
    """(in, out, kernel) as (stride * out, taps, in), the oldest of the taps first."""
    known: Tensor | None = _arranged.get(weight)
    if known is not None:
        return known
    inputs, outputs, kernel = weight.shape
    split = weight.reshape(inputs, outputs, kernel // stride, stride).flip(2)
    arranged = split.permute(3, 1, 2, 0).reshape(stride * outputs, kernel // stride, inputs)
    return _cache_derived(weight, arranged.contiguous())


# -- launches --------------------------------------------------------------------------------
def _last(x: Tensor) -> Tensor:
    """Return (batch, channels, time) as contiguous (batch, time, channels), copied if necessary."""
    return x.transpose(1, 2).contiguous()


def _join(x: Tensor, state: Tensor, snake: Snake | None) -> tuple[Tensor, Tensor]:
    """State and snake(x), (batch, past + time, channels), and the next state."""
    batch, channels, time = x.shape
    past = state.shape[2]
    after = x.new_empty((batch, channels, past))
    if past == 0 and snake is None:
        return _last(x), after
    length = past + time
    joined = x.new_empty((batch, length, channels))
    rows, width = _block_of(channels)
    _launch(
        kernels.join,
        (triton.cdiv(batch * length, rows), triton.cdiv(channels, width)),
        (x, state, *(snake or (None, None)), joined, after, *_sizes(x, state)),
        CHANNELS=channels,
        PAST=past,
        ROWS=rows,
        WIDTH=width,
    )
    return joined, after


def _convolve(
    joined: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    time: int,
    dilation: int,
    taps: int,
    *,
    snake: Snake | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """(batch, time, outputs) of (batch, past + time, channels): residual + snake(convolution)."""
    batch, length, channels = joined.shape
    outputs, rows = weight.shape[0], batch * time
    most_numbers = shared_bytes(joined.device) // joined.element_size()
    tiles = tiles_for(rows, outputs, channels, taps, most_numbers)
    out = joined.new_empty((batch, time, outputs))
    behind: tuple[Tensor | None, ...] = (bias, *(snake or (None, None)), residual)
    # a transposed convolution has `stride` outputs to each bias
    shape = {"OUTPUTS": outputs, "CHANNELS_OUT": outputs if bias is None else len(bias)}
    sums, now = out, behind
    if tiles.slices > 1:  # the next operation has to wait for all of them
        sums = out.new_empty((tiles.slices, rows, outputs), dtype=torch.float32)
        now = (None, None, None, None)
    _launch(
        kernels.convolve,
        (triton.cdiv(rows, tiles.rows) * triton.cdiv(outputs, tiles.outputs), tiles.slices),
        (joined, weight, *now, sums, rows, time, length, dilation),
        CHANNELS=channels,
        TAPS=taps,
        BLOCK_ROWS=tiles.rows,
        BLOCK_OUTPUTS=tiles.outputs,
        SLICES=tiles.slices,
        **shape,
        **_loop(tiles, channels),
    )
    if tiles.slices > 1:
        grid = (triton.cdiv(rows, 8), triton.cdiv(outputs, 128))
        _launch(
            kernels.add_slices,
            grid,
            (sums, *behind, out, rows),
            SLICES=tiles.slices,
            ROWS=8,
            WIDTH=128,
            **shape,
        )
    return out


def _single(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    state: Tensor,
    dilation: int,
    snake: Snake | None,
) -> tuple[Tensor, Tensor]:
    """Compute a causal convolution to one output: each column is read once, by all taps."""
    batch, channels, time = x.shape
    past, taps = state.shape[2], weight.shape[2]
    length = past + time
    after = x.new_empty((batch, channels, past))
    products = x.new_empty((batch, length, taps), dtype=torch.float32)
    out = x.new_empty((batch, time, 1))
    _launch(
        kernels.join_product,
        (triton.cdiv(batch * length, 64),),
        (
            x,
            state,
            *(snake or (None, None)),
            _by_output(weight),
            products,
            after,
            *_sizes(x, state),
        ),
        CHANNELS=channels,
        PAST=past,
        TAPS=taps,
        ROWS=64,
        WIDTH=min(64, even_part(channels)),
    )
    _launch(
        kernels.add_taps,
        (triton.cdiv(batch * time, 256),),
        (products, bias, out, batch * time, time, length, dilation),
        TAPS=taps,
        ROWS=256,
    )
    return out.transpose(1, 2), after


def _block_of(channels: int) -> tuple[int, int]:
    """Rows and channels of one program of a kernel without a product."""
    width = min(256, even_part(channels)) if channels % 16 == 0 else 32
    return _BLOCK // width, width


def _sizes(x: Tensor, state: Tensor) -> tuple[int, ...]:
    """Rows, columns and strides for the kernels that join."""
    batch, _, time = x.shape
    length = state.shape[2] + time
    strides = (x.stride(0), x.stride(2), x.stride(1), *state.stride())
    return (batch * length, time, length, *strides)


def _loop(tiles: Tiles, channels: int) -> dict[str, int]:
    """Arguments of a kernel with a loop over the depth."""
    depth = min(tiles.depth, even_part(channels))
    return {"DEPTH": depth, "STAGES": tiles.stages, "num_warps": tiles.warps}


def _launch(
    kernel: Any, grid: tuple[int, ...], arguments: tuple[Tensor | int | None, ...], **constants: int
) -> None:
    first = arguments[0]
    assert isinstance(first, Tensor)
    options = overlap_option(first.device)
    kernel[grid](*arguments, OVERLAPPED=bool(options), **constants, **options)
