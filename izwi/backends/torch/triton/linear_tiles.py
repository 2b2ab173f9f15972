"""Tile sizes of `linear`, by the size of the weight and the number of rows."""

from __future__ import annotations

# mypy: allow-untyped-calls
from dataclasses import dataclass, replace
from typing import TypeAlias

import triton

# Up to this number of rows, products are computed one by one; more use matrix units.
FEW_ROWS = 2
_LEAST_DEPTH = 16  # of a matrix unit


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


# Rows of the bucket, outputs and inputs of the weight, and whether it is gated.
Product: TypeAlias = tuple[int, int, int, bool]

# Products whose tiles were asked for, if they are to be searched; None: not recorded.
asked: set[Product] | None = None

# The fastest tiles that were measured: (rows, *weight.shape, gated) -> tiles. The rows are the
# bucket's (see `bucket_of`); two use the tiles of one. `python -m benchmarks.kernels.decode --tune`
# prints these lines. First those of speech, on an H200.
TILES: dict[Product, Tiles] = {
    (1, 1024, 2048, False): Tiles(outputs=2, depth=2048, slices=1, warps=4, stages=1),  # 2.1 us
    (16, 1024, 2048, False): Tiles(outputs=8, depth=128, slices=4, warps=4, stages=4),  # 5.3 us
    (32, 1024, 2048, False): Tiles(outputs=32, depth=128, slices=1, warps=4, stages=4),  # 7.0 us
    (1, 1024, 3072, False): Tiles(outputs=4, depth=2048, slices=1, warps=8, stages=1),  # 2.8 us
    (16, 1024, 3072, False): Tiles(outputs=8, depth=128, slices=4, warps=4, stages=4),  # 6.9 us
    (32, 1024, 3072, False): Tiles(outputs=32, depth=64, slices=4, warps=4, stages=4),  # 8.9 us
    (1, 2048, 1024, False): Tiles(outputs=2, depth=1024, slices=1, warps=2, stages=1),  # 2.1 us
    (16, 2048, 1024, False): Tiles(outputs=8, depth=128, slices=4, warps=4, stages=4),  # 4.1 us
    (32, 2048, 1024, False): Tiles(outputs=64, depth=64, slices=1, warps=4, stages=5),  # 5.8 us
    (1, 2048, 2048, False): Tiles(outputs=1, depth=1024, slices=1, warps=1, stages=1),  # 3.0 us
    (16, 2048, 2048, False): Tiles(outputs=8, depth=128, slices=4, warps=4, stages=4),  # 5.7 us
    (32, 2048, 2048, False): Tiles(outputs=16, depth=64, slices=4, warps=4, stages=4),  # 10.1 us
    (1, 2048, 6144, False): Tiles(outputs=2, depth=2048, slices=1, warps=4, stages=1),  # 6.3 us
    (16, 2048, 6144, False): Tiles(outputs=8, depth=128, slices=4, warps=4, stages=4),  # 11.6 us
    (32, 2048, 6144, False): Tiles(outputs=32, depth=64, slices=4, warps=4, stages=4),  # 20.8 us
    (1, 4096, 1024, False): Tiles(outputs=4, depth=512, slices=1, warps=2, stages=1),  # 3.3 us
    (16, 4096, 1024, False): Tiles(outputs=16, depth=64, slices=8, warps=8, stages=4),  # 9.7 us
    (32, 4096, 1024, False): Tiles(outputs=16, depth=64, slices=4, warps=4, stages=4),  # 8.5 us
    (1, 4096, 2048, False): Tiles(outputs=4, depth=1024, slices=1, warps=4, stages=1),  # 5.8 us
    (16, 4096, 2048, False): Tiles(outputs=16, depth=64, slices=8, warps=8, stages=4),  # 15.0 us
    (32, 4096, 2048, False): Tiles(outputs=16, depth=64, slices=4, warps=4, stages=4),  # 11.6 us
    (1, 6144, 1024, True): Tiles(outputs=1, depth=1024, slices=1, warps=1, stages=1),  # 4.7 us
    (16, 6144, 1024, True): Tiles(outputs=32, depth=64, slices=4, warps=4, stages=4),  # 8.4 us
    (32, 6144, 1024, True): Tiles(outputs=64, depth=64, slices=1, warps=4, stages=5),  # 9.7 us
    (1, 12288, 2048, True): Tiles(outputs=2, depth=2048, slices=1, warps=4, stages=1),  # 14.1 us
    (16, 12288, 2048, True): Tiles(outputs=16, depth=64, slices=4, warps=4, stages=4),  # 23.4 us
    (32, 12288, 2048, True): Tiles(outputs=32, depth=128, slices=2, warps=4, stages=3),  # 25.0 us
    # LFM2-Audio, and chat models with their heads, on an H100
    (1, 1024, 1024, False): Tiles(outputs=4, depth=1024, slices=1, warps=4, stages=1),  # 1.7 us
    (16, 1024, 1024, False): Tiles(outputs=32, depth=128, slices=1, warps=4, stages=5),  # 3.8 us
    (32, 1024, 1024, False): Tiles(outputs=32, depth=128, slices=1, warps=4, stages=4),  # 4.5 us
    (1, 1024, 2816, False): Tiles(outputs=4, depth=2048, slices=1, warps=8, stages=1),  # 3.0 us
    (16, 1024, 2816, False): Tiles(outputs=8, depth=128, slices=4, warps=4, stages=4),  # 6.8 us
    (32, 1024, 2816, False): Tiles(outputs=32, depth=64, slices=4, warps=4, stages=4),  # 9.8 us
    (1, 1536, 1024, False): Tiles(outputs=2, depth=1024, slices=1, warps=2, stages=1),  # 2.2 us
    (16, 1536, 1024, False): Tiles(outputs=64, depth=64, slices=1, warps=4, stages=6),  # 5.6 us
    (32, 1536, 1024, False): Tiles(outputs=32, depth=128, slices=1, warps=4, stages=4),  # 5.1 us
    (1, 2048, 8192, False): Tiles(outputs=1, depth=2048, slices=1, warps=2, stages=1),  # 11.4 us
    (16, 2048, 8192, False): Tiles(outputs=8, depth=128, slices=4, warps=4, stages=4),  # 14.8 us
    (32, 2048, 8192, False): Tiles(outputs=32, depth=64, slices=4, warps=4, stages=4),  # 28.8 us
    (1, 2049, 1024, False): Tiles(outputs=2, depth=1024, slices=1, warps=2, stages=1),  # 2.6 us
    (16, 2049, 1024, False): Tiles(outputs=64, depth=64, slices=1, warps=4, stages=6),  # 6.3 us
    (32, 2049, 1024, False): Tiles(outputs=32, depth=128, slices=1, warps=4, stages=4),  # 7.7 us
    (1, 2560, 4096, False): Tiles(outputs=1, depth=2048, slices=1, warps=2, stages=1),  # 7.1 us
    (16, 2560, 4096, False): Tiles(outputs=8, depth=128, slices=4, warps=4, stages=4),  # 9.7 us
    (32, 2560, 4096, False): Tiles(outputs=16, depth=64, slices=4, warps=4, stages=4),  # 17.5 us
    (1, 2560, 9728, False): Tiles(outputs=4, depth=1024, slices=1, warps=4, stages=1),  # 17.0 us
    (16, 2560, 9728, False): Tiles(outputs=8, depth=128, slices=4, warps=4, stages=4),  # 19.9 us
    (32, 2560, 9728, False): Tiles(outputs=16, depth=64, slices=4, warps=4, stages=4),  # 36.3 us
    (1, 3072, 2048, False): Tiles(outputs=4, depth=1024, slices=1, warps=4, stages=1),  # 5.2 us
    (16, 3072, 2048, False): Tiles(outputs=32, depth=128, slices=1, warps=4, stages=5),  # 12.6 us
    (32, 3072, 2048, False): Tiles(outputs=32, depth=64, slices=4, warps=4, stages=4),  # 11.5 us
    (1, 4096, 4096, False): Tiles(outputs=2, depth=2048, slices=1, warps=4, stages=1),  # 11.5 us
    (16, 4096, 4096, False): Tiles(outputs=16, depth=64, slices=8, warps=8, stages=4),  # 15.3 us
    (32, 4096, 4096, False): Tiles(outputs=16, depth=64, slices=4, warps=4, stages=4),  # 21.0 us
    (1, 4096, 12288, False): Tiles(outputs=4, depth=2048, slices=1, warps=8, stages=1),  # 33.0 us
    (16, 4096, 12288, False): Tiles(outputs=16, depth=64, slices=8, warps=8, stages=4),  # 38.9 us
    (32, 4096, 12288, False): Tiles(outputs=16, depth=64, slices=4, warps=4, stages=4),  # 53.5 us
    (1, 5632, 1024, True): Tiles(outputs=1, depth=1024, slices=1, warps=1, stages=1),  # 4.7 us
    (16, 5632, 1024, True): Tiles(outputs=32, depth=64, slices=4, warps=4, stages=4),  # 8.7 us
    (32, 5632, 1024, True): Tiles(outputs=64, depth=128, slices=1, warps=4, stages=4),  # 9.9 us
    (1, 6144, 2048, False): Tiles(outputs=4, depth=1024, slices=1, warps=4, stages=1),  # 9.3 us
    (16, 6144, 2048, False): Tiles(outputs=128, depth=64, slices=1, warps=8, stages=4),  # 18.1 us
    (32, 6144, 2048, False): Tiles(outputs=32, depth=64, slices=4, warps=4, stages=4),  # 16.3 us
    (1, 6144, 2560, False): Tiles(outputs=2, depth=2048, slices=1, warps=4, stages=1),  # 11.7 us
    (16, 6144, 2560, False): Tiles(outputs=32, depth=64, slices=4, warps=4, stages=4),  # 19.9 us
    (32, 6144, 2560, False): Tiles(outputs=16, depth=64, slices=4, warps=4, stages=4),  # 17.8 us
    (1, 6144, 4096, False): Tiles(outputs=2, depth=2048, slices=1, warps=4, stages=1),  # 17.2 us
    (16, 6144, 4096, False): Tiles(outputs=64, depth=128, slices=1, warps=4, stages=4),  # 30.4 us
    (32, 6144, 4096, False): Tiles(outputs=16, depth=64, slices=4, warps=4, stages=4),  # 24.6 us
    (1, 8192, 2048, False): Tiles(outputs=2, depth=1024, slices=1, warps=4, stages=1),  # 12.1 us
    (16, 8192, 2048, False): Tiles(outputs=16, depth=64, slices=4, warps=4, stages=4),  # 14.8 us
    (32, 8192, 2048, False): Tiles(outputs=32, depth=64, slices=4, warps=4, stages=4),  # 16.5 us
    (1, 16384, 2048, True): Tiles(outputs=2, depth=1024, slices=1, warps=4, stages=1),  # 23.0 us
    (16, 16384, 2048, True): Tiles(outputs=32, depth=256, slices=1, warps=4, stages=3),  # 29.7 us
    (32, 16384, 2048, True): Tiles(outputs=64, depth=128, slices=1, warps=4, stages=4),  # 29.4 us
    (1, 19456, 2560, True): Tiles(outputs=2, depth=2048, slices=1, warps=4, stages=1),  # 33.2 us
    (16, 19456, 2560, True): Tiles(outputs=32, depth=128, slices=1, warps=4, stages=5),  # 47.1 us
    (32, 19456, 2560, True): Tiles(outputs=32, depth=128, slices=1, warps=4, stages=4),  # 45.6 us
    (1, 24576, 4096, True): Tiles(outputs=2, depth=4096, slices=1, warps=8, stages=1),  # 65.3 us
    (16, 24576, 4096, True): Tiles(outputs=32, depth=256, slices=1, warps=4, stages=3),  # 82.5 us
    (32, 24576, 4096, True): Tiles(outputs=64, depth=128, slices=1, warps=4, stages=4),  # 83.6 us
    (1, 65536, 2048, False): Tiles(outputs=1, depth=2048, slices=1, warps=2, stages=1),  # 85.3 us
    (16, 65536, 2048, False): Tiles(outputs=16, depth=128, slices=4, warps=4, stages=3),  # 92.3 us
    (32, 65536, 2048, False): Tiles(outputs=32, depth=128, slices=2, warps=4, stages=3),  # 120.0 us
    (1, 151936, 1024, False): Tiles(outputs=4, depth=512, slices=1, warps=2, stages=1),  # 99.8 us
    (16, 151936, 1024, False): Tiles(
        outputs=32, depth=128, slices=4, warps=4, stages=2
    ),  # 106.5 us
    (32, 151936, 1024, False): Tiles(
        outputs=32, depth=128, slices=1, warps=4, stages=4
    ),  # 115.8 us
    (1, 151936, 2048, False): Tiles(outputs=1, depth=2048, slices=1, warps=2, stages=1),  # 195.8 us
    (16, 151936, 2048, False): Tiles(
        outputs=16, depth=128, slices=4, warps=4, stages=3
    ),  # 205.0 us
    (32, 151936, 2048, False): Tiles(outputs=16, depth=64, slices=4, warps=4, stages=4),  # 269.0 us
    (1, 151936, 2560, False): Tiles(outputs=2, depth=2048, slices=1, warps=4, stages=1),  # 243.7 us
    (16, 151936, 2560, False): Tiles(
        outputs=16, depth=128, slices=4, warps=4, stages=3
    ),  # 262.6 us
    (32, 151936, 2560, False): Tiles(
        outputs=32, depth=128, slices=2, warps=4, stages=3
    ),  # 329.7 us
    (1, 151936, 4096, False): Tiles(outputs=1, depth=4096, slices=1, warps=4, stages=1),  # 389.0 us
    (16, 151936, 4096, False): Tiles(outputs=8, depth=128, slices=4, warps=4, stages=4),  # 401.5 us
    (32, 151936, 4096, False): Tiles(outputs=32, depth=64, slices=4, warps=4, stages=4),  # 514.0 us
}

