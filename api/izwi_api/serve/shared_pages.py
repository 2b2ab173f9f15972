"""Pages of a prefix in memory that two engines of one machine share: one writes them, one reads.

The memory has no name in any file system. Its writer keeps it open until it is told to free it, and
it is gone when neither process has it: nothing is left behind, whichever process dies.
"""

from __future__ import annotations

import mmap
import os
from typing import NamedTuple

import msgspec
import numpy as np

from izwi.cache.tiers import Bytes
from izwi.errors import InvalidMessage

_LENGTH_BYTES = 8  # of the header's length, which comes first


def can_share() -> bool:
    """Whether this system has such memory: Linux does."""
    return hasattr(os, "memfd_create")


class Prefix(msgspec.Struct, frozen=True, array_like=True):
    """What the pages are.

    Attributes:
        model: The model's name.
        keys: Content keys of their positions.
        page_bytes: Bytes of a page.
        num_pages: How many follow.
    """

    model: str
    keys: list[int]
    page_bytes: int
    num_pages: int


class WrittenPages:
    """Pages that this process has written for another; `close` frees the memory."""

    def __init__(self, prefix: Prefix):
        """Allocate. Raises OSError: there is no memory."""
        header = msgspec.msgpack.encode(prefix)
        start = _LENGTH_BYTES + len(header)
        self.num_bytes = start + prefix.num_pages * prefix.page_bytes
        self._file = os.memfd_create("izwi-pages")
        try:
            os.posix_fallocate(self._file, 0, self.num_bytes)  # a later write would be fatal
            os.pwrite(self._file, len(header).to_bytes(_LENGTH_BYTES, "little") + header, 0)
        except OSError:
            self.close()
            raise
        self._written = start
        self.path = f"/proc/{os.getpid()}/fd/{self._file}"

    def write(self, pages: Bytes) -> None:
        """Append pages, (pages, page_bytes). Raises OSError."""
        left = np.ascontiguousarray(pages).reshape(-1).data
        while left:
            count = os.pwrite(self._file, left, self._written)
            self._written += count
            left = left[count:]

    def close(self) -> None:
        """Free the memory, as far as this process is concerned."""
        os.close(self._file)


class ReadPages(NamedTuple):
    """Pages of another process.

    Attributes:
        prefix: What they are.
        pages: (pages, page_bytes), read-only views of the shared memory.
    """

    prefix: Prefix
    pages: Bytes


def read_pages(path: str) -> ReadPages:
    """Open what another process has written.

    Raises:
        OSError: It is gone.
        InvalidMessage: It is not what `WrittenPages` writes.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = mmap.mmap(file, 0, prot=mmap.PROT_READ)
    finally:
        os.close(file)
    start = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "little")
    try:
        prefix = msgspec.msgpack.decode(content[_LENGTH_BYTES:start], type=Prefix)
    except msgspec.DecodeError as error:
        raise InvalidMessage(f"shared pages cannot be read: {error}") from error
    pages = np.frombuffer(content, np.uint8, prefix.num_pages * prefix.page_bytes, start)
    return ReadPages(prefix, pages.reshape(prefix.num_pages, prefix.page_bytes))
