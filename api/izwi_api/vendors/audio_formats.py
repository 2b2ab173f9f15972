"""Audio as vendors name it: a codec or bare samples, at a sample rate of the client's choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from izwi.arrays import Float32
from izwi.audio.encode import CONTENT_TYPES, StreamEncoder, WavEncoder, stream_encoder
from izwi.audio.resample import StreamResampler
from izwi_api.realtime.protocol.formats import OutputEncoder, WireFormat

Samples = Literal["pcm", "mulaw", "alaw"]
_CONTENT_TYPES = CONTENT_TYPES | {"mulaw": "audio/basic", "alaw": "audio/x-alaw-basic"}


@dataclass(frozen=True, slots=True)
class AudioFormat:
    """A format for audio that is sent.

    Attributes:
        name: "mp3", "opus", "aac", "flac" or "wav", or bare samples: "pcm" (16-bit little-endian),
            "mulaw" or "alaw".
        rate: Sample rate in Hz; None for the model's. Ignored by compressed formats, whose header
            says the rate.
    """

    name: str
    rate: int | None = None

    @property
    def content_type(self) -> str:
        """Content type of a response."""
        return _CONTENT_TYPES[self.name]

    @property
    def is_bare(self) -> bool:
        """Whether the bytes are samples without a header."""
        return self.name in ("pcm", "mulaw", "alaw")

    def encoder(self, rate: int) -> StreamEncoder:
        """Return an encoder of samples at a rate, in Hz."""
        out_rate = self.rate or rate
        if self.name == "pcm":
            return OutputEncoder(WireFormat(self.name, out_rate, 2), rate)
        if self.name == "mulaw":
            return OutputEncoder(WireFormat(self.name, out_rate, 1, "mu"), rate)
        if self.name == "alaw":
            return OutputEncoder(WireFormat(self.name, out_rate, 1, "a"), rate)
        if self.name == "wav" and out_rate != rate:
            return _ResampledWav(rate, out_rate)
        return stream_encoder(self.name, rate)


class _ResampledWav:
    """A WAV at another rate than that of the samples."""

    def __init__(self, rate: int, out_rate: int):
        self._resampler, self._wav = StreamResampler(rate, out_rate), WavEncoder(out_rate)

    def write(self, pcm: Float32) -> bytes:
        """Encode samples and return the bytes that are complete."""
        return self._wav.write(self._resampler.write(pcm))

    def finish(self) -> bytes:
        """Return the last bytes."""
        return self._wav.write(self._resampler.finish()) + self._wav.finish()
