"""Products of a few rows with large weights, fused with the operations around them.

A decode step multiplies 1 to 64 rows with every weight of the model, so it takes as long as reading
the weights. The RMS norm before a product, the bias and residual after it, and the gate of the MLP
are fused into the same kernel: as separate launches they would take as long as the product.
"""

from __future__ import annotations

# mypy: allow-untyped-calls
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from izwi.backends.torch.quantized import PackedWeight, QuantizedWeight, Weight
from izwi.backends.torch.triton.launch import lines_of, overlap_option
from izwi.backends.torch.triton.linear_kernels import all_rows, few_rows, many_rows
from izwi.backends.torch.triton.packed import packed_product, takes_packed
from izwi.backends.torch.triton.rows import rms_norm

MAX_ROWS = 64
# Up to this number of rows, products are computed one by one; more use matrix units.
_FEW_ROWS = 2
# Up to this number of rows, the norm is fused into the product; with more, each program would spend
# longer on the rows than on its weights.
_FOLDED_ROWS = 16


@dataclass(frozen=True, slots=True)
class Tiles:
    """Tile sizes of one product.

    Attributes:
        outputs: Output columns of one program, a power of two.
        depth: Input columns of one pass of the loop, in each slice; a power of two.
        slices: Parts of the input that the warps of one program compute in parallel, a power of
            two; 1 for one or two rows, and if all warps work on one product.
        warps: Warps of one program.
        stages: Passes of the loop whose weights are in flight at the same time, above two rows.
    """

    outputs: int
    depth: int
    slices: int
    warps: int
    stages: int


