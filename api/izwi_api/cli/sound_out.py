"""Outputs of speech on the command line: a player, stdout, or a file written atomically."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
from msgspec.structs import replace

from izwi.arrays import Int64
from izwi.audio.encode import FORMATS, StreamEncoder, stream_encoder, with_length
from izwi.audio.tempo import StreamTempo
from izwi.errors import InvalidRequest
from izwi.request import Chunk
from izwi_api.console import messages
from izwi_api.services.speech import AudioSource

DEFAULT_FILE = Path("speech.wav")
# Stands for stdout, as a file's name.
STDOUT = Path("-")
_HEAD_BYTES = 64


class Speech(AudioSource, Protocol):
    """Speech in flight, here or at a server, that can be stopped."""

    def abort(self) -> None:
        """Stop what still runs."""
        ...


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
    """Return the audio format that a file's suffix asks for, WAV on stdout.

    Raises:
        InvalidRequest: The suffix stands for none.
    """
    if path == STDOUT:
        return "wav"
    suffix = path.suffix.lower().removeprefix(".")
    audio_format = "opus" if suffix == "ogg" else suffix
    if audio_format not in FORMATS:
        raise InvalidRequest(
            f"cannot write {path}: its suffix must be .ogg or one of "
            + ", ".join(f".{name}" for name in FORMATS),
            param="out",
        )
    return audio_format


def find_player() -> str | None:
    """Return the path of a program that plays sound, or None."""
    return shutil.which("aplay") or shutil.which("afplay")


def at_terminal() -> bool:
    """Whether stdout is a terminal, where a person reads."""
    return sys.stdout.isatty()


def is_piped() -> bool:
    """Whether stdout is a pipe to another program."""
    try:
        return stat.S_ISFIFO(os.fstat(sys.stdout.fileno()).st_mode)
    except OSError:  # a stand-in without a descriptor
        return False


def is_redirected() -> bool:
    """Whether stdout was opened anew for this command, as by `> FILE`; a log is appended to."""
    try:
        import fcntl  # not on Windows

        descriptor = sys.stdout.fileno()
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        return is_file and not fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_APPEND
    except (OSError, ImportError):  # a stand-in without a descriptor
        return False


async def save(speech: Speech, path: Path, audio_format: str | None = None) -> Saved:
    """Write a speech to a file, or to stdout. A failure leaves no file, and an old one as it was.

    Args:
        speech: What to write.
        path: The file, or STDOUT.
        audio_format: One of FORMATS; None takes it from the suffix.
    """
    encoder = stream_encoder(audio_format or format_of(path), speech.sample_rate)
    try:
        if path == STDOUT:
            num_samples, codes = await _drain(speech, encoder, _to_stdout)
            return Saved("stdout", num_samples / speech.sample_rate, codes)
        with whole_file(path) as file:

            async def write(content: bytes) -> None:
                file.write(content)

            num_samples, codes = await _drain(speech, encoder, write)
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
    to_player = process.stdin
    assert to_player is not None

    async def write(content: bytes) -> None:
        to_player.write(content)

    encoder = stream_encoder("wav", speech.sample_rate)
    num_samples, codes = await _drain(speech, encoder, write)
    to_player.close()
    await process.wait()
    return Saved("played", num_samples / speech.sample_rate, codes)


def save_codes_to(path: Path, codes: Int64) -> None:
    """Write codes as int64 .npy under exactly this name."""
    with path.open("wb") as file:
        np.save(file, codes.astype(np.int64))


async def _drain(
    speech: Speech, encoder: StreamEncoder, write: Callable[[bytes], Awaitable[None]]
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
                    await write(encoder.write(chunk.pcm))
                    status.update(f"speaking: {num_samples / speech.sample_rate:.1f} s")
    await write(encoder.finish())
    return num_samples, np.concatenate(codes) if codes else np.zeros((0, 0), np.int64)


async def _to_stdout(content: bytes) -> None:
    # In a thread: a reader that plays takes it no faster than it sounds, and the loop must go on.
    await asyncio.to_thread(_write_through, content)


def _write_through(content: bytes) -> None:
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()


class AtSpeed:
    """A speech made faster or slower at the same pitch, as a server does it.

    Attributes:
        sample_rate: Of the sound, in Hz.
    """

    def __init__(self, speech: Speech, speed: float):
        """Wrap a speech of which nothing has been read; a speed of 2 takes half the time."""
        self.sample_rate = speech.sample_rate
        self._speech, self._tempo = speech, StreamTempo(speech.sample_rate, speed)

    async def chunks(self) -> AsyncGenerator[Chunk]:
        """Yield the chunks; raises as those of the speech."""
        async with aclosing(self._speech.chunks()) as chunks:
            async for chunk in chunks:
                pcm = None if chunk.pcm is None else self._tempo.write(chunk.pcm)
                yield replace(chunk, pcm=pcm)
        yield Chunk("", np.zeros((0, 0), np.int64), pcm=self._tempo.finish())

    def abort(self) -> None:
        """Stop what still runs."""
        self._speech.abort()


@contextmanager
def whole_file(path: Path) -> Generator[BinaryIO]:
    """Open a new file that takes its name when the block ends well, and is gone otherwise.

    Raises:
        OSError: It cannot be written; the error names it, and not the file behind it.
    """
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    scratch = Path(name)
    try:
        with os.fdopen(handle, "w+b") as file:
            yield file
        # mkstemp makes files that only their owner reads; a sound file is like any other.
        umask = os.umask(0)
        os.umask(umask)
        scratch.chmod(0o666 & ~umask)
        scratch.replace(path)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        if error.filename in (None, name):  # a full disk has no name
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
