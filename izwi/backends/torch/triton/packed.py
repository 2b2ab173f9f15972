"""Products of a few rows with 4-bit weights, two in a byte.

As in `linear`, except that a byte is multiplied with two inputs, which are half a row apart, and
each group of inputs has a scale. Integers from -8 to 7 are exact in every dtype, so a group is
summed unscaled and then scaled, in float32.

x is (rows, 2 * HALF), weight (OUTPUTS, HALF) bytes and scale (OUTPUTS, 2 * HALF / GROUP), or twice
as many rows if GATED. A program computes BLOCK outputs of all rows.
"""

from __future__ import annotations

# ruff: noqa: N803, N806 (constants of a kernel are upper case)
# mypy: allow-untyped-decorators, allow-untyped-calls, allow-untyped-defs, allow-incomplete-defs
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from izwi.backends.torch.quantized import PackedWeight
from izwi.backends.torch.triton.launch import (
    lines_of,
    overlap_option,
    start_next,
    wait_for_previous,
)
from izwi.backends.torch.triton.linear_kernels import addend, prefetch, write
from izwi.backends.torch.triton.rows import rms_norm

# Minimum number of inputs of a matrix unit.
_SMALLEST_GROUP = 16
# Up to this number of rows, products are computed one by one; more use matrix units.
_FEW_ROWS = 2
# Outputs of one program, bytes of a row in one pass, and its warps: not tuned yet.
_FEW_OUTPUTS, _FEW_BYTES, _MANY_OUTPUTS, _WARPS, _STAGES = 2, 1024, 32, 4, 4
_WIDENED_BYTES = 512


def takes_packed(weight: PackedWeight) -> bool:
    """Return whether the kernels support groups of this size."""
    return weight.group >= _SMALLEST_GROUP


def packed_product(
    x: Tensor,
    weight: PackedWeight,
    out: Tensor,
    bucket: int,
    *,
    bias: Tensor | None,
    norm: Tensor | None,
    eps: float | None,
    residual: Tensor | None,
    gated: bool,
) -> None:
    """Compute into `out` what `linear.linear` or `gated_linear` returns.

    Args:
        x: (rows, inputs).
        weight: A weight that `takes_packed` accepts.
        out: (rows, outputs).
        bucket: Number of rows that the kernel is compiled for.
        bias: (outputs,).
        norm: (inputs,), or None.
        eps: Of the norm, or None for no norm.
        residual: (rows, outputs).
        gated: Whether the rows of a gate come first in the weight.
    """
    outputs, half = out.shape[1], weight.values.shape[1]
    few = bucket <= _FEW_ROWS
    # a program of many rows would spend longer on the norm
    if eps is not None and (norm is None or not few):
        x, norm = rms_norm(x, norm, eps), None
    options = overlap_option(x.device)
    sizes: dict[str, Any] = {
        "rows": x.shape[0],
        "x_stride": x.stride(0),
        "residual_stride": 0 if residual is None else residual.stride(0),
        "OUTPUTS": outputs,
        "HALF": half,
        "GROUP": weight.group,
        "ROWS": bucket,
        "GATED": gated,
        "LINES": lines_of(half),
        "OVERLAPPED": bool(options),
        "num_warps": _WARPS,
        **options,
    }
    arrays = (x, weight.values, weight.scale, bias, residual, out)
    if few:
        depth = min(_FEW_BYTES, half & -half)  # so that no pass needs a mask
        few_rows_packed[(triton.cdiv(outputs, _FEW_OUTPUTS),)](
            *arrays, norm, eps or 0.0, BLOCK=_FEW_OUTPUTS, DEPTH=depth, **sizes
        )
    else:
        many_rows_packed[(triton.cdiv(outputs, _MANY_OUTPUTS),)](
            *arrays, BLOCK=_MANY_OUTPUTS, STAGES=_STAGES, **sizes
        )


def widen_packed(weight: PackedWeight, dtype: torch.dtype) -> Tensor:
    """Return the weight in another dtype, (out, in), as `PackedWeight.wide` does, in one pass."""
    outputs, half = weight.values.shape
    out = torch.empty((outputs, 2 * half), dtype=dtype, device=weight.values.device)
    options = overlap_option(out.device)
    _widen_packed[(outputs, triton.cdiv(half, _WIDENED_BYTES))](
        weight.values,
        weight.scale,
        out,
        HALF=half,
        GROUP=weight.group,
        BLOCK=_WIDENED_BYTES,
        OVERLAPPED=bool(options),
        num_warps=4,
        **options,
    )
    return out


