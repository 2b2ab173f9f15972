"""Norms and activations in one pass each; torch takes a pass for each operation."""

from __future__ import annotations

# ruff: noqa: N803 (constants of a kernel are upper case)
# mypy: allow-untyped-decorators, allow-untyped-calls, allow-untyped-defs, allow-incomplete-defs
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from izwi.backends.torch.quantized import QuantizedWeight
from izwi.backends.torch.triton.launch import overlap_option, start_next, wait_for_previous

_MAX_WIDTH = 16384  # values of a row that one program holds
_BLOCK = 1024


@dataclass(frozen=True, slots=True, eq=False)
class PendingNorm:
    """The division of a norm that is still to be applied to products of unnormalised rows.

    The norm's weight is part of the product's weight. The reader of the product divides each row by
    the root mean square of the row that was multiplied.

    Attributes:
        x: (rows, width), the rows that were multiplied; each row is contiguous.
        eps: Of the norm.
    """

    x: Tensor
    eps: float


def pending_options(pending: PendingNorm | None) -> dict[str, Any]:
    """Return a kernel's arguments for `root_of`; x is None if no norm is pending."""
    if pending is None:
        return {"x": None, "x_eps": 0.0, "x_stride": 0, "WIDTH": 1, "WIDTH_BLOCK": 1}
    width = pending.x.shape[1]
    block = triton.next_power_of_2(width)
    sizes = {"x_stride": pending.x.stride(0), "WIDTH": width, "WIDTH_BLOCK": block}
    return {"x": pending.x, "x_eps": pending.eps, **sizes}


