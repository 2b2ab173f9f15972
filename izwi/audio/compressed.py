"""Compressed formats of encoded audio, through FFmpeg."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import av
import numpy as np

from izwi.arrays import Float32


@dataclass(frozen=True, slots=True)
class CompressedFormat:
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
    "mp3": CompressedFormat("mp3", "libmp3lame", 96_000, {"write_xing": "0", "id3v2_version": "0"}),
    # By default Ogg holds a second of audio back in a page (microseconds).
    "opus": CompressedFormat("ogg", "libopus", 64_000, {"page_duration": "40000"}),
    "flac": CompressedFormat("flac", "flac"),
    "aac": CompressedFormat("adts", "aac", 96_000),
}


class CodecEncoder:
    """A compressed format through FFmpeg, muxed for a reader that cannot seek."""

    def __init__(self, codec: CompressedFormat, rate: int):
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
        return self._sink.pop_written()

    def finish(self) -> bytes:
        """Return the packets that the codec held and the container's end."""
        # A codec that never ran has no header to close with: give it one frame of silence.
        if not self._num_samples:
            self.write(np.zeros(self._rate // 50, np.float32))
        self._mux(None)
        self._container.close()
        return self._sink.pop_written()

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

    def pop_written(self) -> bytes:
        """Return what was written since the last call."""
        taken = bytes(self._bytes)
        self._bytes.clear()
        return taken