# The fastest tiles that were measured on an H200: (rows, *weight.shape, gated) -> tiles. The rows
# are the bucket's (see `bucket_of`); `python -m benchmarks.kernels --tune` prints these lines. Two
# rows were not measured and use the tiles of one.
TILES: dict[tuple[int, int, int, bool], Tiles] = {
    (1, 1024, 2048, False): Tiles(outputs=2, depth=2048, slices=1, warps=4, stages=1),  # 2.1 us
    (2, 1024, 2048, False): Tiles(outputs=2, depth=2048, slices=1, warps=4, stages=1),  # 2.1 us
    (16, 1024, 2048, False): Tiles(outputs=8, depth=128, slices=4, warps=4, stages=4),  # 5.3 us
    (32, 1024, 2048, False): Tiles(outputs=32, depth=128, slices=1, warps=4, stages=4),  # 7.0 us
    (1, 1024, 3072, False): Tiles(outputs=4, depth=2048, slices=1, warps=8, stages=1),  # 2.8 us
    (2, 1024, 3072, False): Tiles(outputs=4, depth=2048, slices=1, warps=8, stages=1),  # 2.8 us
    (16, 1024, 3072, False): Tiles(outputs=8, depth=128, slices=4, warps=4, stages=4),  # 6.9 us
    (32, 1024, 3072, False): Tiles(outputs=32, depth=64, slices=4, warps=4, stages=4),  # 8.9 us
    (1, 2048, 1024, False): Tiles(outputs=2, depth=1024, slices=1, warps=2, stages=1),  # 2.1 us
    (2, 2048, 1024, False): Tiles(outputs=2, depth=1024, slices=1, warps=2, stages=1),  # 2.1 us
    (16, 2048, 1024, False): Tiles(outputs=8, depth=128, slices=4, warps=4, stages=4),  # 4.1 us
    (32, 2048, 1024, False): Tiles(outputs=64, depth=64, slices=1, warps=4, stages=5),  # 5.8 us
    (1, 2048, 2048, False): Tiles(outputs=1, depth=1024, slices=1, warps=1, stages=1),  # 3.0 us
    (2, 2048, 2048, False): Tiles(outputs=1, depth=1024, slices=1, warps=1, stages=1),  # 3.0 us
    (16, 2048, 2048, False): Tiles(outputs=8, depth=128, slices=4, warps=4, stages=4),  # 5.7 us
    (32, 2048, 2048, False): Tiles(outputs=16, depth=64, slices=4, warps=4, stages=4),  # 10.1 us
    (1, 2048, 6144, False): Tiles(outputs=2, depth=2048, slices=1, warps=4, stages=1),  # 6.3 us
    (2, 2048, 6144, False): Tiles(outputs=2, depth=2048, slices=1, warps=4, stages=1),  # 6.3 us
    (16, 2048, 6144, False): Tiles(outputs=8, depth=128, slices=4, warps=4, stages=4),  # 11.6 us
    (32, 2048, 6144, False): Tiles(outputs=32, depth=64, slices=4, warps=4, stages=4),  # 20.8 us
    (1, 4096, 1024, False): Tiles(outputs=4, depth=512, slices=1, warps=2, stages=1),  # 3.3 us
    (2, 4096, 1024, False): Tiles(outputs=4, depth=512, slices=1, warps=2, stages=1),  # 3.3 us
    (16, 4096, 1024, False): Tiles(outputs=16, depth=64, slices=8, warps=8, stages=4),  # 9.7 us
    (32, 4096, 1024, False): Tiles(outputs=16, depth=64, slices=4, warps=4, stages=4),  # 8.5 us
    (1, 4096, 2048, False): Tiles(outputs=4, depth=1024, slices=1, warps=4, stages=1),  # 5.8 us
    (2, 4096, 2048, False): Tiles(outputs=4, depth=1024, slices=1, warps=4, stages=1),  # 5.8 us
    (16, 4096, 2048, False): Tiles(outputs=16, depth=64, slices=8, warps=8, stages=4),  # 15.0 us
    (32, 4096, 2048, False): Tiles(outputs=16, depth=64, slices=4, warps=4, stages=4),  # 11.6 us
    (1, 6144, 1024, True): Tiles(outputs=1, depth=1024, slices=1, warps=1, stages=1),  # 4.7 us
    (2, 6144, 1024, True): Tiles(outputs=1, depth=1024, slices=1, warps=1, stages=1),  # 4.7 us
    (16, 6144, 1024, True): Tiles(outputs=32, depth=64, slices=4, warps=4, stages=4),  # 8.4 us
    (32, 6144, 1024, True): Tiles(outputs=64, depth=64, slices=1, warps=4, stages=5),  # 9.7 us
    (1, 12288, 2048, True): Tiles(outputs=2, depth=2048, slices=1, warps=4, stages=1),  # 14.1 us
    (2, 12288, 2048, True): Tiles(outputs=2, depth=2048, slices=1, warps=4, stages=1),  # 14.1 us
    (16, 12288, 2048, True): Tiles(outputs=16, depth=64, slices=4, warps=4, stages=4),  # 23.4 us
    (32, 12288, 2048, True): Tiles(outputs=32, depth=128, slices=2, warps=4, stages=3),  # 25.0 us
}

# LFM2-Audio and its depthformer: not measured; the tiles of the nearest weights above.
_LIKE = {
    (6144, 2048): (4096, 2048),
    (3072, 2048): (4096, 2048),
    (16_384, 2048): (12_288, 2048),
    (2048, 8192): (2048, 6144),
    (8192, 2048): (4096, 2048),
    (1536, 1024): (4096, 1024),
    (1024, 1024): (2048, 1024),
    (5632, 1024): (6144, 1024),
    (65_536, 2048): (4096, 2048),
}

# For sizes that were not measured, by bucket of rows.
_USUAL = {
    1: Tiles(outputs=4, depth=1024, slices=1, warps=4, stages=1),
    2: Tiles(outputs=4, depth=1024, slices=1, warps=4, stages=1),
    16: Tiles(outputs=16, depth=64, slices=4, warps=4, stages=4),
    32: Tiles(outputs=32, depth=64, slices=4, warps=4, stages=4),
    64: Tiles(outputs=32, depth=128, slices=1, warps=4, stages=4),
}