def takes_row(width: int) -> bool:
    """Return whether rows of this width fit into one program of `rms_norm` and `PendingNorm`."""
    return width <= _MAX_WIDTH


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Normalise by the root mean square in float32, cast back, then scale.

    Args:
        x: (..., width); each row is contiguous.
        weight: (width,), or None for all ones.
        eps: Added to the mean square.
    """
    width = x.shape[-1]
    rows = x.reshape(-1, width)
    out = torch.empty_like(rows, memory_format=torch.contiguous_format)
    block = triton.next_power_of_2(width)
    options = overlap_option(x.device)
    _rms_norm[(rows.shape[0],)](
        rows,
        weight,
        out,
        eps,
        rows.stride(0),
        WIDTH=width,
        BLOCK=block,
        OVERLAPPED=bool(options),
        num_warps=min(16, max(1, block // 512)),
        **options,
    )
    return out.view(x.shape)


def swiglu(gate: Tensor, up: Tensor, pending: PendingNorm | None = None) -> Tensor:
    """Return silu(gate) * up of (rows, width) arrays, which may be parts of one packed array."""
    rows, width = gate.shape
    out = gate.new_empty((rows, width))
    options = overlap_option(gate.device)
    _swiglu[(rows, triton.cdiv(width, _BLOCK))](
        gate,
        up,
        out,
        gate.stride(0),
        up.stride(0),
        width,
        **pending_options(pending),
        BLOCK=_BLOCK,
        OVERLAPPED=bool(options),
        num_warps=4,
        **options,
    )
    return out


def widen(weight: QuantizedWeight, dtype: torch.dtype) -> Tensor:
    """Return the weight in another dtype, (out, in), as `QuantizedWeight.wide`, in one pass."""
    rows, width = weight.shape
    out = torch.empty((rows, width), dtype=dtype, device=weight.values.device)
    options = overlap_option(out.device)
    _widen[(rows, triton.cdiv(width, _BLOCK))](
        weight.values,
        weight.scale,
        out,
        width,
        BLOCK=_BLOCK,
        OVERLAPPED=bool(options),
        num_warps=4,
        **options,
    )
    return out


def snake(x: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """SnakeBeta: x + sin(x * exp(alpha)) ** 2 / (exp(beta) + 1e-9).

    Args:
        x: (batch, channels, time), contiguous, or channels-last: a transposed contiguous (batch,
            time, channels). The result has the same layout.
        alpha: (channels,).
        beta: (channels,).
    """
    batch, channels, time = x.shape
    last = not x.is_contiguous()
    rows, width = (batch * time, channels) if last else (batch * channels, time)
    out = torch.empty_like(x)
    options = overlap_option(x.device)
    block = min(_BLOCK, triton.next_power_of_2(width))
    _snake[(triton.cdiv(rows, _BLOCK // block), triton.cdiv(width, block))](
        x,
        alpha,
        beta,
        out,
        rows,
        width,
        channels,
        LAST=last,
        ROWS=_BLOCK // block,
        BLOCK=block,
        OVERLAPPED=bool(options),
        num_warps=4,
        **options,
    )
    return out


@triton.jit
def _rms_norm(
    x, weight, out, eps, x_stride,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, OVERLAPPED: tl.constexpr,
):  # fmt: skip
    start_next(OVERLAPPED)
    row = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BLOCK)
    scale = 1.0
    if weight is not None:
        scale = tl.load(weight + k, mask=k < WIDTH, other=0.0)
    wait_for_previous(OVERLAPPED)
    wide = tl.load(x + row * x_stride + k, mask=k < WIDTH, other=0.0).to(tl.float32)
    wide *= tl.rsqrt(tl.sum(wide * wide, 0) / WIDTH + eps)
    tl.store(out + row * WIDTH + k, wide.to(out.dtype.element_ty) * scale, mask=k < WIDTH)


@triton.jit
def root_of(x, row, x_stride, eps, WIDTH: tl.constexpr, WIDTH_BLOCK: tl.constexpr):
    """Return the scalar by which a `PendingNorm` scales a row; 1 if no norm is pending."""
    root = 1.0
    if x is not None:
        k = tl.arange(0, WIDTH_BLOCK)
        wide = tl.load(x + row * x_stride + k, mask=k < WIDTH, other=0.0).to(tl.float32)
        root = tl.rsqrt(tl.sum(wide * wide, 0) / WIDTH + eps)
    return root


@triton.jit
def _swiglu(
    gate, up, out, gate_stride, up_stride, width, x, x_eps, x_stride,
    BLOCK: tl.constexpr, WIDTH: tl.constexpr, WIDTH_BLOCK: tl.constexpr, OVERLAPPED: tl.constexpr,
):  # fmt: skip
    start_next(OVERLAPPED)
    row = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    wait_for_previous(OVERLAPPED)
    root = root_of(x, row, x_stride, x_eps, WIDTH, WIDTH_BLOCK)
    g = tl.load(gate + row * gate_stride + k, mask=k < width, other=0.0).to(tl.float32) * root
    u = tl.load(up + row * up_stride + k, mask=k < width, other=0.0).to(tl.float32) * root
    tl.store(out + row * width + k, (g * tl.sigmoid(g) * u).to(out.dtype.element_ty), k < width)


@triton.jit
def _widen(values, scale, out, width, BLOCK: tl.constexpr, OVERLAPPED: tl.constexpr):
    start_next(OVERLAPPED)
    row = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    by = tl.load(scale + row)
    stored = tl.load(values + row * width + k, mask=k < width, other=0.0)
    wait_for_previous(OVERLAPPED)
    wide = stored.to(tl.float32) * by
    tl.store(out + row * width + k, wide.to(out.dtype.element_ty), mask=k < width)


@triton.jit
def snake_of(x, alpha, beta):
    """SnakeBeta of float32 numbers.

    The square of the sine has period pi, so a polynomial over half a period on either side of 0 is
    sufficient. It is accurate to float32, and several times as fast as a sine.
    """
    turns = x * (tl.exp(alpha) * 0.3183098861837907)
    turns -= tl.floor(turns + 0.5)
    square = turns * turns
    wave = 0.07721827734263795 * square - 0.5980441395047853
    wave = wave * square + 2.5500311845931116
    wave = wave * square - 5.167706865636622
    wave = (wave * square + 3.1415925797972784) * turns
    return x + (1.0 / (tl.exp(beta) + 1e-9)) * (wave * wave)


@triton.jit(do_not_specialize=["rows"])
def _snake(
    x, alpha, beta, out, rows, width, channels,
    LAST: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, OVERLAPPED: tl.constexpr,
):  # fmt: skip
    """Rows are (batch, time) if the channels are LAST, otherwise (batch, channels)."""
    start_next(OVERLAPPED)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (k < width)
    channel = tl.minimum(k, channels - 1) if LAST else row % channels
    a = tl.load(alpha + channel).to(tl.float32)
    b = tl.load(beta + channel).to(tl.float32)
    wait_for_previous(OVERLAPPED)
    place = row.to(tl.int64) * width + k
    wide = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + place, snake_of(wide, a, b).to(out.dtype.element_ty), mask=inside)
