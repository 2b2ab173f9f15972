"""Tiles of large GPUs are cut to what the shared memory of smaller ones holds."""

from __future__ import annotations

import pytest
import torch

from izwi.backends.torch.triton import conv_tiles, linear_tiles
from izwi.backends.torch.triton.attention_prompt import LARGE, tile_for
from izwi.backends.torch.triton.shared_memory import shared_bytes

LARGE_BYTES, SMALL_BYTES = 227 << 10, 99 << 10  # compute capabilities 9.0, and 8.6, 8.9 and 12.0


@pytest.mark.parametrize("most_bytes", [LARGE_BYTES, SMALL_BYTES])
def test_products_fit_with_every_measured_tile(most_bytes: int) -> None:
    for (rows, _, _, gated), tiles in linear_tiles.TILES.items():
        column_bytes = 2 * (rows + tiles.outputs * (1 + gated))
        fitted = linear_tiles.fitted(tiles, rows, column_bytes, most_bytes)
        if rows > linear_tiles.FEW_ROWS:
            used = fitted.slices * fitted.depth * fitted.stages * column_bytes
            assert used <= most_bytes
            assert fitted.stages >= 2
        if most_bytes == LARGE_BYTES:
            assert fitted == tiles


def test_passes_become_shorter_where_two_do_not_fit() -> None:
    tiles = linear_tiles.Tiles(outputs=64, depth=256, slices=1, warps=4, stages=4)
    fitted = linear_tiles.fitted(tiles, 64, 2 * (64 + 128), SMALL_BYTES)
    assert (fitted.depth, fitted.stages) == (128, 2)


@pytest.mark.parametrize("most_numbers", [LARGE_BYTES // 2, SMALL_BYTES // 2, SMALL_BYTES // 4])
def test_convolutions_of_every_size_fit(most_numbers: int) -> None:
    for rows in (1, 32, 2_000, 100_000):
        for channels in (16, 48, 96, 192, 384, 768, 1536):
            tiles = conv_tiles.tiles_for(rows, channels, channels, 7, most_numbers)
            assert conv_tiles.loop_numbers(tiles, tiles.outputs, channels) <= most_numbers
            unit = conv_tiles.unit_tiles_for(rows, channels, most_numbers)
            assert unit is None or conv_tiles.unit_numbers(unit, channels) <= most_numbers


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int8])
@pytest.mark.parametrize("positions", [1, 300, 5_000])
def test_prompts_fit(positions: int, dtype: torch.dtype) -> None:
    tile = tile_for(positions, 128, dtype, SMALL_BYTES)
    rows = tile.queries + 2 * tile.keys * tile.stages
    assert rows * 128 * max(2, dtype.itemsize) <= SMALL_BYTES
    if dtype is torch.bfloat16:
        assert (tile_for(positions, 128, dtype, LARGE_BYTES) == LARGE) == (positions > 1_000)


def test_an_interpreted_kernel_has_the_memory_of_a_large_gpu() -> None:
    assert shared_bytes(torch.device("cpu")) == LARGE_BYTES
