"""Change the sample rate, whole or as a stream; both give the same samples. Knows no container."""

from __future__ import annotations

import numpy as np
import soxr

from izwi.arrays import Float32

# librosa's default, which the reference packages resample with: parity needs the same filter.
QUALITY = "HQ"


def resample(samples: Float32, from_rate: int, to_rate: int) -> Float32:
    """Return mono samples at another rate (Hz)."""
    if from_rate == to_rate:
        return samples
    resampled: Float32 = soxr.resample(samples, from_rate, to_rate, quality=QUALITY)
    return resampled


class StreamResampler:
    """Resample a mono stream chunk by chunk; the pieces joined equal `resample` of the whole."""

    def __init__(self, from_rate: int, to_rate: int):
        self._stream: soxr.ResampleStream | None = None
        if from_rate != to_rate:
            self._stream = soxr.ResampleStream(
                from_rate, to_rate, 1, dtype="float32", quality=QUALITY
            )

    def write(self, samples: Float32) -> Float32:
        """Take samples and return those that are ready at the new rate."""
        return self._run(samples, last=False)

    def finish(self) -> Float32:
        """Return what the filter still holds."""
        return self._run(np.zeros(0, np.float32), last=True)

    def _run(self, samples: Float32, *, last: bool) -> Float32:
        if self._stream is None:
            return samples
        ready: Float32 = self._stream.resample_chunk(samples, last=last)
        return ready