# The same of weights in 8 bits, on an H200: outputs, depth, slices, warps, stages.
TILES_OF_8_BITS: dict[tuple[int, int, int, bool], Tiles] = {
    (1, 1024, 2048, False): Tiles(1, 2048, 1, 2, 1),  # 2.2 us
    (1, 1024, 3072, False): Tiles(2, 1024, 1, 4, 1),  # 2.6 us
    (1, 2048, 1024, False): Tiles(2, 1024, 1, 2, 1),  # 2.1 us
    (1, 2048, 2048, False): Tiles(1, 2048, 1, 2, 1),  # 3.0 us
    (1, 2048, 6144, False): Tiles(2, 1024, 1, 4, 1),  # 5.9 us
    (1, 4096, 1024, False): Tiles(2, 1024, 1, 2, 1),  # 3.2 us
    (1, 4096, 2048, False): Tiles(2, 1024, 1, 2, 1),  # 4.4 us
    (1, 6144, 1024, True): Tiles(2, 1024, 1, 2, 1),  # 4.3 us
    (1, 12288, 2048, True): Tiles(2, 1024, 1, 2, 1),  # 10.0 us
    (16, 1024, 2048, False): Tiles(16, 64, 4, 4, 4),  # 4.6 us
    (16, 1024, 3072, False): Tiles(16, 64, 4, 4, 4),  # 6.1 us
    (16, 2048, 1024, False): Tiles(32, 128, 1, 4, 5),  # 3.8 us
    (16, 2048, 2048, False): Tiles(8, 128, 4, 4, 4),  # 5.4 us
    (16, 2048, 6144, False): Tiles(8, 128, 4, 4, 4),  # 10.6 us
    (16, 4096, 1024, False): Tiles(32, 128, 1, 4, 5),  # 7.1 us
    (16, 4096, 2048, False): Tiles(16, 64, 8, 8, 4),  # 11.5 us
    (16, 6144, 1024, True): Tiles(16, 128, 4, 4, 3),  # 8.0 us
    (16, 12288, 2048, True): Tiles(16, 128, 4, 4, 3),  # 16.0 us
    (32, 1024, 2048, False): Tiles(16, 64, 4, 4, 4),  # 6.1 us
    (32, 1024, 3072, False): Tiles(16, 64, 4, 4, 4),  # 9.1 us
    (32, 2048, 1024, False): Tiles(32, 128, 1, 4, 4),  # 5.1 us
    (32, 2048, 2048, False): Tiles(32, 128, 1, 4, 4),  # 8.7 us
    (32, 2048, 6144, False): Tiles(32, 128, 1, 4, 4),  # 21.8 us
    (32, 4096, 1024, False): Tiles(16, 64, 4, 4, 4),  # 8.2 us
    (32, 4096, 2048, False): Tiles(16, 64, 4, 4, 4),  # 11.8 us
    (32, 6144, 1024, True): Tiles(64, 64, 1, 4, 5),  # 10.1 us
    (32, 12288, 2048, True): Tiles(16, 64, 4, 4, 4),  # 19.2 us
    (64, 1024, 2048, False): Tiles(32, 128, 1, 4, 4),  # 9.2 us
    (64, 1024, 3072, False): Tiles(32, 128, 1, 4, 4),  # 13.9 us
    (64, 2048, 1024, False): Tiles(32, 128, 1, 4, 4),  # 5.8 us
    (64, 2048, 2048, False): Tiles(32, 128, 1, 4, 4),  # 12.3 us
    (64, 2048, 6144, False): Tiles(32, 128, 1, 4, 4),  # 31.4 us
    (64, 4096, 1024, False): Tiles(32, 128, 1, 4, 4),  # 8.0 us
    (64, 4096, 2048, False): Tiles(32, 128, 1, 4, 4),  # 14.0 us
    (64, 6144, 1024, True): Tiles(16, 128, 1, 4, 4),  # 10.7 us
    (64, 12288, 2048, True): Tiles(32, 128, 1, 4, 4),  # 26.0 us
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
    (1024, 2048): 16,
    (1024, 2816): 16,
    (1024, 3072): 16,
    (2048, 1024): 16,
    (2048, 2048): 16,
    (2048, 6144): 16,
    (2048, 8192): 16,
    (2560, 4096): 16,
    (2560, 9728): 16,
    (3072, 2048): 2,
    (4096, 1024): 2,
    (4096, 2048): 2,
    (4096, 4096): 16,
    (4096, 12288): 16,
    (5632, 1024): 2,
    (6144, 1024): 2,
    (6144, 2048): 2,
    (6144, 2560): 2,
    (6144, 4096): 2,
    (8192, 2048): 2,
    (12288, 2048): 2,
    (16384, 2048): 2,
    (19456, 2560): 2,
    (24576, 4096): 2,
    (65536, 2048): 16,
    (151936, 2048): 16,
    (151936, 2560): 16,
    (151936, 4096): 16,
}
_TORCH_ABOVE_USUAL = 32


