"""Decode uploaded audio to mono samples without trusting its header.

Limits are checked during decoding, on the output: a small file can claim, or really have, hours.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

from izwi.arrays import Float32
from izwi.audio.downmix import Downmix
from izwi.audio.file import read_audio_file
from izwi.audio.limits import DecodeLimits
from izwi.audio.ogg import is_ogg, ogg_files
from izwi.audio.pcm import to_float
from izwi.audio.resample import Resampler, Resampling, open_resampler
from izwi.audio.wav import PcmWav, is_wav, open_pcm_wav, wav_files
from izwi.errors import InvalidAudio, TooLarge

# Plain audio containers only. FFmpeg also reads playlists that open other files and addresses.
DEMUXERS = "aac,aiff,amr,au,caf,flac,matroska,webm,mov,mp4,m4a,mp3,ogg,w64,wav"
# Codecs used for speech. FFmpeg has some four hundred more decoders; their bugs cannot affect us.
CODECS = frozenset(
    (
        *("aac", "aac_latm", "alac", "amrnb", "amrwb", "flac", "libopus", "opus", "vorbis"),
        *(
            "libvorbis",
            "libspeex",
            "speex",
            "mp1",
            "mp1float",
            "mp2",
            "mp2float",
            "mp3",
            "mp3float",
        ),
        *("libopencore_amrnb", "libopencore_amrwb", "adpcm_ima_qt", "adpcm_ima_wav", "adpcm_ms"),
        *("gsm", "gsm_ms", "libgsm", "libgsm_ms", "pcm_alaw", "pcm_mulaw", "pcm_s8", "pcm_u8"),
        *("pcm_s16be", "pcm_s16le", "pcm_s24be", "pcm_s24le", "pcm_s32be", "pcm_s32le"),
        *("pcm_f32be", "pcm_f32le", "pcm_f64be", "pcm_f64le", "pcm_u16be", "pcm_u16le"),
    )
)
MAX_RATE = 384_000
MAX_CHANNELS = 8
# Containers that begin or end with their duration. For others it is estimated from a bit rate.
_TIMED = ("flac", "mov,mp4,m4a,3gp,3g2,mj2", "ogg")
# FFmpeg gives the last packet of a short Ogg Vorbis file a negative duration, modulo 2^32.
_WRAPPED = 1 << 31
_BLOCK_SAMPLES = 1 << 16
# A track that stays below this is silent: 16 units of 16-bit audio, -66 dBFS.
_SILENCE_PEAK = 2.0**-11
_OPTIONS = {"format_whitelist": DEMUXERS, "codec_whitelist": ",".join(sorted(CODECS))}
# FFmpeg searches 16-bit samples in WAV for other codecs, which takes 10 ms in its usual 5 MB.
_WAV_OPTIONS = _OPTIONS | {"probesize": "4096"}
_WAV_BEGINNINGS = (b"RIFF", b"RF64", b"riff")  # the last one is Sony's W64


def decode_audio(
    source: bytes | Path,
    rate: int,
    *,
    limits: DecodeLimits | None = None,
    resampling: Resampling = Resampling.LIBROSA,
) -> Float32:
    """Decode a file to mono samples.

    Args:
        source: The file's bytes, or its path.
        rate: Sample rate of the output, Hz.
        limits: Limits; None for the defaults.
        resampling: The filter, if the file has another rate.

    Returns:
        (samples,) float32.

    Raises:
        InvalidAudio: Not audio, an impossible header, cut off, or without a single sample.
        TooLarge: Over a limit.
    """
    content = source if isinstance(source, bytes) else read_audio_file(source)
    blocks = decode_blocks(content, rate, limits or DecodeLimits(), resampling)
    return np.concatenate(list(blocks))


def decode_blocks(
    content: bytes,
    rate: int,
    limits: DecodeLimits,
    resampling: Resampling = Resampling.LIBROSA,
) -> Iterator[Float32]:
    """Yield the samples of `decode_audio` in blocks; only one block is in memory at a time.

    Args:
        content: The file's bytes.
        rate: Sample rate of the output, Hz.
        limits: Limits of the file.
        resampling: The filter, if the file has another rate.

    Yields:
        (samples,) float32, at least one sample.

    Raises:
        InvalidAudio: As `decode_audio`, possibly after some blocks.
        TooLarge: As `decode_audio`, possibly after some blocks.
    """
    if not content:
        raise InvalidAudio("the audio file is empty", param="file")
    spent = _Spent(limits)
    is_silent = True
    try:
        for file in _joined_files(content, limits):
            for block in _joined(_decode_file(file, rate, spent, resampling)):
                if not np.isfinite(block).all():
                    raise InvalidAudio("the audio holds samples that are not numbers", param="file")
                is_silent = False
                yield block
    except (av.FFmpegError, ValueError, OverflowError) as error:
        raise InvalidAudio(
            "the file is not audio that can be decoded; "
            "wav, flac, mp3, m4a, ogg and webm are understood",
            param="file",
        ) from error
    if is_silent:
        raise InvalidAudio("the audio is empty: its length is zero", param="file")


@dataclass(slots=True)
class _Spent:
    """What was decoded so far, of all files that were joined to one.

    Attributes:
        limits: The limits of the whole.
        seconds: Seconds of audio.
        num_bytes: Bytes of all channels' samples.
    """

    limits: DecodeLimits
    seconds: Fraction = Fraction()  # a sum of floats would exceed a limit that is met exactly
    num_bytes: int = 0

    def add(self, frame: Any) -> None:
        """Count a frame. Raises TooLarge if a limit is exceeded."""
        num_bytes = frame.samples * len(frame.layout.channels) * frame.format.bytes
        self.add_samples(frame.samples, frame.sample_rate, num_bytes)

    def add_samples(self, num_samples: int, rate: int, num_bytes: int) -> None:
        """Count samples of each channel. Raises TooLarge if a limit is exceeded."""
        self.seconds += Fraction(num_samples, rate)
        self.num_bytes += num_bytes
        if self.seconds > self.limits.max_audio_s:
            raise _too_long(self.limits)
        if self.num_bytes > self.limits.max_decoded_bytes:
            raise TooLarge(
                f"the audio decodes to more than {self.limits.max_decoded_bytes} bytes",
                param="file",
            )


def _joined_files(content: bytes, limits: DecodeLimits) -> Iterator[bytes]:
    """Yield the files that were joined to one, of those containers that FFmpeg reads one of."""
    if is_wav(content):
        return wav_files(content, limits.max_decoded_bytes)
    return ogg_files(content) if is_ogg(content) else iter((content,))


def _decode_file(
    content: bytes, rate: int, spent: _Spent, resampling: Resampling
) -> Iterator[Float32]:
    if is_wav(content) and (wav := open_pcm_wav(content)) is not None:
        yield from _decode_pcm_wav(wav, rate, spent, resampling)
        return
    track = 0
    with _opened(content) as container:
        if len(container.streams.audio) > 1:
            track = _first_audible_track(container, spent.limits)
        else:
            _reject_long(container, _track(container, track), spent.limits)
    with _opened(content) as container:
        yield from _decode_track(container, track, rate, spent, resampling)


def _decode_pcm_wav(
    wav: PcmWav, rate: int, spent: _Spent, resampling: Resampling
) -> Iterator[Float32]:
    _check_shape(wav.rate, wav.channels)
    if wav.num_frames / wav.rate > spent.limits.max_audio_s:
        raise _too_long(spent.limits)
    chain = _ToMono(wav.rate, rate, resampling)
    for block in wav.blocks():
        num_samples = block.shape[1]
        spent.add_samples(num_samples, wav.rate, num_samples * wav.frame_bytes)
        yield chain.write(block)
    yield chain.finish()


def _opened(content: bytes) -> Any:
    options = _WAV_OPTIONS if content.startswith(_WAV_BEGINNINGS) else _OPTIONS
    return av.open(io.BytesIO(content), options=options, metadata_errors="ignore")


def _first_audible_track(container: Any, limits: DecodeLimits) -> int:
    """Return the number of the first audio track that is not silent; of the first, if all are."""
    streams = [stream for stream in container.streams.audio if _is_supported(stream)]
    if not streams:
        return 0
    spent = {stream.index: _Spent(limits) for stream in streams}
    first: Any = None
    for packet in container.demux(streams):
        stream = packet.stream
        if first is not None and stream.index >= first.index:
            continue
        with contextlib.suppress(av.InvalidDataError):
            for frame in packet.decode():
                _check_rate(frame)
                spent[stream.index].add(frame)
                if np.abs(_channels(frame)).max(initial=0.0) >= _SILENCE_PEAK:
                    first = stream
        if first is streams[0]:
            break
    return int(container.streams.audio.index(first or streams[0]))


def _is_supported(stream: Any) -> bool:
    return stream.codec_context is not None and stream.codec_context.name in CODECS


def _track(container: Any, index: int) -> Any:
    if not container.streams.audio:
        raise InvalidAudio("the file has no audio stream", param="file")
    stream = container.streams.audio[index]
    if not _is_supported(stream):
        raise InvalidAudio("the audio is coded in a way that is not supported", param="file")
    # Threads only help with long video frames, and each costs memory that a forged file could
    # demand.
    stream.thread_count = 1
    _check_rate(stream.codec_context)
    if container.format.name == "flac":
        _reject_forged_flac(stream)
    return stream


def _reject_long(container: Any, stream: Any, limits: DecodeLimits) -> None:
    """Sum the durations of the packets, which takes a hundredth of the time of decoding them.

    It only rejects files early. Other files are checked again by their decoded samples.
    """
    too_long = _too_long(limits)
    if container.format.name in _TIMED and (container.duration or 0) / 1e6 > limits.max_audio_s:
        raise too_long
    if stream.time_base is None:
        return
    limit = limits.max_audio_s / stream.time_base
    duration = 0
    for packet in container.demux(stream):
        if 0 < (packet.duration or 0) < _WRAPPED:
            duration += packet.duration
        if duration > limit:
            raise too_long


def _too_long(limits: DecodeLimits) -> TooLarge:
    return TooLarge(f"the audio is longer than {limits.max_audio_s:g} s", param="file")


def _decode_track(
    container: Any, track: int, rate: int, spent: _Spent, resampling: Resampling
) -> Iterator[Float32]:
    stream = _track(container, track)
    chain: _ToMono | None = None
    num_samples = 0
    for frame in _frames(container, stream):
        # programmes with inserted advertisements are joined of streams of different rates
        if chain is None or chain.rate != frame.sample_rate:
            if chain is not None:
                yield chain.finish()
            _check_rate(frame)
            chain = _ToMono(int(frame.sample_rate), rate, resampling)
        num_samples += frame.samples
        spent.add(frame)
        yield chain.write(_channels(frame))
    if chain is not None:
        _reject_cut_flac(container, stream, num_samples)
        yield chain.finish()


class _ToMono:
    """Mixes channels and resamples.

    Attributes:
        rate: Sample rate of the input, Hz.
    """

    def __init__(self, rate: int, to_rate: int, resampling: Resampling):
        self.rate = rate
        self._downmix = Downmix(rate)
        self._resampler: Resampler = open_resampler(resampling, rate, to_rate)

    def write(self, channels: Float32) -> Float32:
        """Add (channels, n); return mono samples that are ready."""
        return self._resampler.write(self._downmix.write(channels))

    def finish(self) -> Float32:
        """Return the rest."""
        last = self._resampler.write(self._downmix.finish())
        return np.concatenate([last, self._resampler.finish()])


def _joined(pieces: Iterator[Float32]) -> Iterator[Float32]:
    """Join pieces to blocks that are large enough for a message."""
    waiting: list[Float32] = []
    num_waiting = 0
    for piece in pieces:
        waiting.append(piece)
        num_waiting += len(piece)
        if num_waiting >= _BLOCK_SAMPLES:
            yield np.concatenate(waiting)
            waiting, num_waiting = [], 0
    if num_waiting:
        yield np.concatenate(waiting)


def _frames(container: Any, stream: Any) -> Iterator[Any]:
    """Decode packet by packet. A few damaged packets are skipped, like in players."""
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


def _check_rate(shape: Any) -> None:
    """Check rate and channels of a header or a frame."""
    _check_shape(int(shape.sample_rate), len(shape.layout.channels))


def _check_shape(rate: int, channels: int) -> None:
    if not 0 < rate <= MAX_RATE:
        raise InvalidAudio(f"a sample rate of {rate} Hz is not supported", param="file")
    if not 0 < channels <= MAX_CHANNELS:
        raise InvalidAudio(f"{channels} channels are not supported", param="file")


def _channels(frame: Any) -> Float32:
    values = to_float(frame.to_ndarray())  # (channels, n), or (1, n * channels) when interleaved
    channels = len(frame.layout.channels)
    if values.shape[0] != channels:
        values = values.reshape(-1, channels).T
    return values


def _reject_forged_flac(stream: Any) -> None:
    """Compare the header with the frames, which FFmpeg believes; the frames may be shorter.

    STREAMINFO has the rate in the 20 bits at byte 10, then 3 bits of channels less one.
    """
    header, shape = stream.codec_context.extradata or b"", stream.codec_context
    if len(header) < 14:
        raise InvalidAudio("the file's header is cut off", param="file")
    word = int.from_bytes(header[10:14], "big")
    if (word >> 12, (word >> 9 & 7) + 1) != (shape.sample_rate, len(shape.layout.channels)):
        raise InvalidAudio(
            "the file's header disagrees with its audio (rate or channels)", param="file"
        )


def _reject_cut_flac(container: Any, stream: Any, num_samples: int) -> None:
    if container.format.name != "flac" or not stream.duration:
        return
    declared = round(stream.duration * stream.time_base * stream.rate)
    if num_samples < declared:
        raise InvalidAudio(
            f"the file is cut off: {num_samples} of {declared} samples are there", param="file"
        )
