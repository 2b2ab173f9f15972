"""Products of a few rows with large weights, fused with the operations around them.

A decode step multiplies 1 to 64 rows with every weight of the model, so it takes as long as reading
the weights. The RMS norm before a product, the bias and residual after it, and the gate of the MLP
are fused into the same kernel: as separate launches they would take as long as the product.
"""

from __future__ import annotations

# mypy: allow-untyped-calls
from typing import Any

import torch
import triton
from torch import Tensor

from izwi.backends.torch.quantized import KernelWeight, PackedWeight, QuantizedWeight
from izwi.backends.torch.triton.launch import lines_of, overlap_option
from izwi.backends.torch.triton.linear_kernels import all_rows, few_rows, many_rows
from izwi.backends.torch.triton.linear_tiles import (
    FEW_ROWS,
    Tiles,
    bucket_of,
    fitted,
    prefers_torch,
    tiles_for,
)
from izwi.backends.torch.triton.packed import packed_product, takes_packed
from izwi.backends.torch.triton.rows import rms_norm
from izwi.backends.torch.triton.shared_memory import shared_bytes

__all__ = ["MAX_ROWS", "gated_linear", "linear", "prefers_torch", "takes"]

MAX_ROWS = 64
# Up to this number of rows, the norm is fused into the product; with more, each program would spend
# longer on the rows than on its weights.
_FOLDED_ROWS = 16


def takes(rows: int, weight: KernelWeight) -> bool:
    """Return whether there is a kernel for this number of rows and this weight."""
    if not 0 < rows <= MAX_ROWS:
        return False
    if isinstance(weight, PackedWeight):
        return takes_packed(weight)
    return isinstance(weight, QuantizedWeight) or weight.is_contiguous()


def linear(
    x: Tensor,
    weight: KernelWeight,
    *,
    bias: Tensor | None = None,
    norm: Tensor | None = None,
    eps: float | None = None,
    residual: Tensor | None = None,
    tiles: Tiles | None = None,
) -> Tensor:
    """rms_norm(x, norm, eps) @ weight.T + bias + residual, summed in float32, rounded once.

    Args:
        x: (rows, inputs), at most MAX_ROWS rows; the last axis contiguous.
        weight: (outputs, inputs), contiguous, of the dtype of `x` or quantized.
        bias: (outputs,).
        norm: (inputs,) weight of the RMS norm; None if `weight` has it, or for no norm.
        eps: Of the norm, or None for no norm.
        residual: (rows, outputs); the last axis contiguous.
        tiles: Tiles to use instead of those of `tiles_for`, or `packed_tiles`.

    Returns:
        (rows, outputs), of the dtype of `x`.
    """
    out = x.new_empty((x.shape[0], weight.shape[0]))
    _launch(x, weight, out, tiles, bias=bias, norm=norm, eps=eps, residual=residual, gated=False)
    return out


def gated_linear(
    x: Tensor,
    weight: KernelWeight,
    *,
    norm: Tensor | None = None,
    eps: float | None = None,
    tiles: Tiles | None = None,
) -> Tensor:
    """silu(gate) * up, where gate and up are the halves of rms_norm(x, norm, eps) @ weight.T.

    Args:
        x: (rows, inputs), at most MAX_ROWS rows; the last axis contiguous.
        weight: (2 * outputs, inputs), contiguous, of the dtype of `x` or quantized; the rows of the
            gate come first.
        norm: (inputs,) weight of the RMS norm; None if `weight` has it, or for no norm.
        eps: Of the norm, or None for no norm.
        tiles: Tiles to use instead of those of `tiles_for`.

    Returns:
        (rows, outputs), of the dtype of `x`.
    """
    out = x.new_empty((x.shape[0], weight.shape[0] // 2))
    _launch(x, weight, out, tiles, bias=None, norm=norm, eps=eps, residual=None, gated=True)
    return out


def _launch(
    x: Tensor,
    weight: KernelWeight,
    out: Tensor,
    tiles: Tiles | None,
    *,
    bias: Tensor | None,
    norm: Tensor | None,
    eps: float | None,
    residual: Tensor | None,
    gated: bool,
) -> None:
    rows, inputs = x.shape
    outputs = out.shape[1]
    if not takes(rows, weight) or inputs != weight.shape[1]:
        raise ValueError(f"no kernel for {tuple(x.shape)} by {tuple(weight.shape)}")
    bucket = bucket_of(rows)
    if isinstance(weight, PackedWeight):
        rest: dict[str, Any] = {"bias": bias, "residual": residual, "gated": gated}
        packed_product(x, weight, out, bucket, tiles, norm=norm, eps=eps, **rest)
        return
    scale = weight.scale if isinstance(weight, QuantizedWeight) else None
    weight = weight.values if isinstance(weight, QuantizedWeight) else weight
    tiles = tiles or tiles_for(
        rows, weight.shape[0], inputs, gated=gated, in_8_bits=scale is not None
    )
    column_bytes = bucket * x.element_size() + tiles.outputs * weight.element_size() * (1 + gated)
    tiles = fitted(tiles, bucket, column_bytes, shared_bytes(x.device))
    # x * norm before scaling may exceed float16
    most = FEW_ROWS if x.dtype == torch.float16 else _FOLDED_ROWS
    folded = bucket <= most and (bucket <= FEW_ROWS or tiles.slices > 1)
    if eps is not None and not folded:
        x, norm, eps = rms_norm(x, norm, eps), None, None
    # programs with converted weights that wait for the previous kernel take its programs' room: on
    # an H200 a layer of 32 rows in 8 bits took 116 us instead of 77
    options = {} if scale is not None and bucket > FEW_ROWS else overlap_option(x.device)
    sizes: dict[str, Any] = {
        "rows": rows,
        "x_stride": x.stride(0),
        "residual_stride": 0 if residual is None else residual.stride(0),
        "OUTPUTS": outputs,
        "INPUTS": inputs,
        "ROWS": bucket,
        "BLOCK": tiles.outputs,
        "DEPTH": tiles.depth,
        "GATED": gated,
        "LINES": lines_of(inputs * weight.element_size()),
        "OVERLAPPED": bool(options),
        "num_warps": tiles.warps,
        **options,
    }
    arrays = {"x": x, "weight": weight, "scale": scale, "out": out}
    arrays |= {"bias": bias, "residual": residual}
    grid = (triton.cdiv(outputs, tiles.outputs),)
    normed: dict[str, Any] = {"norm": norm, "eps": eps or 0.0, "NORMED": eps is not None}
    if bucket <= FEW_ROWS:
        few_rows[grid](**arrays, **normed, **sizes)
    elif tiles.slices > 1:
        slices = {"SLICES": tiles.slices, "STAGES": tiles.stages}
        many_rows[grid](**arrays, **normed, **sizes, **slices)
    else:
        all_rows[grid](**arrays, **sizes, STAGES=tiles.stages)