@triton.jit
def _numbers(packed):
    """Return the integers in the lower and upper halves of bytes, int8."""
    return (packed & 15).to(tl.int8) - 8, (packed >> 4).to(tl.int8) - 8


@triton.jit
def _scaled(weight_rows, scale_rows, j, group, GROUPS: tl.constexpr):
    """Return the float32 values of bytes j of some groups, lower and upper halves.

    The scales have two axes: with three, each thread would load a scale for every byte.
    """
    lower, upper = _numbers(tl.load(weight_rows + j))
    by, by_upper = tl.load(scale_rows + group), tl.load(scale_rows + GROUPS // 2 + group)
    return lower.to(tl.float32) * by[:, :, None], upper.to(tl.float32) * by_upper[:, :, None]


@triton.jit
def few_rows_packed(
    x, weight, scale, bias, residual, out, norm, eps, rows, x_stride, residual_stride,
    OUTPUTS: tl.constexpr, HALF: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr, DEPTH: tl.constexpr, GATED: tl.constexpr, LINES: tl.constexpr,
    OVERLAPPED: tl.constexpr,
):  # fmt: skip
    """Multiply and add in registers, for one or two rows; tiles are (BLOCK, groups, GROUP)."""
    start_next(OVERLAPPED)
    n = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))[:, None]
    GROUPS: tl.constexpr = 2 * HALF // GROUP
    # outputs past the last one repeat it, so that loads need no mask; they are not written
    last = tl.minimum(n, OUTPUTS - 1).to(tl.int64)
    if OVERLAPPED:  # weights depend on no other kernel: they are loaded before the wait
        prefetch(weight + last * HALF, HALF, LINES)
        if GATED:
            prefetch(weight + (OUTPUTS + last) * HALF, HALF, LINES)
    wait_for_previous(OVERLAPPED)
    weight_rows, scale_rows = weight + last[:, :, None] * HALF, scale + last * GROUPS
    up_rows, up_scale_rows = weight_rows + OUTPUTS * HALF, scale_rows + OUTPUTS * GROUPS
    g = tl.arange(0, DEPTH // GROUP)[None, :]
    i = tl.arange(0, GROUP)[None, None, :]
    acc_0 = tl.zeros([BLOCK, DEPTH // GROUP, GROUP], tl.float32)
    acc_1, up_0, up_1 = acc_0, acc_0, acc_0
    squares_0 = tl.zeros([1, DEPTH // GROUP, GROUP], tl.float32)
    squares_1 = squares_0
    x_1 = x + (rows - 1) * x_stride  # the second of two rows
    added_0 = addend(bias, residual, n, 0, rows, residual_stride, OUTPUTS)
    added_1 = addend(bias, residual, n, ROWS - 1, rows, residual_stride, OUTPUTS)
    for start in tl.static_range(0, HALF, DEPTH):
        j, group = start + g[:, :, None] * GROUP + i, start // GROUP + g
        w, w_upper = _scaled(weight_rows, scale_rows, j, group, GROUPS)
        a, a_upper = tl.load(x + j).to(tl.float32), tl.load(x + HALF + j).to(tl.float32)
        b, b_upper = a, a_upper
        if ROWS == 2:
            b, b_upper = tl.load(x_1 + j).to(tl.float32), tl.load(x_1 + HALF + j).to(tl.float32)
        if norm is not None:
            squares_0 += a * a + a_upper * a_upper
            squares_1 += b * b + b_upper * b_upper
            gain = tl.load(norm + j).to(tl.float32)
            gain_upper = tl.load(norm + HALF + j).to(tl.float32)
            a, a_upper, b, b_upper = a * gain, a_upper * gain_upper, b * gain, b_upper * gain_upper
        acc_0 += a * w + a_upper * w_upper
        acc_1 += b * w + b_upper * w_upper
        if GATED:
            w, w_upper = _scaled(up_rows, up_scale_rows, j, group, GROUPS)
            up_0 += a * w + a_upper * w_upper
            up_1 += b * w + b_upper * w_upper
    for row in tl.static_range(0, ROWS):
        acc = tl.sum(tl.sum(acc_1 if row else acc_0, 2), 1, keep_dims=True)
        up = tl.sum(tl.sum(up_1 if row else up_0, 2), 1, keep_dims=True) if GATED else acc
        if norm is not None:
            squares = tl.sum(tl.sum(squares_1 if row else squares_0, 2), 1, keep_dims=True)
            root = tl.rsqrt(squares / (2 * HALF) + eps)
            acc *= root
            up *= root
        write(acc, up, added_1 if row else added_0, out, n, row, rows, OUTPUTS, GATED)


@triton.jit
def _summed(x_lower, x_upper, weight_rows, scale_rows, j, group, GROUPS: tl.constexpr):
    """Return the part of bytes j of one group in the sums, (ROWS, BLOCK); scales have one axis."""
    lower, upper = _numbers(tl.load(weight_rows + j[:, None]))
    by, by_upper = tl.load(scale_rows + group), tl.load(scale_rows + GROUPS // 2 + group)
    below = tl.dot(x_lower, lower.to(x_lower.dtype), input_precision="ieee")
    above = tl.dot(x_upper, upper.to(x_upper.dtype), input_precision="ieee")
    return below * by[None, :] + above * by_upper[None, :]


@triton.jit(do_not_specialize=["rows"])
def many_rows_packed(
    x, weight, scale, bias, residual, out, rows, x_stride, residual_stride,
    OUTPUTS: tl.constexpr, HALF: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr, GATED: tl.constexpr, LINES: tl.constexpr, OVERLAPPED: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Compute products (ROWS, GROUP) by (GROUP, BLOCK), all warps on one; rows are normalised."""
    start_next(OVERLAPPED)
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = tl.arange(0, ROWS)[:, None]
    GROUPS: tl.constexpr = 2 * HALF // GROUP
    # outputs past the last one repeat it, so that loads need no mask; they are not written
    last = tl.minimum(n, OUTPUTS - 1).to(tl.int64)
    n = n[None, :]
    weight_rows, scale_rows = weight + last[None, :] * HALF, scale + last * GROUPS
    up_rows, up_scale_rows = weight_rows + OUTPUTS * HALF, scale_rows + OUTPUTS * GROUPS
    if OVERLAPPED:
        prefetch(tl.trans(weight_rows), HALF, LINES)
        if GATED:
            prefetch(tl.trans(up_rows), HALF, LINES)
    wait_for_previous(OVERLAPPED)
    added = addend(bias, residual, n, m, rows, residual_stride, OUTPUTS)
    x_rows = x + tl.minimum(m, rows - 1) * x_stride
    acc = tl.zeros([ROWS, BLOCK], tl.float32)
    up = tl.zeros([ROWS, BLOCK], tl.float32)
    for group in tl.range(0, GROUPS // 2, num_stages=STAGES):
        j = group * GROUP + tl.arange(0, GROUP)
        lower, upper = tl.load(x_rows + j[None, :]), tl.load(x_rows + HALF + j[None, :])
        acc += _summed(lower, upper, weight_rows, scale_rows, j, group, GROUPS)
        if GATED:
            up += _summed(lower, upper, up_rows, up_scale_rows, j, group, GROUPS)
    write(acc, up, added, out, n, m, rows, OUTPUTS, GATED)


@triton.jit
def _widen_packed(
    values, scale, out,
    HALF: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr, OVERLAPPED: tl.constexpr,
):  # fmt: skip
    start_next(OVERLAPPED)
    row = tl.program_id(0).to(tl.int64)
    GROUPS: tl.constexpr = 2 * HALF // GROUP
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = j < HALF
    lower, upper = _numbers(tl.load(values + row * HALF + j, mask=inside, other=0))
    by = tl.load(scale + row * GROUPS + j // GROUP, mask=inside, other=0.0)
    by_upper = tl.load(scale + row * GROUPS + GROUPS // 2 + j // GROUP, mask=inside, other=0.0)
    wait_for_previous(OVERLAPPED)
    place = out + row * 2 * HALF + j
    tl.store(place, (lower.to(tl.float32) * by).to(out.dtype.element_ty), mask=inside)
    tl.store(place + HALF, (upper.to(tl.float32) * by_upper).to(out.dtype.element_ty), mask=inside)
