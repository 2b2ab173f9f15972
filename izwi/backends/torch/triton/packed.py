"""Products of a few rows with weights in groups of inputs, of 4 bits, two in a byte, or 8.

As in `linear`, except that each group of inputs has a scale and maybe an offset, and a byte of
4-bit values is multiplied with two inputs, which are half a row apart. One or two rows are
multiplied in registers, more by matrix units, with weights that are widened to the dtype of `x` on
the way: what a product with the wide weight gives, which is never written.

x is (rows, PER_BYTE * WIDTH), weight (OUTPUTS, WIDTH) bytes, scale and offset (OUTPUTS, GROUPS),
where GROUPS is PER_BYTE * WIDTH / GROUP, or twice as many rows if GATED. A program computes BLOCK
outputs of all rows.
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
from izwi.backends.torch.triton.linear_tiles import Tiles
from izwi.backends.torch.triton.packed_tiles import packed_tiles
from izwi.backends.torch.triton.rows import rms_norm

# Minimum number of inputs of a matrix unit.
_SMALLEST_GROUP = 16
# Up to this number of rows, products are computed one by one; more use matrix units.
_FEW_ROWS = 2
_WIDENED_BYTES = 512


def takes_packed(weight: PackedWeight) -> bool:
    """Return whether the kernels support groups of this size."""
    return weight.group >= _SMALLEST_GROUP


def packed_product(
    x: Tensor,
    weight: PackedWeight,
    out: Tensor,
    bucket: int,
    tiles: Tiles | None = None,
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
        tiles: Tiles to use instead of those of `packed_tiles`.
        bias: (outputs,).
        norm: (inputs,), or None.
        eps: Of the norm, or None for no norm.
        residual: (rows, outputs).
        gated: Whether the rows of a gate come first in the weight.
    """
    outputs, width = out.shape[1], weight.values.shape[1]
    few = bucket <= _FEW_ROWS
    # a program of many rows would spend longer on the norm
    if eps is not None and (norm is None or not few):
        x, norm = rms_norm(x, norm, eps), None
    tiles = tiles or packed_tiles(bucket, weight.shape, weight.group, gated=gated)
    # with more rows, programs that wait for the previous kernel would take the room of its programs
    options = overlap_option(x.device) if few else {}
    sizes: dict[str, Any] = {
        "rows": x.shape[0],
        "x_stride": x.stride(0),
        "residual_stride": 0 if residual is None else residual.stride(0),
        "OUTPUTS": outputs,
        "WIDTH": width,
        "PER_BYTE": weight.per_byte,
        "GROUP": weight.group,
        "ROWS": bucket,
        "BLOCK": tiles.outputs,
        "GATED": gated,
        "LINES": lines_of(width),
        "OVERLAPPED": bool(options),
        "num_warps": tiles.warps,
        **options,
    }
    arrays = (x, weight.values, weight.scale, weight.offset, bias, residual, out)
    grid = (triton.cdiv(outputs, tiles.outputs),)
    if few:
        depth = max(weight.group, min(tiles.depth, width & -width))  # so that no pass needs a mask
        few_rows_packed[grid](*arrays, norm, eps or 0.0, DEPTH=depth, **sizes)
    elif tiles.slices > 1:
        stages = tiles.stages if x.element_size() <= 2 else min(2, tiles.stages)  # or no room
        slices = {"SLICES": tiles.slices, "STAGES": stages}
        sliced_rows_packed[grid](*arrays, **slices, **sizes)
    else:
        many_rows_packed[grid](*arrays, STAGES=tiles.stages, **sizes)


def widen_packed(weight: PackedWeight, dtype: torch.dtype) -> Tensor:
    """Return the weight in another dtype, (out, in), as `PackedWeight.wide` does, in one pass."""
    outputs, width = weight.values.shape
    out = torch.empty(weight.shape, dtype=dtype, device=weight.values.device)
    options = overlap_option(out.device)
    _widen_packed[(outputs, triton.cdiv(width, _WIDENED_BYTES))](
        weight.values,
        weight.scale,
        weight.offset,
        out,
        WIDTH=width,
        PER_BYTE=weight.per_byte,
        GROUP=weight.group,
        BLOCK=_WIDENED_BYTES,
        OVERLAPPED=bool(options),
        num_warps=4,
        **options,
    )
    return out


