"""Where a speech goes on the command line: a player, or a file that is whole or not there."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Generator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from izwi.audio.encode import FORMATS, StreamEncoder, stream_encoder, with_length
from izwi.errors import InvalidRequest
from izwi.request import Int64
from izwi_api.cli.options import messages
from izwi_api.speech import Speech

DEFAULT_FILE = Path("speech.wav")
_HEAD_BYTES = 64


@dataclass(frozen=True, slots=True, eq=False)
class Saved:
    """What became of a speech.

    Attributes:
        place: The file, or what played it.
        seconds: Of sound.
        codes: (frames, codebooks) int64.
    """

    place: str
    seconds: float
    codes: Int64


def format_of(path: Path) -> str:
    """Return the audio format that a file's suffix asks for. Raises InvalidRequest."""
    suffix = path.suffix.lower().removeprefix(".")
    audio_format = "opus" if suffix == "ogg" else suffix
    if audio_format not in FORMATS:
        raise InvalidRequest(
            f"cannot write {path.name!r}: its suffix must be .ogg or one of "
            + ", ".join(f".{name}" for name in FORMATS),
            param="out",
        )
    return audio_format


def find_player() -> str | None:
    """Return the path of a program that plays sound, or None."""
    return shutil.which("aplay") or shutil.which("afplay")


async def save(speech: Speech, path: Path) -> Saved:
    """Write a speech to a file. A failure leaves no file, and an old one as it was."""
    encoder = stream_encoder(format_of(path), speech.sample_rate)
    try:
        with _whole_file(path) as file:
            num_samples, codes = await _drain(speech, encoder, file.write)
            file.seek(0)
            head = file.read(_HEAD_BYTES)
            file.seek(0)
            file.write(with_length(head, num_samples))
    finally:
        speech.abort()
    return Saved(str(path), num_samples / speech.sample_rate, codes)


async def play(speech: Speech, player: str) -> Saved:
    """Play a speech while it is made, or once it is whole where the player needs a file."""
    if Path(player).name == "afplay":
        with tempfile.TemporaryDirectory() as folder:
            saved = await save(speech, Path(folder) / "speech.wav")
            process = await asyncio.create_subprocess_exec(player, saved.place)
            await process.wait()
        return Saved("played", saved.seconds, saved.codes)
    process = await asyncio.create_subprocess_exec(player, "-q", "-", stdin=asyncio.subprocess.PIPE)
    assert process.stdin is not None
    encoder = stream_encoder("wav", speech.sample_rate)
    num_samples, codes = await _drain(speech, encoder, process.stdin.write)
    process.stdin.close()
    await process.wait()
    return Saved("played", num_samples / speech.sample_rate, codes)


def save_codes_to(path: Path, codes: Int64) -> None:
    """Write codes as int64 .npy under exactly this name."""
    with path.open("wb") as file:
        np.save(file, codes.astype(np.int64))


async def _drain(
    speech: Speech, encoder: StreamEncoder, write: Callable[[bytes], object]
) -> tuple[int, Int64]:
    """Encode a speech to the end, showing how far it is; return its samples and codes."""
    num_samples = 0
    codes: list[Int64] = []
    chunks = speech.chunks()
    with messages().status("speaking") as status:
        async with aclosing(chunks):
            async for chunk in chunks:
                if len(chunk.entries):
                    codes.append(chunk.entries)
                if chunk.pcm is not None:
                    num_samples += chunk.pcm.size
                    write(encoder.write(chunk.pcm))
                    status.update(f"speaking: {num_samples / speech.sample_rate:.1f} s")
    write(encoder.finish())
    return num_samples, np.concatenate(codes) if codes else np.zeros((0, 0), np.int64)


@contextmanager
def _whole_file(path: Path) -> Generator[BinaryIO]:
    """Open a new file that takes its name when the block ends well, and is gone otherwise."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    scratch = Path(name)
    try:
        with os.fdopen(handle, "w+b") as file:
            yield file
        # mkstemp makes files that only their owner reads; a sound file is like any other.
        umask = os.umask(0)
        os.umask(umask)
        scratch.chmod(0o666 & ~umask)
        scratch.replace(path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
