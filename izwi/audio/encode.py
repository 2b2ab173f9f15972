"""Encode audio as a stream: samples in, bytes of a file out. Knows no HTTP."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Protocol

import av
import numpy as np

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


@dataclass(frozen=True, slots=True)
class Codec:
    """How FFmpeg makes a compressed format.

    Attributes:
        muxer: Its container.
        encoder: Its codec.
        bit_rate: Bits a second, 0 for the codec's own choice.
        options: Options of the container.
    """

    muxer: str
    encoder: str
    bit_rate: int = 0
    options: dict[str, str] = field(default_factory=dict)


CODECS = {
    # A Xing header would have to be written last, at the start.
    "mp3": Codec("mp3", "libmp3lame", 96_000, {"write_xing": "0", "id3v2_version": "0"}),
    # By default Ogg holds a second of audio back in a page (microseconds).
    "opus": Codec("ogg", "libopus", 64_000, {"page_duration": "40000"}),
    "flac": Codec("flac", "flac"),
    "aac": Codec("adts", "aac", 96_000),
}
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
    if audio_format in CODECS:
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


class CodecEncoder:
    """A compressed format through FFmpeg, muxed for a reader that cannot seek."""

    def __init__(self, codec: Codec, rate: int):
        self._rate = rate
        self._num_samples = 0
        self._sink = _Sink()
        self._container: Any = av.open(
            self._sink,
            "w",
            format=codec.muxer,
            container_options={**codec.options, "flush_packets": "1"},
        )
        # Typed Any: what add_stream returns depends on the codec's name.
        stream: Any = self._container.add_stream(codec.encoder, rate=rate, layout="mono")
        if codec.bit_rate:
            stream.bit_rate = codec.bit_rate
        self._stream = stream

    def write(self, pcm: Float32) -> bytes:
        """Return the packets that are complete; a codec holds some 20 to 100 ms back."""
        if pcm.size:
            samples = np.clip(pcm, -1.0, 1.0).astype(np.float32)[None]
            frame = av.AudioFrame.from_ndarray(samples, format="fltp", layout="mono")
            frame.sample_rate = self._rate
            frame.pts = self._num_samples
            frame.time_base = Fraction(1, self._rate)
            self._num_samples += pcm.size
            self._mux(frame)
        return self._sink.take()

    def finish(self) -> bytes:
        """Return the packets that the codec held and the container's end."""
        # A codec that never ran has no header to close with: give it one frame of silence.
        if not self._num_samples:
            self.write(np.zeros(self._rate // 50, np.float32))
        self._mux(None)
        self._container.close()
        return self._sink.take()

    def _mux(self, frame: Any) -> None:
        for packet in self._stream.encode(frame):
            self._container.mux(packet)


class _Sink:
    """A file that can only be written on; not seekable, so no muxer goes back."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def write(self, piece: bytes) -> int:
        self._bytes += piece
        return len(piece)

    def take(self) -> bytes:
        """Return what was written since the last call."""
        taken = bytes(self._bytes)
        self._bytes.clear()
        return taken
