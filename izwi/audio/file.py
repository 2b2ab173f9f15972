"""Read audio files that a user names."""

from __future__ import annotations

import stat
from pathlib import Path

from izwi.errors import InvalidAudio


def read_audio_file(path: Path) -> bytes:
    """Return a file's bytes; pipes are read to their end.

    Raises:
        InvalidAudio: It cannot be read, or is a device, which may never end.
    """
    try:
        kind = path.stat().st_mode
        if stat.S_ISCHR(kind) or stat.S_ISBLK(kind):
            raise InvalidAudio(f"cannot read {path}: it is a device, not a file", param="file")
        return path.read_bytes()
    except OSError as error:
        raise InvalidAudio(f"cannot read {path}: {error.strerror}", param="file") from error
