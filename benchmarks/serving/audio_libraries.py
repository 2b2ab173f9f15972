"""Read and write audio files by izwi's own code over PyAV, and by soundfile, in turns.

    python -m benchmarks.serving.audio_libraries

Processor time, medians of alternating rounds. Files are read from memory to mono samples at their
own rate, and written as a stream in pieces of 0.64 s. `izwi` is `decode_audio` with its limits and
checks; `ffmpeg` is the same without the short way for plain WAV; `pyav` is a bare loop, `soundfile`
one call, and `numpy` takes the samples behind a header whose length is known.
"""

from __future__ import annotations

import argparse
import io
import time
from collections.abc import Callable
from statistics import median
from unittest import mock

import av
import numpy as np
import soundfile

from benchmarks.measure import write_result
from izwi.arrays import Float32
from izwi.audio import decode
from izwi.audio.decode import decode_audio
from izwi.audio.encode import stream_encoder
from izwi.audio.pcm import from_s16le

RATE = 24_000
PIECE = 15_360  # 0.64 s
SECONDS = (4, 60)
# name -> soundfile's format and subtype, and ours for writing if we write it
FORMATS = {
    "wav, 16 bits": ("WAV", "PCM_16", "wav"),
    "wav, float": ("WAV", "FLOAT", None),
    "flac": ("FLAC", "PCM_16", "flac"),
    "ogg vorbis": ("OGG", "VORBIS", None),
    "ogg opus": ("OGG", "OPUS", "opus"),
}


def speech_like(seconds: int) -> Float32:
    """Return noise with the envelope of syllables, which compresses about as speech does."""
    generator = np.random.default_rng(seconds)
    times = np.arange(seconds * RATE) / RATE
    noise = np.convolve(generator.standard_normal(len(times)), np.ones(8) / 8, "same")
    loudness = 0.5 - 0.5 * np.cos(2 * np.pi * 4 * times)
    return (0.2 * loudness * noise).astype(np.float32)


def read_by_ffmpeg(content: bytes) -> int:
    """Decode as izwi does files other than plain WAV."""
    with mock.patch.object(decode, "open_pcm_wav", return_value=None):
        return len(decode_audio(content, RATE))


def read_with_pyav(content: bytes) -> int:
    """Decode all frames; return the number of samples."""
    with av.open(io.BytesIO(content)) as container:
        return sum(frame.to_ndarray().size for frame in container.decode(audio=0))


def read_with_soundfile(content: bytes) -> int:
    """Decode the file; return the number of samples."""
    samples, _ = soundfile.read(io.BytesIO(content), dtype="float32", always_2d=True)
    return len(samples.mean(axis=1))


def write_with_izwi(samples: Float32, audio_format: str) -> bytes:
    """Encode piece by piece, as a response is sent."""
    encoder = stream_encoder(audio_format, RATE)
    pieces = [encoder.write(samples[at : at + PIECE]) for at in range(0, len(samples), PIECE)]
    return b"".join([*pieces, encoder.finish()])


def write_with_soundfile(samples: Float32, container: str, subtype: str) -> bytes:
    """Encode piece by piece into memory; libsndfile seeks back, so nothing can be sent before."""
    sink = io.BytesIO()
    with soundfile.SoundFile(
        sink, "w", samplerate=RATE, channels=1, format=container, subtype=subtype
    ) as file:
        for at in range(0, len(samples), PIECE):
            file.write(samples[at : at + PIECE])
    return sink.getvalue()


def alternating(runs: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return each one's median processor time in ms."""
    spent: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            begun_s = time.process_time()
            run()
            if number:  # the first round fills caches
                spent[name].append((time.process_time() - begun_s) * 1e3)
    return {f"{name}_ms": round(median(times), 3) for name, times in spent.items()}


def row(name: str, seconds: int, rounds: int) -> list[dict[str, object]]:
    """Measure one format and length."""
    container, subtype, ours = FORMATS[name]
    samples = speech_like(seconds)
    content = write_with_soundfile(samples, container, subtype)
    reads: dict[str, Callable[[], object]] = {
        "izwi": lambda: decode_audio(content, RATE),
        "ffmpeg": lambda: read_by_ffmpeg(content),
        "pyav": lambda: read_with_pyav(content),
        "soundfile": lambda: read_with_soundfile(content),
    }
    if name == "wav, 16 bits":
        reads["numpy"] = lambda: from_s16le(content[44:])
    rows: list[dict[str, object]] = [
        {"what": "read", "format": name, "seconds": seconds, **alternating(reads, rounds)}
    ]
    if ours is not None:
        writes: dict[str, Callable[[], object]] = {
            "izwi": lambda: write_with_izwi(samples, ours),
            "soundfile": lambda: write_with_soundfile(samples, container, subtype),
        }
        rows.append(
            {"what": "write", "format": name, "seconds": seconds, **alternating(writes, rounds)}
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    rows = [one for name in FORMATS for seconds in SECONDS for one in row(name, seconds, rounds)]
    versions = {"av": av.__version__, "soundfile": soundfile.__version__}
    library = {"libsndfile": soundfile.__libsndfile_version__}
    write_result("audio_libraries", rows, libraries=versions | library)


if __name__ == "__main__":
    main()
