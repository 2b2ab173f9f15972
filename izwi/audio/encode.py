"""Encode audio as a stream: samples in, bytes of a file out. Knows no HTTP."""

from __future__ import annotations

import struct
from typing import Protocol

from izwi.arrays import Float32
from izwi.audio.pcm import to_s16le
from izwi.audio.resample import StreamResampler
from izwi.errors import InvalidRequest

# Clients of `pcm` hard-code this rate: the bytes carry no header that could say another.
PCM_RATE = 24_000
# The size field of a WAV whose length is not known yet.
UNKNOWN_SIZE = 0xFFFFFFFF


class StreamEncoder(Protocol):
    """Turn samples into a file, piece by piece."""

    def write(self, pcm: Float32) -> bytes:
        """Take mono samples in [-1, 1] and return the bytes that are ready, perhaps none."""
        ...

    def finish(self) -> bytes:
        """Return the last bytes. Call it once."""
        ...


CONTENT_TYPES = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}
FORMATS = tuple(CONTENT_TYPES)


def stream_encoder(audio_format: str, rate: int) -> StreamEncoder:
    """Start a file.

    Args:
        audio_format: One of FORMATS.
        rate: Rate in Hz of the samples that will be written.

    Raises:
        InvalidRequest: The format is unknown.
    """
    if audio_format == "wav":
        return WavEncoder(rate)
    if audio_format == "pcm":
        return PcmEncoder(rate)
    if audio_format in FORMATS:
        # FFmpeg takes 0.1 s to import, and the command line knows formats only.
        from izwi.audio.compressed import CODECS, CodecEncoder

        return CodecEncoder(CODECS[audio_format], rate)
    raise InvalidRequest(
        f"audio format {audio_format!r} is not one of {', '.join(FORMATS)}",
        param="response_format",
    )


def wav_header(rate: int, num_bytes: int | None = None) -> bytes:
    """Return the 44-byte header of a mono 16-bit WAV; None is for a length not known yet."""
    size, riff_size = UNKNOWN_SIZE, UNKNOWN_SIZE
    if num_bytes is not None:
        size, riff_size = num_bytes, num_bytes + 36
    return struct.pack(
        "<4sI4s4sIHHIIHH4sI",
        *(b"RIFF", riff_size, b"WAVE"),
        *(b"fmt ", 16, 1, 1, rate, rate * 2, 2, 16),
        *(b"data", size),
    )


def with_length(head: bytes, num_samples: int) -> bytes:
    """Write the length, now known, into the first bytes of a streamed WAV or FLAC file.

    libsndfile refuses a FLAC without one, and players cannot seek. Other formats need none and
    come back unchanged.

    Args:
        head: The first 64 bytes of the file or more.
        num_samples: Samples in the whole file.
    """
    if head[:4] == b"RIFF":
        (rate,) = struct.unpack_from("<I", head, 24)
        return wav_header(rate, num_samples * 2) + head[44:]
    if head[:4] == b"fLaC":
        # STREAMINFO: the low 4 bits of byte 21 and the next 4 bytes are the number of samples.
        length = bytes([head[21] & 0xF0 | num_samples >> 32 & 0xF])
        return head[:21] + length + struct.pack(">I", num_samples & 0xFFFFFFFF) + head[26:]
    return head


class WavEncoder:
    """16-bit mono WAV at the rate of the samples, its header first."""

    def __init__(self, rate: int):
        self._header = wav_header(rate)

    def write(self, pcm: Float32) -> bytes:
        """Return the samples' bytes, after the header the first time."""
        header, self._header = self._header, b""
        return header + to_s16le(pcm)

    def finish(self) -> bytes:
        """Return the header if nothing was written."""
        header, self._header = self._header, b""
        return header


class PcmEncoder:
    """Bare 16-bit little-endian mono samples at PCM_RATE."""

    def __init__(self, rate: int):
        self._resampler = StreamResampler(rate, PCM_RATE)

    def write(self, pcm: Float32) -> bytes:
        """Return the samples' bytes."""
        return to_s16le(self._resampler.write(pcm))

    def finish(self) -> bytes:
        """Return what the resampler held."""
        return to_s16le(self._resampler.finish())
