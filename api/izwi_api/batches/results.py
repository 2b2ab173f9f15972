"""The result files of a batch, which are its journal: a line that is in one of them is done.

A process may die at any byte. What follows the last complete line is cut off when the files are
opened again, and that line runs again.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Self

import msgspec


class _Done(msgspec.Struct):
    custom_id: str


class ResultFile:
    """A file of results, one JSON object a line.

    Attributes:
        done: The custom ids of its lines.
    """

    def __init__(self, path: Path):
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self.done: set[str] = set()
        whole = 0
        with path.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                whole += len(line)
                self.done.add(msgspec.json.decode(line, type=_Done).custom_id)
        os.ftruncate(self._descriptor, whole)

    def append(self, custom_id: str, line: bytes) -> None:
        """Append a line, and wait until it is on the disk. Raises OSError."""
        content = memoryview(line + b"\n")
        while content:
            content = content[os.write(self._descriptor, content) :]
        os.fdatasync(self._descriptor)
        self.done.add(custom_id)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


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
        for word in self._file.read().split():
            number = int(word) if word.lstrip(b"-").isdigit() else 0
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
