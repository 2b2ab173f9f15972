"""Tile sizes of the convolutions of `conv`. Knows no kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Tiles:
    """Tile sizes of one convolution.

    Attributes:
        rows: Time columns of one program, counted over all streams; a power of two, at least 16.
        outputs: Outputs of one program, a power of two, at least 16. Not used for a residual unit,
            which has all its channels in one program.
        depth: Input channels of one pass of the loop, a power of two; less if the channels are not
            a multiple of it.
        warps: Warps of one program.
        stages: Passes of the loop whose inputs are in flight at the same time.
        slices: Parts of the depth that separate programs compute in parallel. A second kernel adds
            them up.
    """

    rows: int
    outputs: int
    depth: int
    warps: int
    stages: int
    slices: int = 1


# The fastest tiles that were measured: (rows, outputs, taps * channels) -> tiles, and for residual
# units (rows, channels) -> tiles, or None for two convolutions. The rows are rounded up to a power
# of two; a transposed convolution has stride * channels outputs. `python -m
# benchmarks.kernels.codec --tune` prints these lines.
TILES: dict[tuple[int, int, int], Tiles] = {}
UNIT_TILES: dict[tuple[int, int], Tiles | None] = {}

# For sizes that were not measured: the first with enough programs to fill a large GPU, in slices if
# necessary, whose last program wastes only part of the outputs.
_PROGRAMS = 128
_WASTED_PART = 8
_USUAL = (
    Tiles(128, 256, 64, 8, 3),
    Tiles(256, 128, 64, 8, 3),
    Tiles(128, 128, 64, 8, 3),
    Tiles(128, 64, 64, 4, 4),
    Tiles(64, 64, 64, 4, 4),
)
_USUAL_SMALL = Tiles(32, 32, 64, 4, 4)
_USUAL_UNITS = (Tiles(128, 0, 64, 8, 4), Tiles(64, 0, 64, 4, 3), Tiles(16, 0, 32, 4, 4))
_LARGE = 128 * 128
_PASSES_OF_LARGE = 16
_MAX_SLICES = 8
_PASSES_OF_SLICE = 8  # fewer are not worth a second kernel
_MAX_SLICED_NUMBERS = 1 << 20  # adding up more outputs takes longer than slices save

# A residual unit is one kernel up to this number of channels; more do not fit into registers.
_MAX_UNIT_CHANNELS = 192


def tiles_for(rows: int, outputs: int, channels: int, taps: int, most_numbers: int) -> Tiles:
    """Return the tiles of a convolution of this many columns in total.

    Args:
        rows: Columns.
        outputs: Outputs of a column.
        channels: Input channels.
        taps: Columns of the kernel.
        most_numbers: Inputs and weights that fit into the shared memory of one program.
    """
    measured = TILES.get((bucket_of(rows), outputs, channels * taps))
    if measured is not None:
        return measured
    bucket = bucket_of(rows)
    small = replace(_USUAL_SMALL, rows=max(16, min(_USUAL_SMALL.rows, bucket)))
    for usual in (*_USUAL, small):
        blocks = _cdiv(outputs, usual.outputs)
        wasted = blocks * usual.outputs - outputs
        slices = _cdiv(_PROGRAMS, _cdiv(rows, usual.rows) * blocks)
        passes = channels * taps // min(usual.depth, even_part(channels))
        most = min(_MAX_SLICES, passes // _PASSES_OF_SLICE)
        if rows * outputs > _MAX_SLICED_NUMBERS or most < 1:
            most = 1
        if usual is small:
            return replace(small, slices=min(slices, most))
        # a short loop does not hide a program's end, but two small programs in parallel do
        too_large = (
            usual.rows > bucket
            or (passes < _PASSES_OF_LARGE and usual.rows * usual.outputs > _LARGE)
            or loop_numbers(usual, usual.outputs, channels) > most_numbers
        )
        if not too_large and wasted * _WASTED_PART <= outputs and slices <= most:
            return replace(usual, slices=slices)
    raise AssertionError("the last cut takes everything")


def unit_tiles_for(rows: int, channels: int, most_numbers: int) -> Tiles | None:
    """Return the tiles of a residual unit, or None if two convolutions are faster or necessary.

    Args:
        rows: Columns in total.
        channels: Of the unit.
        most_numbers: Inputs and weights that fit into the shared memory of one program.
    """
    rest = channels - main_part(channels)
    two_powers = rest == 0 or (rest >= 16 and even_part(rest) == rest)
    if channels > _MAX_UNIT_CHANNELS or not two_powers:
        return None
    bucket = bucket_of(rows)
    if (bucket, channels) in UNIT_TILES:
        return UNIT_TILES[bucket, channels]
    fitting = [usual for usual in _USUAL_UNITS if unit_numbers(usual, channels) <= most_numbers]
    filling = (usual for usual in fitting if rows >= usual.rows * _PROGRAMS)
    return next(filling, fitting[-1] if fitting else None)


def loop_numbers(tiles: Tiles, outputs: int, channels: int) -> int:
    """Return how many inputs and weights the passes in flight of one program hold."""
    depth = min(tiles.depth, even_part(channels))
    return (tiles.rows + outputs) * depth * tiles.stages


def unit_numbers(tiles: Tiles, channels: int) -> int:
    """Return how many inputs and weights one program of a residual unit holds.

    After its loop the program multiplies all its rows with a whole matrix of channels.
    """
    second = (tiles.rows + channels) * channels
    return max(loop_numbers(tiles, channels, channels), second)


def even_part(channels: int) -> int:
    """Return the largest power of two that divides the channels."""
    return channels & -channels


def main_part(channels: int) -> int:
    """Return the largest power of two that is not above the channels."""
    return 1 << (channels.bit_length() - 1)


def bucket_of(rows: int) -> int:
    """Return the next power of two: rows up to it share tiles."""
    return 1 << (rows - 1).bit_length()


def _cdiv(count: int, block: int) -> int:
    return -(-count // block)
