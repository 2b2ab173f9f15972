"""Tune the process's memory: Python's garbage collector and glibc's allocator."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress

# After so long without work the memory of what has run is given back.
IDLE_S = 2.0

# Parameters of glibc's mallopt, and the largest threshold it takes.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_MOST_FROM_HEAP = 32 << 20


def settle() -> None:
    """Exclude all objects loaded so far from garbage collection; they stay in memory anyway.

    A full collection over the modules and models of a server holds Python's lock for some 100 ms,
    which is longer than a listener's slack after the first chunk.
    """
    gc.collect()
    gc.freeze()
    # Full collections wait until a quarter as many new objects are old as the last one found. That
    # must not count what was loaded: sessions that ended would be kept by the hundred.
    gc.collect()


def keep_freed() -> None:
    """Keep freed memory until `trim`; nothing where the allocator is not glibc's.

    glibc returns large arrays at once, and the next step then waits for the system to clear as many
    pages again. That matters for libraries that allocate every array by malloc.
    """
    with suppress(AttributeError, OSError, TypeError):
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, _MOST_FROM_HEAP)
        library.mallopt(_TRIM_THRESHOLD, 1 << 30)


def share_heaps(most: int = 2) -> None:
    """Let threads share this many heaps; nothing where the allocator is not glibc's.

    Call it before threads start. By default glibc makes up to eight heaps a core, one for each new
    thread, and what is free in one is of no use to the threads of the others: after ten minutes
    of mixed requests an API server had ten, and more free memory in them than used.

    Args:
        most: Heaps, the one of the main thread included.
    """
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).mallopt(_ARENA_MAX, most)


def trim() -> None:
    """Return every free page; nothing where the allocator is not glibc's.

    After a crowd glibc keeps hundreds of megabytes in pieces too scattered to return by itself.
    It takes some 50 ms then, without Python's lock.
    """
    # musl and macOS have no such function, Windows has no such library.
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
