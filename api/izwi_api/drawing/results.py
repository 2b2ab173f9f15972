"""Files with what was drawn, for an hour: a caller gets their address instead of their content."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

KEPT_S = 3600.0
MAX_BYTES = 1 << 30
_NAME = re.compile(r"[0-9a-f]{32}\.[a-z0-9]{3,4}", re.ASCII)


class ResultFiles:
    """Files in a folder, which all API servers of a server share. Every method blocks on the disk.

    A name cannot be guessed, so whoever has it may read the file.

    Args:
        folder: Where they are; created when needed.
        clock: Seconds since 1970.
        max_bytes: Of all files; the oldest are removed for a new one.
    """

    def __init__(
        self,
        folder: Path,
        clock: Callable[[], float] = time.time,
        max_bytes: int = MAX_BYTES,
    ):
        self._folder, self._clock, self._max_bytes = folder, clock, max_bytes

    def add(self, content: bytes, suffix: str) -> str:
        """Keep a file, and return its name.

        Args:
            content: The file.
            suffix: Its kind, such as "png".
        """
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._make_room(len(content))
        name = f"{secrets.token_hex(16)}.{suffix}"
        path = self._folder / name
        path.write_bytes(content)
        return name

    def find(self, name: str) -> Path | None:
        """Return where a file is; None if there is none of this name, or it has expired."""
        if not _NAME.fullmatch(name):
            return None
        path = self._folder / name
        try:
            is_kept = path.stat().st_mtime + KEPT_S > self._clock()
        except OSError:
            return None
        return path if is_kept else None

    def _make_room(self, num_bytes: int) -> None:
        """Remove what has expired, and the oldest files if there are too many bytes."""
        found = []
        for path in self._folder.iterdir():
            with suppress(OSError):  # another API server has removed it
                info = path.stat()
                found.append((info.st_mtime, info.st_size, path))
        used = num_bytes + sum(size for _, size, _ in found)
        for changed_s, size, path in sorted(found):
            if changed_s + KEPT_S > self._clock() and used <= self._max_bytes:
                break
            path.unlink(missing_ok=True)
            used -= size
