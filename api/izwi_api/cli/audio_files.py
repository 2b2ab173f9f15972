"""Find the audio files of a command line (files, folders, patterns, stdin) and their outputs."""

from __future__ import annotations

import glob
import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

from izwi.arrays import Float32
from izwi.audio.encode import PCM_RATE
from izwi.audio.file import read_audio_file
from izwi.errors import InvalidAudio, InvalidRequest

# Suffixes that are taken from a folder. A file that is named is tried with any suffix.
ENDINGS = frozenset(
    (
        *(".aac", ".aif", ".aiff", ".amr", ".au", ".caf", ".flac", ".m4a", ".mka", ".mkv"),
        *(".mov", ".mp3", ".mp4", ".oga", ".ogg", ".opus", ".w64", ".wav", ".weba", ".webm"),
    )
)


@dataclass(frozen=True, slots=True)
class AudioFile:
    """One audio input to transcribe.

    Attributes:
        path: The file, None for stdin.
        within: Its path inside the given folder, or its name; determines the output path.
    """

    path: Path | None
    within: Path

    @property
    def shown(self) -> str:
        """Its name in messages."""
        return "stdin" if self.path is None else str(self.path)

    @property
    def num_bytes(self) -> int:
        """Its size; 0 if it is not known before reading."""
        try:
            status = os.fstat(sys.stdin.fileno()) if self.path is None else self.path.stat()
        except OSError:
            return 0
        return status.st_size

    def check(self, content: bytes | None = None) -> None:
        """Raise InvalidAudio, which names the file, if it is not audio.

        Args:
            content: Its bytes, if they were read already; stdin can be read only once.
        """
        try:
            check_audio(self.read() if content is None else content)
        except InvalidAudio as error:
            if self.shown in str(error):
                raise
            raise InvalidAudio(f"{self.shown}: {error}", param=error.param) from error

    def read(self) -> bytes:
        """Return the file's bytes. Raises InvalidAudio if it cannot be read, or is a device."""
        if self.path is not None:
            return read_audio_file(self.path)
        try:
            return sys.stdin.buffer.read()
        except OSError as error:
            raise InvalidAudio(f"cannot read stdin: {error.strerror}", param="file") from error


def check_audio(content: bytes) -> None:
    """Raise InvalidAudio if a file's bytes are no audio; only the beginning is decoded."""
    from izwi.audio.decode import decode_blocks
    from izwi.audio.limits import DecodeLimits

    next(decode_blocks(content, PCM_RATE, DecodeLimits(max_audio_s=inf)))


def decode_clip(path: Path, rate: int) -> Float32:
    """Return the samples of a file given by an option, which errors name.

    Raises:
        InvalidAudio: It cannot be read, or is not audio.
    """
    from izwi.audio.decode import decode_audio

    try:
        return decode_audio(path, rate)
    except InvalidAudio as error:
        if str(path) in str(error):
            raise
        raise InvalidAudio(f"{path}: {error}", param=error.param) from error


def find_audio_files(names: Sequence[str]) -> list[AudioFile]:
    """Return the audio inputs of the arguments, in order; those of a folder are sorted by path.

    A name without a file is kept, so that it is reported as unreadable.

    Raises:
        InvalidRequest: A folder or a pattern has no audio, or stdin is given twice.
    """
    found: list[AudioFile] = []
    for name in names:
        path = Path(name)
        if name == "-":
            found.append(AudioFile(None, Path("stdin")))
        elif path.is_dir():
            found += _in_folder(path)
        elif glob.has_magic(name) and not path.exists():
            found += _matching(name)
        else:
            found.append(AudioFile(path, Path(path.name)))
    if sum(source.path is None for source in found) > 1:
        raise InvalidRequest("stdin can be read only once", param="files")
    return found


def text_paths(sources: Sequence[AudioFile], folder: Path | None, ending: str) -> list[Path]:
    """Return the output path of each input: in a folder, or beside the input.

    The suffix replaces the input's own, unless two inputs would then share an output.

    Args:
        sources: All audio inputs.
        folder: The output folder, or None for beside the inputs.
        ending: The suffix of the outputs, with its dot.

    Raises:
        InvalidRequest: stdin has no output path of its own, or two inputs would share one.
    """
    if folder is None and any(source.path is None for source in sources):
        raise InvalidRequest("there is no folder beside stdin; give --out-dir", param="beside")
    places = [folder / s.within if folder else (s.path or s.within) for s in sources]
    short = [place.with_suffix(ending) for place in places]
    shared = {path for path, count in Counter(short).items() if count > 1}
    texts = [
        place.with_name(place.name + ending) if path in shared else path
        for place, path in zip(places, short, strict=True)
    ]
    for path, count in Counter(texts).items():
        if count > 1:
            raise InvalidRequest(f"{count} files would be written to {path}", param="files")
    return texts


def _in_folder(folder: Path) -> list[AudioFile]:
    paths: list[Path] = []
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths += [Path(parent, name) for name in names if _is_audio(name)]
    if not paths:
        raise InvalidRequest(f"the folder {folder} has no audio file", param="files")
    return [AudioFile(path, path.relative_to(folder)) for path in sorted(paths)]


def _matching(pattern: str) -> list[AudioFile]:
    """Expand a pattern that no shell has expanded."""
    paths = sorted(Path(name) for name in glob.glob(pattern, recursive=True))  # noqa: PTH207
    sources = [AudioFile(path, Path(path.name)) for path in paths if path.is_file()]
    if not sources:
        raise InvalidRequest(f"no file matches {pattern}", param="files")
    return sources


def _is_audio(name: str) -> bool:
    return not name.startswith(".") and Path(name).suffix.lower() in ENDINGS
