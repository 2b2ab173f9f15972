"""Tell voiced sound, which has a pitch, from noise such as coughs, breath and knocks.

The vocal folds repeat their pulse 60 to 400 times a second, and the rate changes slowly. So a frame
is voiced if its sound repeats after some lag, and did so after nearly the same lag one frame
before. Noise in a narrow band also repeats at times, but each time after another lag.
"""

from __future__ import annotations

import numpy as np

from izwi.arrays import Float32
from izwi_api.realtime.protocol.formats import INPUT_RATE

_LAGS = np.arange(INPUT_RATE // 400, INPUT_RATE // 60)
_FFT_SIZE = 2048
# The strongest harmonics of voices. Below is hum, above much of the noise of breath.
_FREQUENCIES = np.fft.rfftfreq(_FFT_SIZE, 1 / INPUT_RATE)
_IS_OUTSIDE = (_FREQUENCIES < 100) | (_FREQUENCIES > 1500)
# Least correlation of a window with itself, one pitch period later.
_LEAST_CORRELATION = 0.5
# Of several lags that explain the window about equally well the shortest is the period.
_ABOUT_EQUAL = 0.9
# Largest relative change of the period from one frame to the next.
_MAX_CHANGE = 0.15


class PitchTracker:
    """Tracks the pitch period of a stream, frame by frame."""

    def __init__(self) -> None:
        self._lag = 0

    def is_voiced(self, window: Float32) -> bool:
        """Return whether the newest frame is voiced.

        Args:
            window: (640,) samples at 16 kHz: the newest frame of 20 ms behind the one before.
        """
        before, self._lag = self._lag, _period(window)
        if not before or not self._lag:
            return False
        # an error of an octave is common, and no sign of noise
        change = min(abs(self._lag * times - before) for times in (0.5, 1.0, 2.0))
        return change <= _MAX_CHANGE * before

    def skip(self) -> None:
        """Pass a frame that is not speech."""
        self._lag = 0


def _period(window: Float32) -> int:
    """Return the pitch period in samples, or 0 if the window does not repeat."""
    spectrum = np.fft.rfft(window - np.mean(window), _FFT_SIZE)
    spectrum[_IS_OUTSIDE] = 0.0
    samples = np.fft.irfft(spectrum, _FFT_SIZE)[: len(window)]
    products = np.fft.irfft(np.abs(np.fft.rfft(samples, _FFT_SIZE)) ** 2)[_LAGS]
    energies = np.cumsum(np.pad(np.square(samples), (1, 0)))
    # of the parts that overlap when the window is shifted by a lag
    overlaps = energies[len(samples) - _LAGS] * (energies[-1] - energies[_LAGS])
    correlations = products / (np.sqrt(overlaps) + 1e-9)
    inner = correlations[1:-1]
    # near lag 0 all sound of low frequency correlates, but without a peak
    is_peak = (inner > correlations[:-2]) & (inner >= correlations[2:])
    peaks = np.flatnonzero(is_peak) + 1
    if not len(peaks) or (best := float(correlations[peaks].max())) < _LEAST_CORRELATION:
        return 0
    return int(_LAGS[peaks[correlations[peaks] >= _ABOUT_EQUAL * best][0]])
