"""Reduce noise in a microphone's signal, as `noise_reduction` of a session asks.

WebRTC's noise suppression, from PyPI's `webrtc-noise-gain` (the extra `noise`), which is imported
when the first session asks for it. It reads 10 ms at a time at 16 kHz, and delays audio by 6 ms.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np

from izwi.arrays import Float32
from izwi.audio.pcm import from_s16le, to_s16le
from izwi_api.realtime.protocol.formats import INPUT_RATE

Distance = Literal["near_field", "far_field"]
_PACKAGE = "webrtc_noise_gain"
_FRAME = INPUT_RATE // 100
_FRAME_BYTES = 2 * _FRAME
# WebRTC's levels: 1 removes 6 dB of the noise, 2 removes 12. More costs words even without noise
# (benchmarks/results/noise_reduction.json).
_LEVELS: dict[Distance, int] = {"near_field": 1, "far_field": 2}
_NO_GAIN = 0


def reduces_noise() -> bool:
    """Return whether the package that reduces noise is installed."""
    return find_spec(_PACKAGE) is not None


class NoiseReducer:
    """Reduces the noise of a stream at 16 kHz.

    Args:
        distance: Of the microphone from the voice; more noise is removed of a far one.
    """

    def __init__(self, distance: Distance):
        processor: Any = import_module(_PACKAGE).AudioProcessor
        self._processor = processor(_NO_GAIN, _LEVELS[distance])
        self._rest = np.zeros(0, np.float32)

    def write(self, samples: Float32) -> Float32:
        """Add samples and return those of the frames that are complete: (n,), n a multiple of 160.

        Args:
            samples: (n,) float32, of any length.
        """
        pending = np.concatenate([self._rest, samples])
        stop = len(pending) - len(pending) % _FRAME
        self._rest = pending[stop:]
        pcm = to_s16le(pending[:stop])
        frames = (pcm[start : start + _FRAME_BYTES] for start in range(0, len(pcm), _FRAME_BYTES))
        return from_s16le(b"".join(self._processor.Process10ms(frame).audio for frame in frames))

    def finish(self) -> Float32:
        """Return the samples of an incomplete frame, as they came."""
        rest, self._rest = self._rest, self._rest[:0]
        return rest
