"""Numbered slots shared by the processes of this machine: one for each live session.

A slot is a byte of a file, locked by the operating system. The lock is released when its process
dies in any way, so no count is left behind. If the file cannot be used, this process counts alone.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

logger = logging.getLogger(__name__)


class Slots:
    """Slots of one kind. Lives on one event loop, and never waits.

    Args:
        path: The file; its folder is created with the first slot. None counts in this process
            only. A process may have only one `Slots` of a file: closing a second one would release
            the locks.
    """

    def __init__(self, path: Path | None = None):
        self._path = path
        self._taken: set[int] = set()
        self._file: int | None = None

    def acquire(self, limit: int) -> int | None:
        """Take one of the first `limit` slots; return None if all are taken."""
        if self._path is not None and self._file is None:
            self._open(self._path)
        for slot in range(limit):
            if slot not in self._taken and self._lock(slot):
                self._taken.add(slot)
                return slot
        return None

    def release(self, slot: int) -> None:
        """Release a slot."""
        self._taken.discard(slot)
        if self._file is not None:
            import fcntl

            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, slot)

    def close(self) -> None:
        """Release all slots."""
        self._taken.clear()
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _lock(self, slot: int) -> bool:
        if self._file is None:
            return True
        import fcntl

        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, slot)
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
