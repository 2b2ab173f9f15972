"""The client's audio type: samples with their rate."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from izwi.arrays import Float32
from izwi.audio.encode import FORMATS, PCM_RATE, stream_encoder, wav_header, with_length
from izwi.audio.pcm import to_s16le
from izwi.errors import InvalidRequest

# The server's scale for 16-bit samples, so that they round-trip exactly.
_FULL_SCALE = np.float32(32767.0)


@dataclass(frozen=True, slots=True, eq=False)
class Audio:
    """Mono audio.

    Attributes:
        samples: (n,) float32 in [-1, 1].
        sample_rate: In Hz.
    """

    samples: Float32
    sample_rate: int

    @property
    def duration_s(self) -> float:
        """Return the duration in seconds."""
        return self.samples.size / self.sample_rate

    @classmethod
    def read(cls, source: str | Path | bytes, sample_rate: int = PCM_RATE) -> Audio:
        """Read an audio file.

        Args:
            source: Its path or its bytes; wav, flac, mp3, m4a, ogg, webm and others.
            sample_rate: Rate to resample to, in Hz.

        Raises:
            InvalidAudio: The file cannot be read, or is not audio.
            TooLarge: It is longer than an hour.
        """
        from izwi.audio.decode import decode_audio

        content = source if isinstance(source, bytes) else Path(source)
        return cls(decode_audio(content, sample_rate), sample_rate)

    def save(self, path: str | Path) -> None:
        """Write a file in the format given by its suffix: wav, mp3, opus, ogg, flac, aac or pcm.

        Raises:
            InvalidRequest: The suffix is not that of a supported format.
            OSError: The file cannot be written.
        """
        path = Path(path)
        encoder = stream_encoder(format_of(path), self.sample_rate)
        content = encoder.write(self.samples) + encoder.finish()
        path.write_bytes(with_length(content, self.samples.size))

    def wav(self) -> bytes:
        """Return the audio as a 16-bit WAV file."""
        pcm = to_s16le(np.asarray(self.samples, np.float32))
        return wav_header(self.sample_rate, len(pcm)) + pcm

    def _repr_html_(self) -> str:
        """Return an HTML player, for notebooks."""
        content = base64.b64encode(self.wav()).decode("ascii")
        return f'<audio controls src="data:audio/wav;base64,{content}"></audio>'


def format_of(path: Path) -> str:
    """Return the audio format for a file's suffix. Raises InvalidRequest if it is unknown."""
    suffix = path.suffix.lower().removeprefix(".")
    audio_format = "opus" if suffix == "ogg" else suffix
    if audio_format not in FORMATS:
        raise InvalidRequest(
            f"cannot write {path}: its suffix must be .ogg or one of "
            + ", ".join(f".{name}" for name in FORMATS),
            param="out",
        )
    return audio_format


class PcmReader:
    """Decodes 16-bit samples at PCM_RATE from chunks that may split a sample."""

    def __init__(self) -> None:
        self._half = b""

    def read(self, content: bytes) -> Audio:
        """Add bytes and return the samples that are complete."""
        content = self._half + content
        whole = len(content) - len(content) % 2
        self._half = content[whole:]
        samples = np.frombuffer(content[:whole], "<i2").astype(np.float32) / _FULL_SCALE
        return Audio(samples, PCM_RATE)
