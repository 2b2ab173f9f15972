"""Decode any uploaded audio to mono samples, trusting nothing that its header says.

Limits are checked while decoding, on what came out: a small file can claim, or really hold, hours.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np

from izwi.audio.pcm import mix_down, to_float
from izwi.audio.resample import StreamResampler
from izwi.errors import InvalidAudio, TooLarge
from izwi.request import Float32

# Plain audio containers only. FFmpeg also reads playlists that open other files and addresses.
DEMUXERS = "aac,aiff,amr,au,caf,flac,matroska,webm,mov,mp4,m4a,mp3,ogg,w64,wav"
MAX_RATE = 384_000
MAX_CHANNELS = 8
# A WAV writer that cannot seek back leaves a size that means "until the end": 2^32-1 or near 2^31.
_UNKNOWN_SIZE = 0x7FFF0000


@dataclass(frozen=True, slots=True)
class DecodeLimits:
    """What one file may decode to.

    Attributes:
        max_audio_s: Seconds of sound.
        max_decoded_bytes: Bytes of all channels' samples as they leave the decoder.
    """

    max_audio_s: float = 3600.0
    max_decoded_bytes: int = 1 << 30


def decode_audio(source: bytes | Path, rate: int, *, limits: DecodeLimits | None = None) -> Float32:
    """Decode a file to mono samples.

    Args:
        source: The file's bytes, or its path.
        rate: Sample rate of the answer in Hz.
        limits: What it may decode to; the defaults if None.

    Returns:
        (samples,) float32.

    Raises:
        InvalidAudio: Not audio, an impossible header, cut off, or without a single sample.
        TooLarge: Over a limit.
    """
    limits = limits or DecodeLimits()
    content = source if isinstance(source, bytes) else _read(source)
    if not content:
        raise InvalidAudio("the audio file is empty", param="file")
    _reject_cut_wav(content)
    try:
        with av.open(
            io.BytesIO(content), options={"format_whitelist": DEMUXERS}, metadata_errors="ignore"
        ) as container:
            samples = _decode_first_stream(container, rate, limits)
    except (av.FFmpegError, ValueError, OverflowError) as error:
        raise InvalidAudio(
            "the file is not audio that can be decoded; "
            "wav, flac, mp3, m4a, ogg and webm are understood",
            param="file",
        ) from error
    if samples.size == 0:
        raise InvalidAudio("the audio holds no sound: its length is zero", param="file")
    if not np.isfinite(samples).all():
        raise InvalidAudio("the audio holds samples that are not numbers", param="file")
    return samples


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidAudio(f"cannot read {path}: {error.strerror}", param="file") from error


def _decode_first_stream(container: Any, rate: int, limits: DecodeLimits) -> Float32:
    if not container.streams.audio:
        raise InvalidAudio("the file has no audio stream", param="file")
    stream = container.streams.audio[0]
    # Threads only help long video frames, and each costs memory that a forged file could ask for.
    stream.thread_count = 1
    resampler: StreamResampler | None = None
    source_rate = 0
    num_samples = num_bytes = 0
    pieces: list[Float32] = []
    for frame in _frames(container, stream):
        if resampler is None:
            source_rate = _checked_rate(frame)
            resampler = StreamResampler(source_rate, rate)
        elif frame.sample_rate != source_rate:
            raise InvalidAudio("the sample rate changes within the file", param="file")
        num_samples += frame.samples
        num_bytes += frame.samples * len(frame.layout.channels) * frame.format.bytes
        if num_samples > limits.max_audio_s * source_rate:
            raise TooLarge(f"the audio is longer than {limits.max_audio_s:g} s", param="file")
        if num_bytes > limits.max_decoded_bytes:
            raise TooLarge(
                f"the audio decodes to more than {limits.max_decoded_bytes} bytes", param="file"
            )
        pieces.append(resampler.write(_mono(frame)))
    if resampler is None:
        return np.zeros(0, np.float32)
    _reject_cut_flac(container, stream, num_samples)
    pieces.append(resampler.finish())
    return np.concatenate(pieces)


def _frames(container: Any, stream: Any) -> Iterator[Any]:
    """Decode packet by packet. A few damaged packets are skipped, as players do."""
    good = bad = 0
    for packet in container.demux(stream):
        try:
            decoded = packet.decode()
        except av.InvalidDataError:
            bad += 1
            continue
        good += 1
        yield from decoded
    if bad > good:
        raise InvalidAudio("most of the audio is damaged", param="file")


def _checked_rate(frame: Any) -> int:
    rate, channels = int(frame.sample_rate), len(frame.layout.channels)
    if not 0 < rate <= MAX_RATE:
        raise InvalidAudio(f"a sample rate of {rate} Hz is not supported", param="file")
    if not 0 < channels <= MAX_CHANNELS:
        raise InvalidAudio(f"{channels} channels are not supported", param="file")
    return rate


def _mono(frame: Any) -> Float32:
    values = to_float(frame.to_ndarray())  # (channels, n), or (1, n * channels) when interleaved
    channels = len(frame.layout.channels)
    if values.shape[0] != channels:
        values = values.reshape(-1, channels).T
    return mix_down(values)


def _reject_cut_flac(container: Any, stream: Any, num_samples: int) -> None:
    if container.format.name != "flac" or not stream.duration:
        return
    declared = round(stream.duration * stream.time_base * stream.rate)
    if num_samples < declared:
        raise InvalidAudio(
            f"the file is cut off: {num_samples} of {declared} samples are there", param="file"
        )


def _reject_cut_wav(content: bytes) -> None:
    """Compare what a WAV's data chunk promises with what is there; FFmpeg would play on."""
    if content[:4] != b"RIFF" or content[8:12] != b"WAVE":
        return
    position = 12
    while position + 8 <= len(content):
        name, size = struct.unpack_from("<4sI", content, position)
        position += 8
        if name == b"data":
            there = len(content) - position
            if there < size < _UNKNOWN_SIZE:
                raise InvalidAudio(
                    f"the file is cut off: {there} of {size} bytes of sound are there",
                    param="file",
                )
            return
        position += size + size % 2  # chunks are padded to even lengths
    raise InvalidAudio("the WAV file is cut off before its sound", param="file")
