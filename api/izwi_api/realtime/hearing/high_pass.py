"""Remove what lies below voices from a microphone's signal: a constant offset, rumble, mains hum.

A Butterworth filter of the fourth order at 80 Hz: -16 dB at 50 Hz, -10 dB at 60 Hz, less than 1 dB
above 97 Hz. It runs block by block as matrix products (its state space), so that a second of
audio takes 50 of them and not 16,000 steps of Python.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from izwi.arrays import Float32
from izwi_api.realtime.protocol.formats import INPUT_RATE

_CUTOFF_HZ = 80.0
# Of the two sections of a Butterworth filter of the fourth order.
_QUALITIES = (0.541196100146197, 1.306562964876377)
_BLOCK = INPUT_RATE * 5 // 1000
_Matrix = npt.NDArray[np.float64]


def _section(quality: float) -> tuple[_Matrix, _Matrix, _Matrix, float]:
    """Return one section, by bilinear transform, as the matrices A, B, C, D of its state."""
    tangent = np.tan(np.pi * _CUTOFF_HZ / INPUT_RATE)
    scale = 1.0 / (1.0 + tangent / quality + tangent**2)
    a1 = 2.0 * (tangent**2 - 1.0) * scale
    a2 = (1.0 - tangent / quality + tangent**2) * scale
    step = np.array([[-a1, 1.0], [-a2, 0.0]])
    return step, scale * np.array([-2.0 - a1, 1.0 - a2]), np.array([1.0, 0.0]), scale


def _in_series() -> tuple[_Matrix, _Matrix, _Matrix, float]:
    """Return both sections in series."""
    (a, b, c, d), (a2, b2, c2, d2) = map(_section, _QUALITIES)
    step = np.block([[a, np.zeros((2, 2))], [np.outer(b2, c), a2]])
    return step, np.concatenate([b, d * b2]), np.concatenate([d2 * c, c2]), d * d2


def _blocks() -> tuple[_Matrix, _Matrix, _Matrix, _Matrix]:
    """Return, for a block: output of input, output of state, state of input, state of state."""
    a, b, c, d = _in_series()
    powers = [np.eye(len(b))]
    for _ in range(_BLOCK):
        powers.append(a @ powers[-1])
    answer = np.array([d] + [float(c @ power @ b) for power in powers[: _BLOCK - 1]])
    places = np.arange(_BLOCK)[:, None] - np.arange(_BLOCK)
    output = np.where(places >= 0, answer[np.abs(places)], 0.0)
    of_state = np.array([c @ power for power in powers[:_BLOCK]])
    into_state = np.array([power @ b for power in reversed(powers[:_BLOCK])])
    return output.T, of_state.T, into_state, powers[_BLOCK].T


_OUTPUT, _OF_STATE, _INTO_STATE, _STEP = _blocks()


class HighPass:
    """Filters a stream at 16 kHz."""

    def __init__(self) -> None:
        self._state = np.zeros(len(_STEP))

    def write(self, samples: Float32) -> Float32:
        """Filter the next samples: (n,), n a multiple of 80."""
        blocks = samples.reshape(-1, _BLOCK).astype(np.float64)
        states = []
        for change in blocks @ _INTO_STATE:
            states.append(self._state)
            self._state = self._state @ _STEP + change
        filtered: _Matrix = blocks @ _OUTPUT + np.array(states) @ _OF_STATE
        return filtered.reshape(-1).astype(np.float32)
