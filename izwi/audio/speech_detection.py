"""Detect whether a clip has speech at all, so that a transcriber does not write words into noise.

Two conditions must hold within the same second. Speech meets both easily, because a clip with
speech must never be dropped:

* WebRTC's voice activity detector, at a permissive setting, finds voice in consecutive frames.
* The spectrum moves. Noise of any color, hum and steady tones keep the level of each frequency
  band within a few decibels; speech, even at 0 dB in noise, moves some of them by ten and more.
  It also moves them apart: in gusts of wind, or waves, all bands rise and fall together.

Other sounds that move like speech (music, knocks, birds) pass; the transcriber must not write words
into them.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import webrtcvad

from izwi.arrays import Float32

Float64 = npt.NDArray[np.float64]

SAMPLE_RATE = 16_000

# A clip that stays below this is empty: 16 units of 16-bit audio, -66 dBFS.
_SILENCE_PEAK = 2.0**-11
# WebRTC's detector compares with fixed energies, so quiet clips are raised to this peak first.
_VAD_PEAK = 0.5
_VAD_MODE = 1  # of 0 to 3: permissive
_VAD_FRAME = SAMPLE_RATE * 30 // 1000
_LEAST_VOICED_FRAMES = 3
# After this many consecutive voiced frames, 0.6 s, the clip certainly has speech.
_CERTAIN_VOICED_FRAMES = 20

_WINDOW, _HOP = 512, 256
_SMOOTHED_WINDOWS = 4
# Share of the loudest band's power, 60 dB down: lower power is leakage of the window.
_LEAST_POWER = 1e-6
_NUM_BANDS, _LOWEST_HZ, _HIGHEST_HZ = 12, 150.0, 7000.0
# How far the levels of the three most variable bands move, in dB. Measured on clips of 0.2 to
# 15 s: noise up to 6.2, hum up to 4.7; speech at 0 dB in white and pink noise 9.7 and more.
# Relative to the mean of all bands: noise that swells up to 6.4, speech as above 9.0 and more.
_LEAST_MOVEMENT_DB = 7.5
# Bands this far below the loudest, and windows this far, do not count towards a mean.
_AUDIBLE_BANDS_DB, _AUDIBLE_WINDOWS_DB = 35.0, 25.0
_LEAST_BANDS = 4  # fewer have no mean that all of them could move with


def no_speech_probability(samples: Float32) -> float:
    """Estimate the probability that a clip has no speech.

    Reads the clip second by second and stops at the first speech.

    Args:
        samples: (n,) float32 at 16 kHz, within [-1, 1].

    Returns:
        1.0 if no speech was found; otherwise less, down to 0.0 for 0.6 s of speech without a
        break.
    """
    peak = float(np.abs(samples).max(initial=0.0))
    if peak < _SILENCE_PEAK:
        return 1.0
    detector = webrtcvad.Vad(_VAD_MODE)
    raised = 32767 * max(1.0, _VAD_PEAK / peak)
    best = run = 0
    for start in range(0, len(samples), SAMPLE_RATE):
        second = samples[start : start + SAMPLE_RATE]
        run, longest = _voiced_run(detector, second * raised, run)
        if longest >= _LEAST_VOICED_FRAMES and _movement_db(second) >= _LEAST_MOVEMENT_DB:
            best = max(best, longest)
            if best >= _CERTAIN_VOICED_FRAMES:
                break
    return max(0.0, 1.0 - best / _CERTAIN_VOICED_FRAMES)


def _voiced_run(
    detector: webrtcvad.Vad, samples: npt.NDArray[np.float32], run: int
) -> tuple[int, int]:
    """Return the voiced frames in a row at the end, and at most; `run` were right before."""
    pcm = samples.astype(np.int16)
    longest = 0
    for start in range(0, len(pcm) - _VAD_FRAME + 1, _VAD_FRAME):
        frame = pcm[start : start + _VAD_FRAME].tobytes()
        run = run + 1 if detector.is_speech(frame, SAMPLE_RATE) else 0
        longest = max(longest, run)
    return run, longest


def _movement_db(samples: Float32) -> float:
    """Return how far the three most variable bands move, in dB; also relative to all bands."""
    levels_db = _band_levels_db(samples)
    return min(_spread_db(levels_db), _spread_db(_without_common_movement(levels_db)))


def _spread_db(levels_db: Float64) -> float:
    """Return the difference of high and low levels of the three most variable bands, in dB."""
    high, low = np.percentile(levels_db, (95, 10), axis=0)
    return float(np.sort(high - low)[-3:].mean())


def _without_common_movement(levels_db: Float64) -> Float64:
    """Return the levels of audible bands relative to their mean, in audible windows."""
    tops = np.percentile(levels_db, 95, axis=0)
    bands = tops > tops.max() - _AUDIBLE_BANDS_DB
    if bands.sum() < _LEAST_BANDS:
        return levels_db
    means = levels_db[:, bands].mean(1)
    windows = means > means.max() - _AUDIBLE_WINDOWS_DB
    relative: Float64 = levels_db[windows][:, bands] - means[windows, None]
    return relative


def _band_levels_db(samples: Float32) -> Float64:
    """Return the power of each band in dB, (windows, bands), smoothed over a few windows."""
    padded = np.pad(samples, (0, max(0, 2 * _WINDOW - len(samples))))
    windows = np.lib.stride_tricks.sliding_window_view(padded, _WINDOW)[::_HOP]
    power = np.abs(np.fft.rfft(windows * _TAPER)) ** 2 @ _BANDS  # (windows, bands)
    sums = np.cumsum(np.pad(power, ((1, 0), (0, 0))), axis=0)
    count = min(_SMOOTHED_WINDOWS, len(power))
    smooth = (sums[count:] - sums[:-count]) / count
    levels_db: Float64 = 10.0 * np.log10(np.maximum(smooth, smooth.max() * _LEAST_POWER + 1e-12))
    return levels_db


def _band_matrix() -> Float64:
    """Return the weights of the spectrum's bins in each band, (bins, bands)."""
    hertz = np.fft.rfftfreq(_WINDOW, 1 / SAMPLE_RATE)
    ratio = math.log(_HIGHEST_HZ / _LOWEST_HZ) / _NUM_BANDS
    place = np.floor(np.log(np.maximum(hertz, 1.0) / _LOWEST_HZ) / ratio)
    bands: Float64 = (place[:, None] == np.arange(_NUM_BANDS)).astype(np.float64)
    return bands


_TAPER = np.hanning(_WINDOW)
_BANDS = _band_matrix()
