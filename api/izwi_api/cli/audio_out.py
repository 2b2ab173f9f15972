"""Outputs of speech on the command line: a player, stdout, or a file written atomically."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from izwi.arrays import Int64
from izwi.audio.encode import PCM_RATE, StreamEncoder, stream_encoder, with_length
from izwi_api.client import Audio, ResponseStream, SpeechDetails, Word
from izwi_api.console import messages

if TYPE_CHECKING:
    from izwi_api.cli.target import Target

DEFAULT_FILE = Path("speech.wav")
# Stands for stdout, as a file's name.
STDOUT = Path("-")
_HEAD_BYTES = 64


Speech = ResponseStream[Audio, SpeechDetails]


@dataclass(frozen=True, slots=True, eq=False)
class Saved:
    """Where a speech went.

    Attributes:
        place: The file, or the player.
        seconds: Duration of the audio.
        details: Words and codes, if requested.
    """

    place: str
    seconds: float
    details: SpeechDetails


def find_player() -> str | None:
    """Return the path of a program that plays audio, or None."""
    return shutil.which("aplay") or shutil.which("afplay")


def at_terminal() -> bool:
    """Whether stdout is a terminal, where a person reads."""
    return sys.stdout.isatty()


def is_piped() -> bool:
    """Whether stdout is a pipe to another program."""
    try:
        return stat.S_ISFIFO(os.fstat(sys.stdout.fileno()).st_mode)
    except OSError:  # a replacement without a descriptor
        return False


def is_redirected() -> bool:
    """Whether stdout was opened for this command, as by `> FILE`; logs are opened to append."""
    try:
        import fcntl  # not on Windows

        descriptor = sys.stdout.fileno()
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        return is_file and not fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_APPEND
    except (OSError, ImportError):  # a replacement without a descriptor
        return False


async def put(speech: Speech, target: Target) -> Saved:
    """Play a speech or write it, as the target says."""
    if target.player is not None:
        return await play(speech, target.player)
    return await save(speech, target.out, target.audio_format)


async def save(speech: Speech, path: Path, audio_format: str) -> Saved:
    """Write a speech to a file, or to stdout. After a failure an existing file is unchanged.

    Args:
        speech: The speech.
        path: The file, or STDOUT.
        audio_format: One of FORMATS.
    """
    encoder = stream_encoder(audio_format, PCM_RATE)
    async with speech:
        if path == STDOUT:
            num_samples = await _drain(speech, encoder, _to_stdout)
            return Saved("stdout", num_samples / PCM_RATE, speech.result)
        with whole_file(path) as file:

            async def write(content: bytes) -> None:
                file.write(content)

            num_samples = await _drain(speech, encoder, write)
            file.seek(0)
            head = file.read(_HEAD_BYTES)
            file.seek(0)
            file.write(with_length(head, num_samples))
    return Saved(str(path), num_samples / PCM_RATE, speech.result)


async def play(speech: Speech, player: str) -> Saved:
    """Play a speech while it is made, or when it is complete if the player needs a file."""
    if Path(player).name == "afplay":
        with tempfile.TemporaryDirectory() as folder:
            saved = await save(speech, Path(folder) / "speech.wav", "wav")
            process = await asyncio.create_subprocess_exec(player, saved.place)
            await process.wait()
        return replace(saved, place="played")
    process = await asyncio.create_subprocess_exec(player, "-q", "-", stdin=asyncio.subprocess.PIPE)
    to_player = process.stdin
    assert to_player is not None

    async def write(content: bytes) -> None:
        to_player.write(content)

    async with speech:
        num_samples = await _drain(speech, stream_encoder("wav", PCM_RATE), write)
    to_player.close()
    await process.wait()
    return Saved("played", num_samples / PCM_RATE, speech.result)


def save_codes_to(path: Path, codes: Int64) -> None:
    """Write codes as int64 .npy under exactly this name."""
    with path.open("wb") as file:
        np.save(file, codes.astype(np.int64))


def write_words(path: Path, words: Sequence[Word], seconds: float) -> None:
    """Write the times of words as JSON. Raises OSError."""
    rows = [{"word": word.word, "start": word.start_s, "end": word.end_s} for word in words]
    reported = {"duration": round(seconds, 3), "words": rows}
    with whole_file(path) as file:
        file.write(json.dumps(reported, ensure_ascii=False, indent=1).encode() + b"\n")


async def _drain(
    speech: Speech, encoder: StreamEncoder, write: Callable[[bytes], Awaitable[None]]
) -> int:
    """Encode a speech to its end, with a progress bar; return the number of samples."""
    num_samples = 0
    with messages().status("speaking") as status:
        async for audio in speech:
            num_samples += audio.samples.size
            await write(encoder.write(audio.samples))
            status.update(f"speaking: {num_samples / PCM_RATE:.1f} s")
    await write(encoder.finish())
    return num_samples


async def _to_stdout(content: bytes) -> None:
    # In a thread, because a player reads no faster than it plays, and the loop must continue.
    await asyncio.to_thread(_write_through, content)


def _write_through(content: bytes) -> None:
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()


@contextmanager
def whole_file(path: Path) -> Generator[BinaryIO]:
    """Open a temporary file that gets its name when the block succeeds, and is deleted otherwise.

    Raises:
        OSError: It cannot be written; the error has the final name, not the temporary one.
    """
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    scratch = Path(name)
    try:
        with os.fdopen(handle, "w+b") as file:
            yield file
        # mkstemp makes files that only their owner can read; this one gets the usual permissions.
        umask = os.umask(0)
        os.umask(umask)
        scratch.chmod(0o666 & ~umask)
        scratch.replace(path)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        if error.filename in (None, name):  # errors of a full disk have no name
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
