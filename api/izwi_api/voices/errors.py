"""Errors of stored voices, and their HTTP status."""

from __future__ import annotations

import errno
from collections.abc import Generator
from contextlib import contextmanager

from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, Response

from izwi.errors import IzwiError, VoiceNotFound
from izwi_api.http.errors import error_body

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class StorageFull(IzwiError):
    """The disk that holds the voices has no room. Nothing was kept."""

    code = "storage_full"


class ConsentNotFound(VoiceNotFound):
    """No consent recording has that id. Answered as a voice that is not found."""

    code = "consent_not_found"


@contextmanager
def report_full_disk() -> Generator[None]:
    """Raise StorageFull where the block fails for want of room."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise no_room() from error
        raise


def no_room() -> StorageFull:
    """Return the error for a full disk."""
    return StorageFull("the disk that holds the voices is full; nothing was kept")


def install(app: FastAPI) -> None:
    """Make the app answer a full disk with 507, which no client need try again."""
    app.add_exception_handler(StorageFull, _answer_storage_full)


async def _answer_storage_full(_: Request, error: Exception) -> Response:
    assert isinstance(error, StorageFull)
    body = error_body(str(error), "server_error", code=error.code)
    return JSONResponse(body, 507, {"x-should-retry": "false"})
