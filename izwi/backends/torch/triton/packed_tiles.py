"""Tile sizes of products with weights in groups, by size and number of rows."""

from __future__ import annotations

from izwi.backends.torch.triton.linear_tiles import FEW_ROWS, Tiles

# The fastest tiles that were measured: (rows, *weight.shape, gated) -> tiles; depths are bytes of a
# row, and a group with more than two rows. The rows are the bucket's; two use the tiles of one.
# `python -m benchmarks.kernels.decode --tune --weights int4` prints these lines: here on an H200.
# Outputs, depth, slices, warps, stages.
TILES: dict[tuple[int, int, int, bool], Tiles] = {
    (1, 1024, 2048, False): Tiles(1, 1024, 1, 4, 1),  # 2.4 us
    (1, 1024, 3072, False): Tiles(1, 1024, 1, 4, 1),  # 2.8 us
    (1, 2048, 1024, False): Tiles(2, 512, 1, 4, 1),  # 2.5 us
    (1, 2048, 2048, False): Tiles(1, 1024, 1, 4, 1),  # 3.7 us
    (1, 2048, 6144, False): Tiles(1, 1024, 1, 4, 1),  # 6.2 us
    (1, 4096, 1024, False): Tiles(2, 512, 1, 4, 1),  # 4.4 us
    (1, 4096, 2048, False): Tiles(2, 1024, 1, 4, 1),  # 6.2 us
    (1, 6144, 1024, True): Tiles(2, 512, 1, 4, 1),  # 4.9 us
    (1, 12288, 2048, True): Tiles(1, 512, 1, 2, 1),  # 12.3 us
    (16, 1024, 2048, False): Tiles(16, 64, 4, 4, 3),  # 6.0 us
    (16, 1024, 3072, False): Tiles(16, 64, 4, 4, 3),  # 8.6 us
    (16, 2048, 1024, False): Tiles(16, 64, 4, 4, 5),  # 5.1 us
    (16, 2048, 2048, False): Tiles(16, 64, 4, 4, 5),  # 7.5 us
    (16, 2048, 6144, False): Tiles(16, 64, 4, 4, 5),  # 17.5 us
    (16, 4096, 1024, False): Tiles(16, 64, 4, 4, 5),  # 6.5 us
    (16, 4096, 2048, False): Tiles(16, 64, 4, 4, 5),  # 8.0 us
    (16, 6144, 1024, True): Tiles(16, 64, 4, 4, 5),  # 8.8 us
    (16, 12288, 2048, True): Tiles(16, 64, 4, 4, 3),  # 19.5 us
    (32, 1024, 2048, False): Tiles(16, 64, 4, 4, 5),  # 6.1 us
    (32, 1024, 3072, False): Tiles(16, 64, 4, 4, 5),  # 8.0 us
    (32, 2048, 1024, False): Tiles(16, 64, 4, 4, 5),  # 4.5 us
    (32, 2048, 2048, False): Tiles(16, 64, 4, 4, 5),  # 7.0 us
    (32, 2048, 6144, False): Tiles(16, 64, 4, 4, 5),  # 13.9 us
    (32, 4096, 1024, False): Tiles(16, 64, 4, 4, 3),  # 9.0 us
    (32, 4096, 2048, False): Tiles(16, 64, 4, 4, 3),  # 11.7 us
    (32, 6144, 1024, True): Tiles(16, 64, 4, 4, 3),  # 10.2 us
    (32, 12288, 2048, True): Tiles(32, 64, 4, 4, 3),  # 24.5 us
    (64, 1024, 2048, False): Tiles(16, 64, 4, 4, 3),  # 8.8 us
    (64, 1024, 3072, False): Tiles(16, 64, 4, 4, 3),  # 12.5 us
    (64, 2048, 1024, False): Tiles(16, 64, 4, 4, 3),  # 5.9 us
    (64, 2048, 2048, False): Tiles(16, 64, 4, 4, 3),  # 9.8 us
    (64, 2048, 6144, False): Tiles(16, 64, 4, 4, 3),  # 22.4 us
    (64, 4096, 1024, False): Tiles(32, 64, 4, 4, 3),  # 10.1 us
    (64, 4096, 2048, False): Tiles(16, 64, 2, 2, 3),  # 17.1 us
    (64, 6144, 1024, True): Tiles(16, 64, 4, 4, 3),  # 17.5 us
    (64, 12288, 2048, True): Tiles(16, 64, 2, 2, 3),  # 37.8 us
}

# For sizes that were not measured, by bucket of rows.
_USUAL = {
    1: Tiles(outputs=1, depth=1024, slices=1, warps=4, stages=1),
    2: Tiles(outputs=1, depth=1024, slices=1, warps=4, stages=1),
    16: Tiles(outputs=16, depth=64, slices=4, warps=4, stages=5),
    32: Tiles(outputs=16, depth=64, slices=4, warps=4, stages=3),
    64: Tiles(outputs=16, depth=64, slices=4, warps=4, stages=3),
}


def packed_tiles(bucket: int, shape: tuple[int, ...], group: int, *, gated: bool) -> Tiles:
    """Return the tiles of a product with an (out, in) weight in groups of this size."""
    outputs, inputs = shape
    tiles = TILES.get((1 if bucket == 2 else bucket, outputs, inputs, gated), _USUAL[bucket])
    # a slice has whole groups, of both halves of a row in 4 bits
    if bucket > FEW_ROWS and inputs // 2 % (tiles.slices * group):
        return Tiles(tiles.outputs, tiles.depth, 1, tiles.warps, tiles.stages)
    return tiles
