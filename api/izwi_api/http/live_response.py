"""Stream a response, and cancel the work when the client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

Result = TypeVar("Result")


async def unless_left(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """Run `work`, and cancel it as soon as the client disconnects.

    Starlette detects this only while it streams. Without this function, a client that disconnects
    from a non-streaming route would keep the engine busy to the end. Call it after reading the
    body.

    Raises:
        ClientDisconnect: The client disconnected first.
    """
    worker = asyncio.current_task()
    assert worker is not None
    has_left = False

    async def watch() -> None:
        nonlocal has_left
        await _until_left(receive)
        has_left = True
        worker.cancel()

    watching = asyncio.create_task(watch())
    try:
        return await work
    except asyncio.CancelledError as error:
        # If this task was cancelled from outside as well, that takes precedence.
        if has_left and worker.uncancel() == 0:
            raise ClientDisconnect from error
        raise
    finally:
        watching.cancel()


class LiveResponse(Response):
    """A chunked body from a generator.

    An error in the middle is raised, so that the server closes the connection: without the last
    chunk the client knows that the body is incomplete. The generator is always closed.

    Args:
        first: The first bytes; waiting for them before responding gives an early failure its own
            status.
        rest: The bytes that follow.
        media_type: Content type.
    """

    def __init__(self, first: bytes, rest: AsyncGenerator[bytes], media_type: str):
        self.status_code = 200
        self.media_type = media_type
        self.background = None
        self._first = first
        self._rest = rest
        # Reverse proxies buffer small chunks unless told not to.
        self.init_headers({"x-accel-buffering": "no", "cache-control": "no-store"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the body, and watch for disconnects."""
        del scope
        # The response has started, so the error cannot be sent.
        with suppress(ClientDisconnect):
            await unless_left(receive, self._send_all(send))

    async def _send_all(self, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": self._first, "more_body": True})
            async for piece in self._rest:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await self._rest.aclose()


async def live_response(
    body: AsyncGenerator[bytes], media_type: str, headers: Mapping[str, str] | None = None
) -> LiveResponse:
    """Wait for the first bytes of a body, then respond with it."""
    first = await anext(body, b"")
    response = LiveResponse(first, body, media_type)
    response.headers.update(headers or {})
    return response


async def _until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
