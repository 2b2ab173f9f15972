"""Find pauses in audio by its level alone. Pure: samples in, ranges out.

A pause is where the audio stays near the quietest that it gets, so low noise is a pause as well as
silence. Audio whose level hardly changes has none: it may be noise alone, or speech in loud noise.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from izwi.arrays import Float32

Float64 = npt.NDArray[np.float64]

FRAME_S = 0.02
# Shorter ones are closures of consonants, or between words.
LEAST_PAUSE_S = 0.25
# Levels are medians of so many frames, so that a click does not divide a pause.
_MEDIAN_FRAMES = 5
# A pause is below this share of the range between the quietest and the loudest, in dB.
_SHARE, _LEAST_STEP_DB, _LEAST_RANGE_DB = 0.3, 6.0, 10.0
# Silence may be digital, so the quietest level is at most so far below the loudest.
_MOST_RANGE_DB = 50.0
_QUIETEST_PERCENT = 3.0
_EMPTY_DB = -120.0


def frame_samples(sample_rate: int) -> int:
    """Return the number of samples of a frame."""
    return max(1, round(FRAME_S * sample_rate))


def frame_levels_db(samples: Float32, sample_rate: int) -> Float64:
    """Return the level of each complete frame of 20 ms.

    Args:
        samples: (n,).
        sample_rate: In Hz.

    Returns:
        (frames,) in dB relative to full scale; a constant offset of a frame does not count.
    """
    size = frame_samples(sample_rate)
    frames = samples[: len(samples) // size * size].reshape(-1, size)
    power = frames.var(axis=1, dtype=np.float64)
    levels_db: Float64 = 10.0 * np.log10(power + 10.0 ** (_EMPTY_DB / 10))
    return levels_db


def find_pauses(levels_db: Float64) -> list[tuple[int, int]]:
    """Return the pauses as ranges [start, stop) of frames, in order, each 0.25 s or longer.

    Args:
        levels_db: (frames,) from `frame_levels_db`.
    """
    if len(levels_db) < _MEDIAN_FRAMES:
        return []
    half = _MEDIAN_FRAMES // 2
    padded = np.pad(levels_db, half, mode="edge")
    smooth = np.median(np.lib.stride_tricks.sliding_window_view(padded, _MEDIAN_FRAMES), axis=1)
    top = float(smooth.max())
    floor = max(float(np.percentile(smooth, _QUIETEST_PERCENT)), top - _MOST_RANGE_DB)
    if top - floor < _LEAST_RANGE_DB:
        return []
    is_quiet = smooth < floor + max(_LEAST_STEP_DB, _SHARE * (top - floor))
    edges = np.flatnonzero(np.diff(np.concatenate([[False], is_quiet, [False]])))
    ranges = edges.reshape(-1, 2).tolist()
    least = round(LEAST_PAUSE_S / FRAME_S)
    return [(start, stop) for start, stop in ranges if stop - start >= least]
