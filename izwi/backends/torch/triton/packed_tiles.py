"""Tile sizes of products with weights in groups, by size and number of rows."""

from __future__ import annotations

from izwi.backends.torch.triton.linear_tiles import FEW_ROWS, Tiles

# The fastest tiles that were measured: (rows, *weight.shape, gated) -> tiles; depths are bytes of a
# row, and a group with more than two rows. The rows are the bucket's; two use the tiles of one.
# `python -m benchmarks.kernels.decode --tune --weights int4` prints these lines.
TILES: dict[tuple[int, int, int, bool], Tiles] = {}

# For sizes that were not measured, by bucket of rows.
_USUAL = {
    1: Tiles(outputs=2, depth=1024, slices=1, warps=4, stages=1),
    2: Tiles(outputs=2, depth=1024, slices=1, warps=4, stages=1),
    16: Tiles(outputs=16, depth=64, slices=4, warps=4, stages=3),
    32: Tiles(outputs=16, depth=64, slices=4, warps=4, stages=3),
    64: Tiles(outputs=64, depth=64, slices=1, warps=4, stages=4),
}


def packed_tiles(bucket: int, shape: tuple[int, ...], group: int, *, gated: bool) -> Tiles:
    """Return the tiles of a product with an (out, in) weight in groups of this size."""
    outputs, inputs = shape
    tiles = TILES.get((1 if bucket == 2 else bucket, outputs, inputs, gated), _USUAL[bucket])
    # a slice has whole groups, of both halves of a row in 4 bits
    if bucket > FEW_ROWS and inputs // 2 % (tiles.slices * group):
        return Tiles(tiles.outputs, tiles.depth, 1, tiles.warps, tiles.stages)
    return tiles
