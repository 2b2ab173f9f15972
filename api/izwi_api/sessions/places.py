"""Numbered places that the processes of this machine share: one for each live session.

A place is a byte of a file under a lock of the system, which falls when its process dies, however
it dies: no count is ever left behind. Where the file cannot be used this process counts alone.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

logger = logging.getLogger(__name__)


class Places:
    """Places of one kind. Belongs to one event loop, and never waits.

    Args:
        path: The file; its folder is made with the first place. None counts in this process alone.
            A process may have one `Places` of a file: closing a second one would drop the locks.
    """

    def __init__(self, path: Path | None = None):
        self._path = path
        self._taken: set[int] = set()
        self._file: int | None = None

    @property
    def num_taken(self) -> int:
        """Places that this process has."""
        return len(self._taken)

    def take(self, limit: int) -> int | None:
        """Return a place of the first `limit`, or None where all are taken."""
        if self._path is not None and self._file is None:
            self._open(self._path)
        for place in range(limit):
            if place not in self._taken and self._lock(place):
                self._taken.add(place)
                return place
        return None

    def give_back(self, place: int) -> None:
        """Leave a place to others."""
        self._taken.discard(place)
        if self._file is not None:
            import fcntl

            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, place)

    def close(self) -> None:
        """Give all places back."""
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
