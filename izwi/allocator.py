"""Give freed memory back to the system. Knows glibc's allocator; elsewhere it does nothing."""

from __future__ import annotations

import ctypes
from contextlib import suppress


def trim() -> None:
    """Return every free page.

    After a crowd glibc keeps hundreds of megabytes in pieces too scattered to return by itself.
    It takes some 50 ms then, without Python's lock.
    """
    # musl and macOS have no such function, Windows has no such library.
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
