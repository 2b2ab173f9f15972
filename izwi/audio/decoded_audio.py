"""Decoded audio of any length in little memory: long audio is in an unnamed temporary file."""

from __future__ import annotations

import errno
import threading
import weakref
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Self

import numpy as np

from izwi.arrays import Float32, Samples
from izwi.errors import IzwiError, Overloaded

# A minute at 16 kHz, 4 MB; an hour is 230 MB.
MAX_MEMORY_SAMPLES = 60 * 16_000

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_SAMPLE_BYTES = 4
# Samples read at a time when all of the audio is scanned.
_BLOCK_SAMPLES = 1 << 20


class DecodedAudio:
    """Mono samples that are written once and then read in parts; an `izwi.arrays.Samples`.

    Up to `MAX_MEMORY_SAMPLES` are held in memory, more in a file without a name, which is deleted
    however the process ends. It is read, not mapped, because mapped pages would count as memory of
    this process. Several threads may read at the same time.

    Its owner closes it; it is also closed when garbage-collected. Reading after that raises
    ValueError.

    Args:
        folder: Folder of the file, on a disk rather than in memory; created if missing. None uses
            the system's folder for temporary files.
    """

    def __init__(self, folder: Path | None = None):
        self._folder = folder
        where = None if folder is None else str(folder)
        self._file = SpooledTemporaryFile(dir=where)  # noqa: SIM115 -- closed by `close`
        self._in_file = False
        self._num_samples = 0
        self._lock = threading.Lock()
        # the result for a caller that was cancelled has no owner to close it
        weakref.finalize(self, self._file.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, part: slice, /) -> Float32:
        """Read samples [start, stop), (n,) float32, as a copy.

        Raises:
            IzwiError: The file cannot be read.
        """
        start, stop, step = part.indices(self._num_samples)
        if step != 1:
            raise ValueError("decoded audio is indexed by slices with a step of 1")
        samples = np.empty(max(0, stop - start), np.float32)
        with self._lock, self._report_failure():
            self._file.seek(start * _SAMPLE_BYTES)
            if self._file.readinto(samples.view(np.uint8).data) != samples.nbytes:
                raise OSError(errno.EIO, "the file has become shorter")
        return samples

    def write(self, block: Float32) -> None:
        """Append samples.

        Args:
            block: (n,) float32.

        Raises:
            Overloaded: The disk is full.
            IzwiError: The file cannot be created or written.
        """
        with self._lock, self._report_failure():
            if not self._in_file and self._num_samples + len(block) > MAX_MEMORY_SAMPLES:
                self._move_to_file()
            self._file.write(np.ascontiguousarray(block, np.float32).view(np.uint8).data)
            self._file.flush()  # a full disk fails now, and not while it is read
        self._num_samples += len(block)

    def write_all(self, blocks: Iterable[Float32]) -> Self:
        """Write blocks and return itself; it is closed if that fails. Raises as `write`."""
        try:
            for block in blocks:
                self.write(block)
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Free memory and file; a second call does nothing."""
        with self._lock:  # not under a thread that reads
            self._file.close()

    def _move_to_file(self) -> None:
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
        self._file.rollover()
        self._in_file = True

    @contextmanager
    def _report_failure(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in _NO_ROOM:
                # others who are at work give their room back
                raise Overloaded(
                    "the disk has no room for audio of this length", retry_after_s=30
                ) from error
            where = self._folder or "the system's folder for temporary files"
            raise IzwiError(f"long audio cannot be kept in {where}: {error.strerror}") from error


class _TurnedDown:
    """Samples divided by their peak as they are read; an `izwi.arrays.Samples`."""

    def __init__(self, samples: Samples, peak: float):
        self._samples, self._peak = samples, np.float32(peak)

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, part: slice, /) -> Float32:
        return self._samples[part] / self._peak


def within_full_scale(samples: Samples) -> Samples:
    """Return the same samples, or all of them scaled down if one is beyond [-1, 1].

    The peak is found block by block; samples are divided when they are read.
    """
    starts = range(0, len(samples), _BLOCK_SAMPLES)
    blocks = (samples[start : start + _BLOCK_SAMPLES] for start in starts)
    peak = max((max(float(b.max()), -float(b.min())) for b in blocks), default=0.0)
    return _TurnedDown(samples, peak) if peak > 1.0 else samples
