"""Read WAV files of plain samples by libsndfile, in a quarter of the time that FFmpeg takes.

FFmpeg is opened twice for a file, to sum its durations first, and makes a frame of every 2,048
samples. libsndfile says the length at once, and gives float samples in blocks of any size.
"""

from __future__ import annotations

import io
from collections.abc import Iterator

import soundfile

from izwi.arrays import Float32

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
