"""Numbered places shared by the processes of this machine: one for each live session.

A place is a byte of a file, locked by the operating system. The lock is released when its process
dies in any way, so no count is left behind. If the file cannot be used, this process counts alone.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

logger = logging.getLogger(__name__)


class Places:
    """Places of one kind. Lives on one event loop, and never waits.

    Args:
        path: The file; its folder is created with the first place. None counts in this process
            only. A process may have only one `Places` of a file: closing a second one would release
            the locks.
    """

    def __init__(self, path: Path | None = None):
        self._path = path
        self._taken: set[int] = set()
        self._file: int | None = None

    def take(self, limit: int) -> int | None:
        """Take one of the first `limit` places; return None if all are taken."""
        if self._path is not None and self._file is None:
            self._open(self._path)
        for place in range(limit):
            if place not in self._taken and self._lock(place):
                self._taken.add(place)
                return place
        return None

    def give_back(self, place: int) -> None:
        """Release a place."""
        self._taken.discard(place)
        if self._file is not None:
            import fcntl

            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, place)

    def close(self) -> None:
        """Release all places."""
        self._taken.clear()
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _lock(self, place: int) -> bool:
        if self._file is None:
            return True
        import fcntl

        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
        except BlockingIOError:
            return False
        except OSError as error:
            self._count_alone(error)
        return True

    def _open(self, path: Path) -> None:
        try:
            import fcntl  # noqa: F401 - not on Windows, where every process counts alone

            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except (OSError, ImportError) as error:
            self._count_alone(error)

    def _count_alone(self, error: Exception) -> None:
        logger.error("%s cannot be used, this process counts alone: %s", self._path, error)
        self._path = None
        if self._file is not None:
            os.close(self._file)
            self._file = None