# Rows above which the library's product with separate kernels is faster: weight.shape -> rows, and
# the value for all others.
_TORCH_ABOVE: dict[tuple[int, int], int] = {
    (4096, 2048): 2,
    (2048, 2048): 16,
    (12288, 2048): 2,
    (2048, 6144): 16,
    (4096, 1024): 2,
    (1024, 2048): 16,
    (6144, 1024): 2,
    (1024, 3072): 16,
    (2048, 1024): 16,
    (1024, 1024): 16,
    (1024, 2816): 16,
}
_TORCH_ABOVE_USUAL = 32


def takes(rows: int, weight: Weight) -> bool:
    """Return whether there is a kernel for this number of rows and this weight."""
    if not 0 < rows <= MAX_ROWS:
        return False
    if isinstance(weight, PackedWeight):
        return takes_packed(weight)
    return isinstance(weight, QuantizedWeight) or weight.is_contiguous()


def prefers_torch(rows: int, weight_rows: int, inputs: int) -> bool:
    """Return whether the library's product with a (weight_rows, inputs) weight is faster."""
    shape = _LIKE.get((weight_rows, inputs), (weight_rows, inputs))
    return rows > _TORCH_ABOVE.get(shape, _TORCH_ABOVE_USUAL)


def linear(
    x: Tensor,
    weight: Weight,
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
        tiles: Tiles to use instead of those of `tiles_for`; 4-bit weights have fixed tiles.

    Returns:
        (rows, outputs), of the dtype of `x`.
    """
    out = x.new_empty((x.shape[0], weight.shape[0]))
    _launch(x, weight, out, tiles, bias=bias, norm=norm, eps=eps, residual=residual, gated=False)
    return out


def gated_linear(
    x: Tensor,
    weight: Weight,
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


def tiles_for(rows: int, weight_rows: int, inputs: int, *, gated: bool) -> Tiles:
    """Return the tiles of a product with a (weight_rows, inputs) weight."""
    bucket = bucket_of(rows)
    measured = TILES.get((bucket, weight_rows, inputs, gated))
    if measured is None and (weight_rows, inputs) in _LIKE:
        measured = TILES.get((bucket, *_LIKE[weight_rows, inputs], gated))
    if measured is not None:
        return measured
    usual = _USUAL[bucket]
    slices = usual.slices if inputs % (16 * usual.slices) == 0 else 1
    smallest = 16 if bucket > _FEW_ROWS else 1  # minimum of a matrix unit
    depth = max(smallest, min(usual.depth, triton.next_power_of_2(inputs // slices)))
    return Tiles(usual.outputs, depth, slices, usual.warps, usual.stages)


def bucket_of(rows: int) -> int:
    """Return the number of rows that the kernel for these is compiled for."""
    return rows if rows <= _FEW_ROWS else max(16, triton.next_power_of_2(rows))


def _launch(
    x: Tensor,
    weight: Weight,
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
        packed_product(x, weight, out, bucket, norm=norm, eps=eps, **rest)
        return
    scale = weight.scale if isinstance(weight, QuantizedWeight) else None
    weight = weight.values if isinstance(weight, QuantizedWeight) else weight
    tiles = tiles or tiles_for(rows, weight.shape[0], inputs, gated=gated)
    # x * norm before scaling may exceed float16
    most = _FEW_ROWS if x.dtype == torch.float16 else _FOLDED_ROWS
    folded = bucket <= most and (bucket <= _FEW_ROWS or tiles.slices > 1)
    if eps is not None and not folded:
        x, norm, eps = rms_norm(x, norm, eps), None, None
    options = overlap_option(x.device)
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
    if bucket <= _FEW_ROWS:
        few_rows[grid](**arrays, **normed, **sizes)
    elif tiles.slices > 1:
        slices = {"SLICES": tiles.slices, "STAGES": tiles.stages}
        many_rows[grid](**arrays, **normed, **sizes, **slices)
    else:
        all_rows[grid](**arrays, **sizes, STAGES=tiles.stages)