def prefers_torch(rows: int, weight_rows: int, inputs: int) -> bool:
    """Return whether the library's product with a (weight_rows, inputs) weight is faster."""
    return rows > _TORCH_ABOVE.get((weight_rows, inputs), _TORCH_ABOVE_USUAL)


def tiles_for(
    rows: int, weight_rows: int, inputs: int, *, gated: bool, in_8_bits: bool = False
) -> Tiles:
    """Return the tiles of a product with a (weight_rows, inputs) weight."""
    bucket = bucket_of(rows)
    product = 1 if bucket == 2 else bucket, weight_rows, inputs, gated
    if asked is not None and not in_8_bits:
        asked.add(product)
    measured = (TILES_OF_8_BITS.get(product) if in_8_bits else None) or TILES.get(product)
    if measured is not None:
        return measured
    usual = _USUAL[bucket]
    slices = usual.slices if inputs % (16 * usual.slices) == 0 else 1
    smallest = 16 if bucket > FEW_ROWS else 1  # minimum of a matrix unit
    depth = max(smallest, min(usual.depth, triton.next_power_of_2(inputs // slices)))
    return Tiles(usual.outputs, depth, slices, usual.warps, usual.stages)


def fitted(tiles: Tiles, rows: int, pass_bytes: int, most_bytes: int) -> Tiles:
    """Return tiles whose passes in flight fit into shared memory.

    Tiles are measured on large GPUs. Fewer passes in flight, then shorter ones, give the same sums.

    Args:
        tiles: As measured.
        rows: Of the bucket; up to FEW_ROWS use registers alone.
        pass_bytes: Of one input column of one slice: those of all its rows and outputs.
        most_bytes: Shared memory of one program; see `shared_bytes`.
    """
    if rows <= FEW_ROWS:
        return tiles
    while True:
        stages = most_bytes // (tiles.slices * tiles.depth * pass_bytes)
        if stages >= min(2, tiles.stages) or tiles.depth <= _LEAST_DEPTH:
            return replace(tiles, stages=max(1, min(tiles.stages, stages)))
        tiles = replace(tiles, depth=tiles.depth // 2)


def bucket_of(rows: int) -> int:
    """Return the number of rows that the kernel for these is compiled for."""
    return rows if rows <= FEW_ROWS else max(16, triton.next_power_of_2(rows))
