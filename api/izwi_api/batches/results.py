"""The result files of a batch, which are its journal: a line that is in one of them is done.

A process may die at any byte, and a disk may be full at any. What is no complete line is removed
when the files are opened again, and its line of the batch runs again.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path
from typing import Self

import msgspec

# of a line; longer ones were broken off and continued
_NUMBER = re.compile(rb"-?[0-9]{1,8}")


class _Done(msgspec.Struct):
    custom_id: str


class ResultFile:
    """A file of results, one JSON object a line.

    Attributes:
        done: The custom ids of its lines.
    """

    def __init__(self, path: Path):
        self.done = _recover(path)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)

    def append(self, custom_id: str, line: bytes) -> None:
        """Append a line, and wait until it is on the disk. Raises OSError, and leaves no part."""
        content = memoryview(line + b"\n")
        num_bytes = os.fstat(self._descriptor).st_size
        try:
            while content:
                content = content[os.write(self._descriptor, content) :]
            os.fdatasync(self._descriptor)
        except OSError:
            # lines of other workers may follow, which must not continue this one
            os.ftruncate(self._descriptor, num_bytes)
            raise
        self.done.add(custom_id)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def _recover(path: Path) -> set[str]:
    """Remove what is no complete line from a file, and return the ids of the others."""
    done: set[str] = set()
    kept_bytes, is_broken, is_scattered = 0, False, False
    if not path.exists():
        return done
    with path.open("rb") as file:
        for line in file:
            custom_id = _id_of(line)
            if custom_id is None:
                is_broken = True
                continue
            done.add(custom_id)
            is_scattered = is_scattered or is_broken
            kept_bytes += len(line)
    if is_scattered:
        _rewrite(path)
    elif is_broken:
        os.truncate(path, kept_bytes)  # which needs no room on the disk
    return done


def _rewrite(path: Path) -> None:
    draft = path.with_suffix(".draft")
    with path.open("rb") as file, draft.open("wb") as kept:
        draft.chmod(0o600)
        kept.writelines(line for line in file if _id_of(line) is not None)
        kept.flush()
        os.fsync(kept.fileno())
    draft.replace(path)


def _id_of(line: bytes) -> str | None:
    if not line.endswith(b"\n"):
        return None
    try:
        return msgspec.json.decode(line, type=_Done).custom_id
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None


class Begun:
    """How often each line was begun by a process that died before its result.

    A line that ends the process each time must not do so for ever.

    Args:
        path: The file that counts; lines of it are numbers, negative if the run was given up.
    """

    def __init__(self, path: Path):
        self._file = path.open("a+b", buffering=0)
        self._file.seek(0)
        self._counts = Counter[int]()
        content: bytes = self._file.read()
        if content and not content.endswith(b"\n"):  # broken off; the next number stands apart
            self._file.write(b"\n")
        for word in content.split():
            if _NUMBER.fullmatch(word):
                number = int(word)
                self._counts[abs(number)] += 1 if number > 0 else -1

    def count(self, number: int) -> int:
        """Return how often a line, from 1, was begun without an end."""
        return self._counts[number]

    def begin_line(self, number: int) -> None:
        """Note that a line is begun."""
        self._note(number)

    def give_up(self, number: int) -> None:
        """Note that a line was stopped, and is no danger."""
        self._note(-number)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _note(self, number: int) -> None:
        self._file.write(f"{number}\n".encode())
        self._counts[abs(number)] += 1 if number > 0 else -1


class Lease:
    """The right to run one batch: a lock on a file, which ends with the process that has it."""

    def __init__(self, descriptor: int):
        self._descriptor = descriptor

    @classmethod
    def claim(cls, path: Path) -> Self | None:
        """Return the lease of a batch, or None if another process has it."""
        import fcntl  # not on Windows, where batches are not served

        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return None
        return cls(descriptor)

    def release(self) -> None:
        """Give the lease back."""
        os.close(self._descriptor)
