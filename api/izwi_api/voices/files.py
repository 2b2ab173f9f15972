"""Write folders atomically: under a temporary name, synced, renamed. Knows no voices.

A name that begins with a dot is incomplete (`.new-`) or deleted (`.old-`), and is never read.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import sys
import tempfile
import time
import unicodedata
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

UNFINISHED = ".new-"
THROWN_AWAY = ".old-"
# Writing ten megabytes never takes longer, so the writer was killed.
_ABANDONED_S = 3600.0

_ID = re.compile(r"(?:voice|cons)_[0-9a-f]{32}", re.ASCII)

_MAX_NAME_CHARS = 64
_SIGNS_IN_NAMES = " _.-'()"

# The first bytes of a file -> its suffix and media type.
_KINDS: tuple[tuple[re.Pattern[bytes], str, str], ...] = (
    (re.compile(rb"RIFF....WAVE", re.DOTALL), ".wav", "audio/wav"),
    (re.compile(rb"fLaC"), ".flac", "audio/flac"),
    (re.compile(rb"OggS"), ".ogg", "audio/ogg"),
    (re.compile(rb"\x1aE\xdf\xa3"), ".webm", "audio/webm"),
    (re.compile(rb"....ftyp", re.DOTALL), ".m4a", "audio/mp4"),
    (re.compile(rb"\xff[\xf0\xf1\xf8\xf9]"), ".aac", "audio/aac"),
    (re.compile(rb"ID3|\xff[\xe2-\xff]"), ".mp3", "audio/mpeg"),
)
_OTHER_KIND = (".bin", "application/octet-stream")


def new_id(prefix: str) -> str:
    """Return a unique name: the time in milliseconds, then 80 random bits.

    Ids sort by creation time, so an id is a position in a list even after its object was deleted.
    """
    return f"{prefix}_{time.time_ns() // 1_000_000:012x}{secrets.token_hex(10)}"


def is_id(text: str) -> bool:
    """Whether a text has the format of `new_id`."""
    return _ID.fullmatch(text) is not None


def is_name(text: str) -> bool:
    """Whether a text is a valid voice name: letters of any script, and a few signs."""
    if not 0 < len(text) <= _MAX_NAME_CHARS or is_id(text) or text[-1] == " ":
        return False
    categories = [unicodedata.category(character)[0] for character in text]
    return categories[0] in "LN" and all(
        category in "LMN" or character in _SIGNS_IN_NAMES
        for character, category in zip(text, categories, strict=True)
    )


def audio_kind(content: bytes) -> tuple[str, str]:
    """Return the suffix and the media type of an audio file, from its first bytes."""
    for pattern, suffix, media_type in _KINDS:
        if pattern.match(content):
            return suffix, media_type
    return _OTHER_KIND


def media_type_of(path: Path) -> str:
    """Return the media type for a suffix that `audio_kind` gave."""
    known = {suffix: media_type for _, suffix, media_type in _KINDS}
    return known.get(path.suffix, _OTHER_KIND[1])


@contextmanager
def unfinished_folder(root: Path) -> Generator[Path]:
    """Yield a new folder in `root`; it is removed at the end unless it was renamed."""
    root.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=root))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_durably(path: Path, content: bytes) -> None:
    """Write a file, and flush it to disk. Raises OSError."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace_durably(path: Path, content: bytes) -> None:
    """Create or replace a file; readers see either the old or the new content.

    Raises:
        OSError: It cannot be written; the old file remains.
    """
    handle, name = tempfile.mkstemp(prefix=UNFINISHED, dir=path.parent)
    os.close(handle)
    scratch = Path(name)
    try:
        write_durably(scratch, content)
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Flush the names in a folder to disk."""
    if sys.platform == "win32":
        return  # folders cannot be opened there
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def throw_away(folder: Path) -> None:
    """Delete a folder, after renaming it so that nothing finds it.

    Raises:
        FileNotFoundError: It does not exist, or another process deleted it.
    """
    grave = folder.with_name(THROWN_AWAY + folder.name)
    folder.rename(grave)
    shutil.rmtree(grave, ignore_errors=True)


def sweep(root: Path) -> None:
    """Delete leftovers of killed processes: deleted and incomplete folders."""
    now_s = time.time()
    for path in root.iterdir():
        is_thrown = path.name.startswith(THROWN_AWAY)
        if is_thrown or (path.name.startswith(UNFINISHED) and _age_s(path, now_s) > _ABANDONED_S):
            shutil.rmtree(path, ignore_errors=True)


def _age_s(path: Path, now_s: float) -> float:
    try:
        return now_s - path.stat().st_mtime
    except OSError:
        return 0.0