@triton.jit
def _lower(packed, PER_BYTE: tl.constexpr):
    """Return the float32 values of bytes, of their lower halves if there are two."""
    if PER_BYTE == 2:
        return ((packed & 15).to(tl.int8) - 8).to(tl.float32)
    return packed.to(tl.float32)


@triton.jit
def _upper(packed):
    """Return the float32 values of the upper halves of bytes."""
    return ((packed >> 4).to(tl.int8) - 8).to(tl.float32)


@triton.jit
def _scaled(
    weight_rows, scale, offset, first, j, group, PER_BYTE: tl.constexpr, GROUPS: tl.constexpr
):
    """Return the float32 values of bytes j of some groups, lower and upper halves.

    The scales have two axes: with three, each thread would load a scale for every byte.
    """
    packed = tl.load(weight_rows + j)
    place = first * GROUPS + group
    lower = _lower(packed, PER_BYTE) * tl.load(scale + place)[:, :, None]
    if offset is not None:
        lower += tl.load(offset + place)[:, :, None]
    upper = lower
    if PER_BYTE == 2:
        place += GROUPS // 2
        upper = _upper(packed) * tl.load(scale + place)[:, :, None]
        if offset is not None:
            upper += tl.load(offset + place)[:, :, None]
    return lower, upper


