"""WAV files: their chunks, which FFmpeg believes too readily, and plain samples by libsndfile.

FFmpeg ignores that a file is cut off, hears only the first of several files joined to one, and
decodes big-endian files (RIFX) as noise. It is opened twice for a file, to sum its durations first,
and makes a frame of every 2,048 samples. libsndfile says the length at once, in a quarter of the
time, and gives float samples in blocks of any size.
"""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import soundfile

from izwi.arrays import Float32
from izwi.errors import InvalidAudio

_ORDERS = {b"RIFF": "<", b"RIFX": ">"}
# A writer that cannot seek back leaves a size near 2^31 to mean "until the end", or 2^32-1.
_NEAR_2_31 = range(0x7FFF0000, 0x80000000)
_HEAD_BYTES = 12  # name, size and "WAVE"
_NEXT_FILE = re.compile(rb"RIF[FX].{4}WAVEfmt ", re.DOTALL)
_INTEGER, _FLOAT = 1, 3
_FORMAT = "HHIIHH"  # of a fmt chunk: tag, channels, rate, bytes a second, bytes a frame, bits


@dataclass(frozen=True, slots=True)
class _Wav:
    """One WAV file: its bytes and what its chunks say.

    Attributes:
        content: The file, without the one joined to it.
        order: Byte order: "<" or ">".
        shape: Start and stop of the fmt chunk; None if there is none.
        data: Start and stop of the samples.
    """

    content: bytes
    order: str
    shape: tuple[int, int] | None
    data: tuple[int, int]


def is_wav(content: bytes) -> bool:
    """Return whether this is a WAV with sizes of 32 bits, of either byte order."""
    return content[:4] in _ORDERS and content[8:12] == b"WAVE"


def wav_files(content: bytes, max_bytes: int) -> Iterator[bytes]:
    """Yield each of the WAV files that were joined, little-endian.

    Args:
        content: From a file for which `is_wav` holds.
        max_bytes: A declared size beyond this is a placeholder: audio of that size is not accepted.

    Raises:
        InvalidAudio: A file is cut off, or it is big-endian and not PCM.
    """
    while is_wav(content):
        wav, content = _first_file(content, max_bytes)
        yield wav.content if wav.order == "<" else _little_endian(wav)


def _first_file(content: bytes, max_bytes: int) -> tuple[_Wav, bytes]:
    """Return the first file, and the bytes from the next one on."""
    order = _ORDERS[content[:4]]
    (riff_size,) = struct.unpack_from(order + "I", content, 4)
    shape, position = None, _HEAD_BYTES
    while position + 8 <= len(content):
        name, size = struct.unpack_from(f"{order}4sI", content, position)
        position += 8
        if name == b"data":
            stop = _data_stop(content, riff_size, (position, size), max_bytes)
            is_open = stop < position + size
            end = stop if is_open else _end_of_file(content, stop, order)
            wav = _Wav(content[:end], order, shape, (position, stop))
            return wav, content[end:]
        if name == b"fmt ":
            shape = position, position + size
        position += size + size % 2  # chunks are padded to even lengths
    raise InvalidAudio("the WAV file is cut off before its audio", param="file")


def _data_stop(content: bytes, riff_size: int, data: tuple[int, int], max_bytes: int) -> int:
    """Return where the samples stop. Raises InvalidAudio if they are cut off."""
    start, size = data
    there = len(content) - start
    if size <= there:
        return start + size
    # a pipe's writer does not know the size of the whole either, or it was filled in later
    is_sound = riff_size in (0, len(content) - 8) or _is_unknown(riff_size, max_bytes)
    if not (_is_unknown(size, max_bytes) and is_sound):
        raise InvalidAudio(
            f"the file is cut off: {there} of {size} bytes of audio are there", param="file"
        )
    following = _NEXT_FILE.search(content, start)
    return following.start() if following else len(content)


def _is_unknown(size: int, max_bytes: int) -> bool:
    return size > max_bytes or size in _NEAR_2_31


def _end_of_file(content: bytes, position: int, order: str) -> int:
    """Return where the next file begins: behind the chunks that follow the samples."""
    while position < len(content):
        for start in (position, position + position % 2):  # some writers do not pad
            if is_wav(content[start : start + _HEAD_BYTES]):
                return start
        position += position % 2
        if position + 8 > len(content):
            break
        (size,) = struct.unpack_from(order + "I", content, position + 4)
        position += 8 + size
    return len(content)


def _little_endian(wav: _Wav) -> bytes:
    """Return a big-endian file as a little-endian one of the same samples."""
    start, stop = wav.shape or (0, 0)
    if stop - start < struct.calcsize(">" + _FORMAT):
        raise InvalidAudio("the WAV file has no format", param="file")
    fields = struct.unpack_from(">" + _FORMAT, wav.content, start)
    width = fields[-1] // 8
    if fields[0] not in (_INTEGER, _FLOAT) or fields[-1] % 8 or not 1 <= width <= 8:
        raise InvalidAudio("only PCM is supported in a big-endian WAV (RIFX)", param="file")
    samples = wav.content[slice(*wav.data)]
    samples = samples[: len(samples) // width * width]
    swapped = np.frombuffer(samples, np.uint8).reshape(-1, width)[:, ::-1].tobytes()
    shape = struct.pack("<" + _FORMAT, *fields)
    body = b"WAVEfmt " + struct.pack("<I", len(shape)) + shape
    body += b"data" + struct.pack("<I", len(swapped)) + swapped
    return b"RIFF" + struct.pack("<I", len(body)) + body


# Bytes of a sample as FFmpeg decodes it: 24 bits are widened to 32.
_SAMPLE_BYTES = {"PCM_U8": 1, "PCM_16": 2, "PCM_24": 4, "PCM_32": 4, "FLOAT": 4, "DOUBLE": 8}
_BLOCK_FRAMES = 1 << 15


class PcmWav:
    """An open WAV file of plain samples.

    Attributes:
        rate: Sample rate, Hz.
        channels: Number of channels.
        num_frames: Samples of each channel.
        frame_bytes: Bytes of all channels' samples at one time, as limits count them.
    """

    def __init__(self, file: soundfile.SoundFile):
        self._file = file
        self.rate, self.channels, self.num_frames = file.samplerate, file.channels, file.frames
        self.frame_bytes = file.channels * _SAMPLE_BYTES[file.subtype]

    def blocks(self) -> Iterator[Float32]:
        """Yield (channels, n) float32 in [-1, 1), n at most 32,768."""
        with self._file as file:
            while len(block := file.read(_BLOCK_FRAMES, dtype="float32", always_2d=True)):
                yield block.T


def open_pcm_wav(content: bytes) -> PcmWav | None:
    """Open a WAV file; return None if it is none, is empty, or holds other than plain samples.

    FFmpeg then says what it is.

    Args:
        content: One file, complete: from `izwi.audio.wav.wav_files`.
    """
    try:
        file = soundfile.SoundFile(io.BytesIO(content))
    except soundfile.LibsndfileError:
        return None
    if file.format in ("WAV", "WAVEX") and file.subtype in _SAMPLE_BYTES and file.frames:
        return PcmWav(file)
    file.close()
    return None
