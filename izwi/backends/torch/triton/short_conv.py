"""Short convolutions of captured steps: positions and pages are read on the device.

A row's earlier inputs are in the trailers of its pages (`izwi.backends.torch.conv_trailers`) or, in
a prompt, in the rows before it. The gates around LFM2's convolution are applied in the same pass.
"""

from __future__ import annotations

# ruff: noqa: N803 (constants of a kernel are upper case)
# mypy: allow-untyped-decorators, allow-untyped-calls, allow-untyped-defs, allow-incomplete-defs
from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from izwi.backends.torch.conv_trailers import ConvTrailers
from izwi.backends.torch.triton.launch import overlap_option, start_next, wait_for_previous

_BLOCK = 512  # channels of one program


@dataclass(frozen=True, slots=True, eq=False)
class StagedConv:
    """Where the rows of a captured step find their earlier inputs.

    Attributes:
        trailers: Of the model's pages.
        positions: (rows,) int64; -1 marks an empty row, which stores nothing.
        tables: Flat int32; the page of run r at place p is tables[r * table_width[0] + p].
        table_width: (1,) int32.
        runs: (rows,) int32, the table of each row: adjacent rows with the same number are
            consecutive positions of one sequence. None: row r is alone, with table r.
    """

    trailers: ConvTrailers
    positions: Tensor
    tables: Tensor
    table_width: Tensor
    runs: Tensor | None

    def convolve(
        self, layer: int, x: Tensor, weight: Tensor, gates: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        """Convolve, and store the inputs; see `Ops.short_conv`.

        Args:
            layer: Index among the short convolutions.
            x: (rows, channels); each row is contiguous, as in the gates.
            weight: (channels, width), contiguous.
            gates: Factors of the input and of the output, (rows, channels) each.

        Returns:
            (rows, channels), contiguous.
        """
        rows, channels = x.shape
        out = x.new_empty((rows, channels))
        gate_in, gate_out = gates or (None, None)
        options = overlap_option(x.device)
        sizes: dict[str, Any] = {
            "CHANNELS": channels,
            "WIDTH": weight.shape[1],
            "PAGE": self.trailers.page_size,
            "BLOCK": min(_BLOCK, triton.next_power_of_2(channels)),
            "OVERLAPPED": bool(options),
            "num_warps": 4,
            **options,
        }
        grid = rows, triton.cdiv(channels, sizes["BLOCK"])
        places = self.positions, self.runs, self.tables, self.table_width
        plane = self.trailers.plane[layer]
        strides = x.stride(0), 0 if gate_in is None else gate_in.stride(0)
        _convolve[grid](
            *(x, gate_in, gate_out, weight, out, plane, *places, *strides),
            0 if gate_out is None else gate_out.stride(0),
            TOGETHER=self.runs is not None,
            **sizes,
        )
        if self.runs is not None:  # a row may read what another row overwrites
            _store_inputs[grid](x, gate_in, plane, *places, rows, *strides, **sizes)
        return out


@triton.jit
def _input(x, gate, row, stride, gate_stride, c, mask):
    """Return the inputs of a row's channels as stored, float32."""
    value = tl.load(x + row * stride + c, mask=mask, other=0.0)
    if gate is not None:
        by = tl.load(gate + row * gate_stride + c, mask=mask, other=0.0)
        value = (value.to(tl.float32) * by.to(tl.float32)).to(x.dtype.element_ty)
    return value.to(tl.float32)


@triton.jit
def _column(table, position, there, WIDTH: tl.constexpr, PAGE: tl.constexpr):
    """Return the column of the trailers that has the input of a position."""
    position = tl.maximum(position, 0)
    page = tl.load(table + position // PAGE, mask=there, other=0).to(tl.int64)
    return page * WIDTH + position % PAGE % WIDTH


@triton.jit
def _convolve(
    x, gate_in, gate_out, weight, out, plane, positions, runs, tables, table_width, x_stride,
    in_stride, out_stride,
    CHANNELS: tl.constexpr, WIDTH: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr,
    TOGETHER: tl.constexpr, OVERLAPPED: tl.constexpr,
):  # fmt: skip
    """Convolve some channels of one row; if rows are alone, store their inputs, too."""
    start_next(OVERLAPPED)
    row = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = c < CHANNELS
    taps = weight + c * WIDTH
    last = tl.load(taps + WIDTH - 1, mask=inside, other=0.0).to(tl.float32)
    wait_for_previous(OVERLAPPED)
    position = tl.load(positions + row)
    here = position >= 0
    run = tl.load(runs + row) if TOGETHER else row
    table = tables + run * tl.load(table_width)
    own = _input(x, gate_in, row, x_stride, in_stride, c, inside)
    acc = own * last
    for back in tl.static_range(1, WIDTH):
        there = here & (position >= back)
        tap = tl.load(taps + WIDTH - 1 - back, mask=inside, other=0.0).to(tl.float32)
        if TOGETHER:
            near = tl.maximum(row - back, 0)
            beside = there & (row >= back) & (tl.load(runs + near) == run)
            beside = beside & (tl.load(positions + near) == position - back)
            from_row = _input(x, gate_in, near, x_stride, in_stride, c, inside & beside)
            there = there & (beside == 0)
        column = _column(table, position - back, there, WIDTH, PAGE)
        kept = tl.load(plane + column * CHANNELS + c, mask=inside & there, other=0.0)
        earlier = kept.to(tl.float32)
        if TOGETHER:
            earlier += from_row
        acc += earlier * tap
    made = acc.to(out.dtype.element_ty)
    if gate_out is not None:
        by = tl.load(gate_out + row * out_stride + c, mask=inside, other=0.0)
        made = (made.to(tl.float32) * by.to(tl.float32)).to(out.dtype.element_ty)
    tl.store(out + row * CHANNELS + c, made, mask=inside)
    if not TOGETHER:
        column = _column(table, position, here, WIDTH, PAGE)
        tl.store(plane + column * CHANNELS + c, own.to(plane.dtype.element_ty), mask=inside & here)


@triton.jit(do_not_specialize=["num_rows"])
def _store_inputs(
    x, gate_in, plane, positions, runs, tables, table_width, num_rows, x_stride, in_stride,
    CHANNELS: tl.constexpr, WIDTH: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr,
    OVERLAPPED: tl.constexpr,
):  # fmt: skip
    """Store what no later row of the same page overwrites: the last inputs of each run and page."""
    start_next(OVERLAPPED)
    row = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    wait_for_previous(OVERLAPPED)
    position = tl.load(positions + row)
    here = position >= 0
    run = tl.load(runs + row)
    later = tl.minimum(row + WIDTH, num_rows - 1)
    follows = (row + WIDTH < num_rows) & (tl.load(runs + later) == run)
    follows = follows & (tl.load(positions + later) == position + WIDTH)
    follows = follows & ((position + WIDTH) // PAGE == position // PAGE)
    there = here & (follows == 0)
    table = tables + run * tl.load(table_width)
    inside = (c < CHANNELS) & there
    column = _column(table, position, there, WIDTH, PAGE)
    own = _input(x, gate_in, row, x_stride, in_stride, c, inside)
    tl.store(plane + column * CHANNELS + c, own.to(plane.dtype.element_ty), mask=inside)
