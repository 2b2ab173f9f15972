"""Report a full disk."""

from __future__ import annotations

import errno
from collections.abc import Generator
from contextlib import contextmanager

from izwi.errors import StorageFull

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def report_full_disk() -> Generator[None]:
    """Raise StorageFull if the block fails because the disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise no_room() from error
        raise


def no_room() -> StorageFull:
    """Return the error for a full disk."""
    return StorageFull("the disk with the voices is full; nothing was stored")
