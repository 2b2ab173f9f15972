"""Find out whether a clip holds speech at all, before a transcriber writes words into noise.

Two conditions must hold within the same second, and both are easy for speech to meet, because a
clip that holds speech must never be dropped:

* WebRTC's voice activity detector, at a permissive setting, finds voice in consecutive frames.
* The spectrum moves. Noise of any color, hum and steady tones keep the level of each frequency
  band within a few decibels; speech, even at 0 dB in noise, moves some of them by ten and more.

Sounds that move as speech does (music, knocks, birds) pass; not to write words into these is the
transcriber's part.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import webrtcvad

from izwi.arrays import Float32

SAMPLE_RATE = 16_000

# A clip that stays below this is empty: 16 units of 16-bit audio, -66 dBFS.
_SILENCE_PEAK = 2.0**-11
# WebRTC's detector compares with fixed energies, so quiet clips are raised to this peak first.
_VAD_PEAK = 0.5
_VAD_MODE = 1  # of 0 to 3: permissive
_VAD_FRAME = SAMPLE_RATE * 30 // 1000
_LEAST_VOICED_FRAMES = 3
# Consecutive voiced frames, 0.6 s, from which on nothing speaks against speech.
_CERTAIN_VOICED_FRAMES = 20

_WINDOW, _HOP = 512, 256
_SMOOTHED_WINDOWS = 4
# Of the loudest band's power, 60 dB down: what is below that is the window's leakage.
_LEAST_POWER = 1e-6
_NUM_BANDS, _LOWEST_HZ, _HIGHEST_HZ = 12, 150.0, 7000.0
# How far the levels of the three liveliest bands move, in dB. Measured on drawn clips of 0.2 to
# 15 s: noise up to 6.2, hum up to 4.7; speech at 0 dB in white and pink noise 9.7 and more.
_LEAST_MOVEMENT_DB = 7.5


def no_speech_probability(samples: Float32) -> float:
    """Estimate how likely it is that a clip holds no speech.

    Reads the clip second by second and stops where it has found speech.

    Args:
        samples: (n,) float32 at 16 kHz, within [-1, 1].

    Returns:
        1.0 where there is no speech, as far as can be told; else less, down to 0.0 where there are
        0.6 s of it without a break.
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
    """Voiced frames in a row at the end, and at most; `run` of them came right before."""
    pcm = samples.astype(np.int16)
    longest = 0
    for start in range(0, len(pcm) - _VAD_FRAME + 1, _VAD_FRAME):
        frame = pcm[start : start + _VAD_FRAME].tobytes()
        run = run + 1 if detector.is_speech(frame, SAMPLE_RATE) else 0
        longest = max(longest, run)
    return run, longest


def _movement_db(samples: Float32) -> float:
    """How far apart the high and the low levels of the three liveliest bands are, in dB."""
    padded = np.pad(samples, (0, max(0, 2 * _WINDOW - len(samples))))
    windows = np.lib.stride_tricks.sliding_window_view(padded, _WINDOW)[::_HOP]
    power = np.abs(np.fft.rfft(windows * _TAPER)) ** 2 @ _BANDS  # (windows, bands)
    sums = np.cumsum(np.pad(power, ((1, 0), (0, 0))), axis=0)
    count = min(_SMOOTHED_WINDOWS, len(power))
    smooth = (sums[count:] - sums[:-count]) / count
    levels_db = 10.0 * np.log10(np.maximum(smooth, smooth.max() * _LEAST_POWER + 1e-12))
    high, low = np.percentile(levels_db, (95, 10), axis=0)
    return float(np.sort(high - low)[-3:].mean())


def _band_matrix() -> npt.NDArray[np.float64]:
    """(bins, bands): which bin of the spectrum counts to which band."""
    hertz = np.fft.rfftfreq(_WINDOW, 1 / SAMPLE_RATE)
    ratio = math.log(_HIGHEST_HZ / _LOWEST_HZ) / _NUM_BANDS
    place = np.floor(np.log(np.maximum(hertz, 1.0) / _LOWEST_HZ) / ratio)
    bands: npt.NDArray[np.float64] = (place[:, None] == np.arange(_NUM_BANDS)).astype(np.float64)
    return bands


_TAPER = np.hanning(_WINDOW)
_BANDS = _band_matrix()