@triton.jit
def few_rows_packed(
    x, weight, scale, offset, bias, residual, out, norm, eps, rows, x_stride, residual_stride,
    OUTPUTS: tl.constexpr, WIDTH: tl.constexpr, PER_BYTE: tl.constexpr, GROUP: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, DEPTH: tl.constexpr, GATED: tl.constexpr,
    LINES: tl.constexpr, OVERLAPPED: tl.constexpr,
):  # fmt: skip
    """Multiply and add in registers, for one or two rows; tiles are (BLOCK, groups, GROUP)."""
    start_next(OVERLAPPED)
    n = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))[:, None]
    GROUPS: tl.constexpr = PER_BYTE * WIDTH // GROUP
    # outputs past the last one repeat it, so that loads need no mask; they are not written
    last = tl.minimum(n, OUTPUTS - 1).to(tl.int64)
    if OVERLAPPED:  # weights depend on no other kernel: they are loaded before the wait
        prefetch(weight + last * WIDTH, WIDTH, LINES)
        if GATED:
            prefetch(weight + (OUTPUTS + last) * WIDTH, WIDTH, LINES)
    wait_for_previous(OVERLAPPED)
    weight_rows = weight + last[:, :, None] * WIDTH
    up_rows = weight_rows + OUTPUTS * WIDTH
    g = tl.arange(0, DEPTH // GROUP)[None, :]
    i = tl.arange(0, GROUP)[None, None, :]
    acc_0 = tl.zeros([BLOCK, DEPTH // GROUP, GROUP], tl.float32)
    acc_1, up_0, up_1 = acc_0, acc_0, acc_0
    squares_0 = tl.zeros([1, DEPTH // GROUP, GROUP], tl.float32)
    squares_1 = squares_0
    x_1 = x + (rows - 1) * x_stride  # the second of two rows
    added_0 = addend(bias, residual, n, 0, rows, residual_stride, OUTPUTS)
    added_1 = addend(bias, residual, n, ROWS - 1, rows, residual_stride, OUTPUTS)
    for start in tl.static_range(0, WIDTH, DEPTH):
        j, group = start + g[:, :, None] * GROUP + i, start // GROUP + g
        w, w_upper = _scaled(weight_rows, scale, offset, last, j, group, PER_BYTE, GROUPS)
        if GATED:
            v, v_upper = _scaled(up_rows, scale, offset, OUTPUTS + last, j, group, PER_BYTE, GROUPS)
        for part in tl.static_range(0, PER_BYTE):
            k = part * WIDTH + j
            a = tl.load(x + k).to(tl.float32)
            b = tl.load(x_1 + k).to(tl.float32) if ROWS == 2 else a
            if norm is not None:
                squares_0 += a * a
                squares_1 += b * b
                gain = tl.load(norm + k).to(tl.float32)
                a, b = a * gain, b * gain
            w_now = w_upper if part else w
            acc_0 += a * w_now
            acc_1 += b * w_now
            if GATED:
                v_now = v_upper if part else v
                up_0 += a * v_now
                up_1 += b * v_now
    for row in tl.static_range(0, ROWS):
        acc = tl.sum(tl.sum(acc_1 if row else acc_0, 2), 1, keep_dims=True)
        up = tl.sum(tl.sum(up_1 if row else up_0, 2), 1, keep_dims=True) if GATED else acc
        if norm is not None:
            squares = tl.sum(tl.sum(squares_1 if row else squares_0, 2), 1, keep_dims=True)
            root = tl.rsqrt(squares / (PER_BYTE * WIDTH) + eps)
            acc *= root
            up *= root
        write(acc, up, added_1 if row else added_0, out, n, row, rows, OUTPUTS, GATED)


@triton.jit
def _added(
    acc, x_rows, weight_rows, scale, offset, first, j, group,
    WIDTH: tl.constexpr, PER_BYTE: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """Add the product of bytes j of one group, (BLOCK, GROUP) by (GROUP, ROWS).

    Weights are the left side, which matrix units read from registers, where they are widened.
    """
    packed = tl.load(weight_rows + j[None, :])
    place = first * GROUPS + group
    wide = _lower(packed, PER_BYTE) * tl.load(scale + place)[:, None]
    if offset is not None:
        wide += tl.load(offset + place)[:, None]
    x_part = tl.load(x_rows + j[:, None])
    acc = tl.dot(wide.to(x_part.dtype), x_part, acc, input_precision="ieee")
    if PER_BYTE == 2:
        place += GROUPS // 2
        wide = _upper(packed) * tl.load(scale + place)[:, None]
        if offset is not None:
            wide += tl.load(offset + place)[:, None]
        x_part = tl.load(x_rows + WIDTH + j[:, None])
        acc = tl.dot(wide.to(x_part.dtype), x_part, acc, input_precision="ieee")
    return acc


@triton.jit(do_not_specialize=["rows"])
def many_rows_packed(
    x, weight, scale, offset, bias, residual, out, rows, x_stride, residual_stride,
    OUTPUTS: tl.constexpr, WIDTH: tl.constexpr, PER_BYTE: tl.constexpr, GROUP: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, GATED: tl.constexpr, LINES: tl.constexpr,
    OVERLAPPED: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Compute (BLOCK, ROWS) sums, all warps on one product; rows are normalised."""
    start_next(OVERLAPPED)
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = tl.arange(0, ROWS)[None, :]
    GROUPS: tl.constexpr = PER_BYTE * WIDTH // GROUP
    # outputs past the last one repeat it, so that loads need no mask; they are not written
    last = tl.minimum(n, OUTPUTS - 1).to(tl.int64)
    weight_rows = weight + last[:, None] * WIDTH
    up_rows = weight_rows + OUTPUTS * WIDTH
    if OVERLAPPED:
        prefetch(weight_rows, WIDTH, LINES)
        if GATED:
            prefetch(up_rows, WIDTH, LINES)
    wait_for_previous(OVERLAPPED)
    added = addend(bias, residual, n[:, None], m, rows, residual_stride, OUTPUTS)
    x_rows = x + tl.minimum(m, rows - 1) * x_stride
    acc = tl.zeros([BLOCK, ROWS], tl.float32)
    up = tl.zeros([BLOCK, ROWS], tl.float32)
    for group in tl.range(0, WIDTH // GROUP, num_stages=STAGES):
        j = group * GROUP + tl.arange(0, GROUP)
        acc = _added(
            acc, x_rows, weight_rows, scale, offset, last, j, group, WIDTH, PER_BYTE, GROUPS
        )
        if GATED:
            up = _added(
                up, x_rows, up_rows, scale, offset, OUTPUTS + last, j, group, WIDTH, PER_BYTE,
                GROUPS,
            )  # fmt: skip
    write(acc, up, added, out, n[:, None], m, rows, OUTPUTS, GATED)


@triton.jit
def _added_slices(
    acc, x_rows, inside, weight_rows, scale, offset, first, j, group,
    WIDTH: tl.constexpr, PER_BYTE: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """Add the products of bytes j (SLICES, GROUP) of a group of each slice; see `_added`."""
    packed = tl.load(weight_rows + j[:, None, :])
    place = first[None, :] * GROUPS + group[:, None]
    wide = _lower(packed, PER_BYTE) * tl.load(scale + place)[:, :, None]
    if offset is not None:
        wide += tl.load(offset + place)[:, :, None]
    x_part = tl.load(x_rows + j[:, :, None], mask=inside, other=0.0)
    acc = tl.dot(wide.to(x_part.dtype), x_part, acc, input_precision="ieee")
    if PER_BYTE == 2:
        place += GROUPS // 2
        wide = _upper(packed) * tl.load(scale + place)[:, :, None]
        if offset is not None:
            wide += tl.load(offset + place)[:, :, None]
        x_part = tl.load(x_rows + WIDTH + j[:, :, None], mask=inside, other=0.0)
        acc = tl.dot(wide.to(x_part.dtype), x_part, acc, input_precision="ieee")
    return acc


@triton.jit(do_not_specialize=["rows"])
def sliced_rows_packed(
    x, weight, scale, offset, bias, residual, out, rows, x_stride, residual_stride,
    OUTPUTS: tl.constexpr, WIDTH: tl.constexpr, PER_BYTE: tl.constexpr, GROUP: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, GATED: tl.constexpr, LINES: tl.constexpr,
    OVERLAPPED: tl.constexpr, SLICES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Compute (SLICES, BLOCK, ROWS) sums: each warp has a slice of the inputs."""
    start_next(OVERLAPPED)
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = tl.arange(0, ROWS)[None, :]
    GROUPS: tl.constexpr = PER_BYTE * WIDTH // GROUP
    LENGTH: tl.constexpr = WIDTH // SLICES  # of one slice
    # outputs past the last one repeat it, so that loads need no mask; they are not written
    last = tl.minimum(n, OUTPUTS - 1).to(tl.int64)
    weight_rows = weight + last[None, :, None] * WIDTH
    up_rows = weight_rows + OUTPUTS * WIDTH
    if OVERLAPPED:
        prefetch(weight + last[:, None] * WIDTH, WIDTH, LINES)
        if GATED:
            prefetch(weight + (OUTPUTS + last)[:, None] * WIDTH, WIDTH, LINES)
    wait_for_previous(OVERLAPPED)
    added = addend(bias, residual, n[:, None], m, rows, residual_stride, OUTPUTS)
    x_rows = x + m[None, :, :] * x_stride
    inside = m[None, :, :] < rows
    s = tl.arange(0, SLICES)
    acc = tl.zeros([SLICES, BLOCK, ROWS], tl.float32)
    up = tl.zeros([SLICES, BLOCK, ROWS], tl.float32)
    for step in tl.range(0, LENGTH // GROUP, num_stages=STAGES):
        group = s * (LENGTH // GROUP) + step
        j = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        acc = _added_slices(
            acc, x_rows, inside, weight_rows, scale, offset, last, j, group, WIDTH, PER_BYTE,
            GROUPS,
        )  # fmt: skip
        if GATED:
            up = _added_slices(
                up, x_rows, inside, up_rows, scale, offset, OUTPUTS + last, j, group, WIDTH,
                PER_BYTE, GROUPS,
            )  # fmt: skip
    total, total_up = tl.sum(acc, 0), tl.sum(up, 0)
    write(total, total_up, added, out, n[:, None], m, rows, OUTPUTS, GATED)


@triton.jit
def _widen_packed(
    values, scale, offset, out,
    WIDTH: tl.constexpr, PER_BYTE: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
    OVERLAPPED: tl.constexpr,
):  # fmt: skip
    start_next(OVERLAPPED)
    row = tl.program_id(0).to(tl.int64)
    GROUPS: tl.constexpr = PER_BYTE * WIDTH // GROUP
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = j < WIDTH
    packed = tl.load(values + row * WIDTH + j, mask=inside, other=0.0)
    factor = row * GROUPS + j // GROUP
    place = out + row * PER_BYTE * WIDTH + j
    wait_for_previous(OVERLAPPED)
    for part in tl.static_range(0, PER_BYTE):
        wide = _upper(packed) if part else _lower(packed, PER_BYTE)
        wide *= tl.load(scale + factor + part * (GROUPS // 2), mask=inside, other=0.0)
        if offset is not None:
            wide += tl.load(offset + factor + part * (GROUPS // 2), mask=inside, other=0.0)
        tl.store(place + part * WIDTH, wide.to(out.dtype.element_ty), mask=inside)
