"""Audio formats of a session: 16-bit PCM at 24 kHz and G.711 at 8 kHz, to and from samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from izwi.arrays import Float32
from izwi.audio.g711 import Law, decode_g711, encode_g711
from izwi.audio.pcm import from_s16le, to_s16le
from izwi.audio.resample import StreamResampler

PCM_RATE = 24_000
INPUT_RATE = 16_000  # for speech detection and transcription


@dataclass(frozen=True, slots=True)
class WireFormat:
    """A format for audio on the wire. `law` is None for 16-bit PCM."""

    name: str
    rate: int
    sample_bytes: int
    law: Law | None = None

    def num_bytes(self, duration_ms: float) -> int:
        """Return the number of bytes for a duration, in whole samples."""
        return round(duration_ms * self.rate / 1000) * self.sample_bytes

    def duration_ms(self, num_bytes: int) -> float:
        """Return the duration of this many bytes in milliseconds."""
        return num_bytes / self.sample_bytes * 1000 / self.rate

    def decode(self, data: bytes) -> Float32:
        """Decode whole samples from bytes to (n,) float32 in [-1, 1]."""
        return from_s16le(data) if self.law is None else decode_g711(data, self.law)

    def encode(self, samples: Float32) -> bytes:
        """Encode samples that have this format's rate."""
        return to_s16le(samples) if self.law is None else encode_g711(samples, self.law)

    def silence(self, duration_ms: int) -> bytes:
        """Return silence of this duration."""
        return self.encode(np.zeros(self.rate * duration_ms // 1000, np.float32))


FORMATS = {
    "audio/pcm": WireFormat("audio/pcm", PCM_RATE, 2),
    "audio/pcmu": WireFormat("audio/pcmu", 8000, 1, "mu"),
    "audio/pcma": WireFormat("audio/pcma", 8000, 1, "a"),
}


class InputDecoder:
    """Decodes a client's bytes to samples at 16 kHz. Chunk sizes do not change the result."""

    def __init__(self, wire: WireFormat):
        self._wire = wire
        self._half = b""  # incomplete sample
        self._resampler = StreamResampler(wire.rate, INPUT_RATE)

    def write(self, data: bytes) -> Float32:
        """Decode bytes and return the samples that are complete: (n,) float32."""
        data = self._half + data
        size = len(data) - len(data) % self._wire.sample_bytes
        self._half = data[size:]
        return self._resampler.write(self._wire.decode(data[:size]))

    def drop_half_sample(self) -> None:
        """Drop an incomplete sample: the next byte begins another one."""
        self._half = b""

    def finish(self) -> Float32:
        """Return the remaining samples."""
        return self._resampler.finish()


class OutputEncoder:
    """Encodes samples for a client; an `izwi.audio.encode.StreamEncoder`."""

    def __init__(self, wire: WireFormat, rate: int):
        """Encode a new stream of samples at `rate`, in Hz."""
        self._wire = wire
        self._resampler = StreamResampler(rate, wire.rate)

    def write(self, pcm: Float32) -> bytes:
        """Encode samples and return the bytes that are complete."""
        return self._wire.encode(self._resampler.write(pcm)) if len(pcm) else b""

    def finish(self) -> bytes:
        """Return the remaining bytes."""
        rest = self._resampler.finish()
        return self._wire.encode(rest) if len(rest) else b""


class RecentAudio:
    """The most recent samples of a stream, addressed by their position in it."""

    def __init__(self, max_samples: int):
        self.end = 0  # samples written so far
        self._max = max_samples
        self._kept = np.zeros(0, np.float32)

    def write(self, samples: Float32) -> None:
        """Append samples."""
        self.end += len(samples)
        self._kept = np.concatenate([self._kept, samples])[-self._max :]

    def read(self, start: int, stop: int) -> Float32:
        """Return those of the samples [start, stop) that are still kept."""
        first = self.end - len(self._kept)
        return self._kept[max(0, start - first) : max(0, stop - first)]
