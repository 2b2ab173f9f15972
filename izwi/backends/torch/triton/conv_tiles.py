"""How the convolutions of `conv` are cut into programs; knows no kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Tiles:
    """How one convolution is cut.

    Attributes:
        rows: Columns of time of one program, those of all streams counted through; a power of
            two, at least 16.
        outputs: Outputs of one program, a power of two, at least 16. A residual unit has all its
            channels in one program, and this is not read.
        depth: Input channels of one pass of the loop, a power of two; less where the channels are
            no multiple of it.
        warps: Of one program.
        stages: Passes of the loop whose numbers are in flight at once.
        slices: Parts of the depth that programs of their own take side by side. A second kernel
            adds them up.
    """

    rows: int
    outputs: int
    depth: int
    warps: int
    stages: int
    slices: int = 1


# What was measured to be the fastest: (rows, outputs, taps * channels) -> tiles, and for residual
# units (rows, channels) -> tiles, or None for two convolutions. The rows are rounded up to a power
# of two; a transposed convolution has stride * channels outputs.
# `python -m benchmarks.codec_kernels --tune` prints these lines.
TILES: dict[tuple[int, int, int], Tiles] = {}
UNIT_TILES: dict[tuple[int, int], Tiles | None] = {}

# Where nothing was measured: the first with enough programs to fill a large GPU, if need be in
# slices, and whose last program wastes no more than a part of the outputs.
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
_MAX_SLICED_NUMBERS = 1 << 20  # more outputs take longer to be added up than slices save

# A residual unit is one kernel up to so many channels; more leave no room for its numbers.
_MAX_UNIT_CHANNELS = 192


def tiles_for(rows: int, outputs: int, channels: int, taps: int) -> Tiles:
    """How a convolution of so many columns in all is cut."""
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
        # a short loop does not hide a program's end: two small programs side by side do
        too_large = usual.rows > bucket or (
            passes < _PASSES_OF_LARGE and usual.rows * usual.outputs > _LARGE
        )
        if not too_large and wasted * _WASTED_PART <= outputs and slices <= most:
            return replace(usual, slices=slices)
    raise AssertionError("the last cut takes everything")


def unit_tiles_for(rows: int, channels: int) -> Tiles | None:
    """How a residual unit is cut, or None where two convolutions are faster or the only way."""
    rest = channels - main_part(channels)
    two_powers = rest == 0 or (rest >= 16 and even_part(rest) == rest)
    if channels > _MAX_UNIT_CHANNELS or not two_powers:
        return None
    bucket = bucket_of(rows)
    if (bucket, channels) in UNIT_TILES:
        return UNIT_TILES[bucket, channels]
    filling = (usual for usual in _USUAL_UNITS if rows >= usual.rows * _PROGRAMS)
    return next(filling, _USUAL_UNITS[-1])


def even_part(channels: int) -> int:
    """The largest power of two that divides the channels."""
    return channels & -channels


def main_part(channels: int) -> int:
    """The largest power of two that is not above the channels."""
    return 1 << (channels.bit_length() - 1)


def bucket_of(rows: int) -> int:
    """Rows that share a cut: those up to a power of two."""
    return 1 << (rows - 1).bit_length()


def _cdiv(count: int, block: int) -> int:
    return -(-count // block)
