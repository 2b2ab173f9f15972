"""Usage counts of a key, shared by all processes of this machine: a small file under a lock.

The operating system's cache of the file serves as shared memory. Nothing waits for the disk, so a
power failure may lose the last seconds. A file that cannot be used, or stays locked, stops no
request: this process then counts alone (see `Meter`).
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

logger = logging.getLogger(__name__)

_FORMAT = 1
# Every write replaces the whole file, whatever it held.
_NUM_BYTES = 512
# The lock is held for microseconds. The event loop waits for it.
_LOCK_WAIT_S, _LOCK_PAUSE_S = 0.005, 0.0002
# After a failure this process counts alone for a while: longer after each lock that it did not get,
# because a busy machine may suspend the process that holds the lock for some milliseconds.
_MIN_ALONE_S, _MAX_ALONE_S = 0.01, 1.0


@dataclass(frozen=True, slots=True)
class KeyCounts:
    """The usage of a key.

    Attributes:
        spent_at_s: Seconds since 1970.
        spent: Requests missing from a full bucket at that time.
        day: Days since 1970.
        used: Of that day's quotas.
    """

    spent_at_s: float
    spent: float
    day: int
    used: Mapping[str, float]


class LockedCounts:
    """The counts of a key, locked against other processes.

    Attributes:
        counts: The counts; None if there are none yet, or the file was damaged.
    """

    def __init__(self, descriptor: int, key_name: str, counts: KeyCounts | None):
        self.counts = counts
        self._descriptor, self._key_name = descriptor, key_name

    def write(self, counts: KeyCounts) -> None:
        """Replace the counts. Raises OSError."""
        fields = {
            "format": _FORMAT,
            "key": self._key_name,
            "spent_at_s": counts.spent_at_s,
            "spent": counts.spent,
            "day": counts.day,
            "used": dict(counts.used),
        }
        os.pwrite(self._descriptor, json.dumps(fields).encode().ljust(_NUM_BYTES), 0)


class CountsFile:
    """The file of one key.

    Args:
        folder: Folder of all keys' files; created when needed.
        key_name: The key.
    """

    def __init__(self, folder: Path, key_name: str):
        # Some file systems do not distinguish "Ann" and "ann".
        self.path = folder / f"{sha256(key_name.encode()).hexdigest()[:24]}.json"
        self._key_name = key_name
        self._alone_until_s = -math.inf
        self._alone_s = 0.0
        self._is_failing = False

    @contextmanager
    def locked(self, now_s: float) -> Generator[LockedCounts | None]:
        """Lock the counts until the block ends; None if they cannot be used now.

        Args:
            now_s: Seconds since 1970. KeyCounts from a later time are ignored.
        """
        descriptor = self._lock() if time.monotonic() >= self._alone_until_s else None
        if descriptor is None:
            yield None
            return
        try:
            locked = LockedCounts(descriptor, self._key_name, self._read(descriptor, now_s))
            yield locked
            self._alone_s, self._is_failing = 0.0, False
        except OSError as error:
            self._fail(error)
        finally:
            os.close(descriptor)  # also releases the lock

    def _lock(self) -> int | None:
        descriptor = None
        try:
            import fcntl  # not available on Windows, where every process counts alone

            descriptor = self._open()
            until_s = time.monotonic() + _LOCK_WAIT_S
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return descriptor
                except BlockingIOError:
                    if time.monotonic() > until_s:
                        raise
                    time.sleep(_LOCK_PAUSE_S)
        except (OSError, ImportError) as error:
            if descriptor is not None:
                os.close(descriptor)
            self._fail(error)
            return None

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
        try:
            return os.open(self.path, flags, 0o600)
        except FileNotFoundError:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            return os.open(self.path, flags, 0o600)

    def _read(self, descriptor: int, now_s: float) -> KeyCounts | None:
        content = os.pread(descriptor, _NUM_BYTES, 0)
        if not content:
            return None
        try:
            return _parse(content, now_s)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            logger.warning("%s is damaged (%s) and is replaced", self.path, error)
            return None

    def _fail(self, error: Exception) -> None:
        is_locked = isinstance(error, BlockingIOError)
        longer_s = max(_MIN_ALONE_S, 2 * self._alone_s) if is_locked else _MAX_ALONE_S
        self._alone_s = min(longer_s, _MAX_ALONE_S)
        self._alone_until_s = time.monotonic() + self._alone_s
        if self._alone_s == _MAX_ALONE_S and not self._is_failing:
            logger.error("%s cannot be used, this process counts alone: %s", self.path, error)
            self._is_failing = True


def _parse(content: bytes, now_s: float) -> KeyCounts:
    fields = json.loads(content)
    if fields["format"] != _FORMAT:
        raise ValueError(f"its format is {fields['format']!r}")
    counts = KeyCounts(
        float(fields["spent_at_s"]),
        float(fields["spent"]),
        int(fields["day"]),
        {str(what): float(amount) for what, amount in fields["used"].items()},
    )
    amounts = (counts.spent_at_s, counts.spent, *counts.used.values())
    if not all(0 <= amount < math.inf for amount in amounts):
        raise ValueError("a number is out of range")
    # Otherwise a bucket from a time in the future would stay empty until then.
    if counts.spent_at_s > now_s + 60 or counts.day > now_s // 86_400 + 1:
        raise ValueError("it is from the future")
    return counts
