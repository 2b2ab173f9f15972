"""Tiles that were found on a GPU are kept by its name, and used at the next start."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import triton
from typer.testing import CliRunner

from izwi.backends.torch.triton import linear, linear_tiles, tile_search
from izwi.backends.torch.triton.linear_tiles import Tiles

GPU = "NVIDIA GeForce RTX 4090"
PRODUCT = (16, 77, 4096, False)
TILES = Tiles(32, 64, 2, 4, 5)


@pytest.fixture(autouse=True)
def kernels_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))
    monkeypatch.setattr(linear_tiles, "TILES", dict(linear_tiles.TILES))
    return tmp_path


def test_found_tiles_are_used_after_a_restart_on_the_same_gpu() -> None:
    usual = linear_tiles.tiles_for(16, 77, 4096, gated=False)
    tile_search.keep(GPU, {PRODUCT: TILES})
    assert tile_search.use_kept("NVIDIA L4") == 0
    assert linear_tiles.tiles_for(16, 77, 4096, gated=False) == usual
    assert tile_search.use_kept(GPU) == 1
    assert linear_tiles.tiles_for(9, 77, 4096, gated=False) == TILES != usual


def test_a_second_search_keeps_what_the_first_found() -> None:
    other = (1, 77, 4096, True)
    tile_search.keep(GPU, {PRODUCT: TILES})
    tile_search.keep(GPU, {other: TILES})
    assert tile_search.use_kept(GPU) == 2


@pytest.mark.parametrize("text", ["", "{}", '{"version": 0, "products": []}', '{"version": 1}'])
def test_an_unreadable_file_changes_nothing(text: str) -> None:
    tile_search.file_for(GPU).write_text(text)
    before = dict(linear_tiles.TILES)
    assert tile_search.use_kept(GPU) == 0
    assert before == linear_tiles.TILES
    tile_search.keep(GPU, {PRODUCT: TILES})
    assert tile_search.use_kept(GPU) == 1


def test_products_are_recorded_by_the_bucket_of_their_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(linear_tiles, "asked", set())
    x, weight = torch.ones(3, 64), torch.ones(32, 64)
    linear.linear(x, weight)
    linear.gated_linear(x[:1], weight)
    assert linear_tiles.asked == {(16, 32, 64, False), (1, 32, 64, True)}


def test_a_cpu_has_nothing_to_search() -> None:
    from izwi_api.cli.tune import _asked
    from izwi_api.runtime_options import RuntimeOptions

    assert _asked([], RuntimeOptions("cpu", "auto")) == (set(), "cpu", "float32")


@pytest.mark.slow
def test_the_command_says_so() -> None:
    from izwi_api.cli.main import app

    done = CliRunner().invoke(app, ["tune", "izwi-tiny-tts", "--device", "cpu"])
    assert done.exit_code == 2
    assert "no kernels" in done.output
