"""Change the sample rate, whole or as a stream; both give the same samples. Knows no container."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol, runtime_checkable

import numpy as np
import soxr

from izwi.arrays import Float32
from izwi.audio.sinc import SincStream

# librosa's default, which the reference packages resample with: parity needs the same filter.
QUALITY = "HQ"


def resample(samples: Float32, from_rate: int, to_rate: int) -> Float32:
    """Resample mono samples to another rate (Hz)."""
    if from_rate == to_rate:
        return samples
    resampled: Float32 = soxr.resample(samples, from_rate, to_rate, quality=QUALITY)
    return resampled


class Resampling(StrEnum):
    """A filter, named after the library with this default; models need that of their training."""

    LIBROSA = "librosa"
    TORCHAUDIO = "torchaudio"


@runtime_checkable
class Resamples(Protocol):
    """A model whose published code resamples with another filter than librosa's."""

    @property
    def resampling(self) -> Resampling:
        """The filter."""
        ...


def resampling_of(model: object) -> Resampling:
    """Return the filter for resampling a model's audio."""
    return model.resampling if isinstance(model, Resamples) else Resampling.LIBROSA


class Resampler(Protocol):
    """Resamples a mono stream chunk by chunk."""

    def write(self, samples: Float32) -> Float32:
        """Add samples; return those that are ready at the new rate."""
        ...

    def finish(self) -> Float32:
        """Return the samples still in the filter."""
        ...


def open_resampler(resampling: Resampling, from_rate: int, to_rate: int) -> Resampler:
    """Return a resampler of a stream (rates in Hz)."""
    if resampling is Resampling.TORCHAUDIO:
        return SincStream(from_rate, to_rate)
    return StreamResampler(from_rate, to_rate)


class StreamResampler:
    """Resample a mono stream chunk by chunk; the pieces joined equal `resample` of the whole."""

    def __init__(self, from_rate: int, to_rate: int):
        self._stream: soxr.ResampleStream | None = None
        if from_rate != to_rate:
            self._stream = soxr.ResampleStream(
                from_rate, to_rate, 1, dtype="float32", quality=QUALITY
            )

    def write(self, samples: Float32) -> Float32:
        """Add samples; return those that are ready at the new rate."""
        return self._run(samples, last=False)

    def finish(self) -> Float32:
        """Return the samples still in the filter."""
        return self._run(np.zeros(0, np.float32), last=True)

    def _run(self, samples: Float32, *, last: bool) -> Float32:
        if self._stream is None:
            return samples
        ready: Float32 = self._stream.resample_chunk(samples, last=last)
        return ready
