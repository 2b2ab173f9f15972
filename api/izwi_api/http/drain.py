"""Graceful shutdown: requests in flight may finish, new ones are refused with 503."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from izwi_api.http.auth import LINE_OWNER, PROBES
from izwi_api.http.errors import error_body, refuse
from izwi_api.sessions.errors import GOING_AWAY, SessionOver
from izwi_api.sessions.open_sessions import OpenSessions

# Seconds after which clients retry, when another server should have taken over.
_RETRY_AFTER_S = 5
# Seconds to wait for a client that reads nothing.
_CLOSE_S = 1.0
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})

CloseSocket = Callable[[], Coroutine[Any, Any, None]]


class Drain:
    """Whether the server accepts work, and which work is in flight. Lives on the event loop.

    Args:
        sessions: The live ones, which get a last event before their sockets are closed.

    Attributes:
        is_begun: New work is refused.
        num_running: HTTP requests in flight, except probes, and open WebSockets.
    """

    def __init__(self, sessions: OpenSessions) -> None:
        self._sessions = sessions
        self.is_begun = False
        self.num_running = 0
        self._open_sockets: set[CloseSocket] = set()

    def start_draining(self) -> None:
        """Refuse new work from now on. A signal handler may call it."""
        self.is_begun = True

    @contextmanager
    def running(self, close: CloseSocket | None = None) -> Iterator[None]:
        """Count one more request in flight until the block ends.

        Args:
            close: Closes it from the server's side, if it is a WebSocket.
        """
        self.num_running += 1
        if close is not None:
            self._open_sockets.add(close)
        try:
            yield
        finally:
            self.num_running -= 1
            if close is not None:
                self._open_sockets.discard(close)

    async def end_sessions(self) -> None:
        """End the open sessions, and close their sockets, because the server stops."""
        over = SessionOver("the server is stopping", "server_stops", GOING_AWAY, is_told=False)
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self._sessions.end_all(over)
        closings = [close() for close in self._open_sockets]
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await asyncio.gather(*closings, return_exceptions=True)


class Draining:
    """ASGI middleware that tracks requests in flight, and refuses new ones while draining."""

    def __init__(self, app: ASGIApp, drain: Drain):
        self._app, self._drain = app, drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app, or refuse the request."""
        drain = self._drain
        # a batch's line is done again later, so nothing waits for it
        is_line = LINE_OWNER in scope
        if scope["type"] not in ("http", "websocket") or scope["path"] in PROBES or is_line:
            await self._app(scope, receive, send)
            return
        if drain.is_begun and (
            scope["type"] == "websocket" or scope["method"] not in _SAFE_METHODS
        ):
            await refuse(_refusal(), scope, receive, send)
            return
        if scope["type"] == "websocket":
            await self._run_session(scope, receive, send)
            return
        with drain.running():
            try:
                await self._app(scope, receive, self._last_of_connection(send))
            except asyncio.CancelledError:
                # After the time limit the server closes the connection, so the response is
                # incomplete, and logs one line.
                if not drain.is_begun:
                    raise

    def _last_of_connection(self, send: Send) -> Send:
        """Close connections after responses while draining, so that clients reconnect elsewhere."""

        async def closing(message: Message) -> None:
            if message["type"] == "http.response.start" and self._drain.is_begun:
                MutableHeaders(scope=message)["connection"] = "close"
            await send(message)

        return closing

    async def _run_session(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_closed = False

        async def watched(message: Message) -> None:
            nonlocal is_closed
            if is_closed:
                raise OSError("the server has closed the WebSocket")  # as if it had disconnected
            is_closed = message["type"] == "websocket.close"
            await send(message)

        async def close() -> None:
            nonlocal is_closed
            if not is_closed:
                is_closed = True
                reason = "server stops"
                await send({"type": "websocket.close", "code": GOING_AWAY, "reason": reason})

        with self._drain.running(close):
            await self._app(scope, receive, watched)


def _refusal() -> JSONResponse:
    body = error_body("the server is stopping", "server_error", code="engine_stopped")
    headers = {"retry-after": str(_RETRY_AFTER_S), "connection": "close"}
    return JSONResponse(body, 503, headers)
