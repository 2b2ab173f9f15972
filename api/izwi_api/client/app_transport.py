"""An httpx transport to an ASGI app in this process, with streamed responses.

httpx's own ASGI transport collects the whole response first. This one returns a response as soon as
it starts and streams its body, with backpressure on the app. The app sees a response that is closed
early as a client disconnect. No request outlives the transport.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any

import anyio
import httpx

from izwi.errors import EngineStopped, IzwiError

Message = MutableMapping[str, Any]
App = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]],
    Awaitable[None],
]

_ASGI = {"version": "3.0", "spec_version": "2.4"}
# Maximum number of unread body chunks.
_MAX_UNREAD = 1


class AppTransport(httpx.AsyncBaseTransport):
    """Sends requests to an app that runs in the caller's event loop.

    Args:
        app: An ASGI app, after its lifespan startup.

    Attributes:
        calls: The running requests and WebSocket sessions.
    """

    def __init__(self, app: App):
        self._app = app
        self.calls = AppCalls()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Return a response once it has started.

        Raises:
            Exception: Any exception that the app raised before that.
        """
        exchange = _Exchange(request)
        task = self.calls.start(self._app(http_scope(request), exchange.receive, exchange.send))
        exchange.ended = task
        task.add_done_callback(exchange.end)
        try:
            status, headers = await exchange.started
        except BaseException:
            exchange.leave()
            raise
        return httpx.Response(status, headers=headers, stream=_Body(exchange))

    async def aclose(self) -> None:
        """Cancel the running requests, and wait for them."""
        await self.calls.cancel()


class AppCalls:
    """The running calls of an app; none outlives `cancel`."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, call: Awaitable[None]) -> asyncio.Task[None]:
        """Run a call in its own task."""
        task = asyncio.create_task(_run(call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def cancel(self) -> None:
        """Cancel all running calls, and wait until they have ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Exchange:
    """One request: the app's `receive` and `send`, and the client's response stream.

    Attributes:
        started: Status and headers.
        pieces: Chunks of the body, for the client.
        error: An exception that the app raised after that.
        ended: The app's task.
    """

    ended: asyncio.Task[None]

    def __init__(self, request: httpx.Request):
        assert isinstance(request.stream, httpx.AsyncByteStream)
        self.started = asyncio.get_running_loop().create_future()
        self.error: BaseException | None = None
        self._unread, self.pieces = anyio.create_memory_object_stream[bytes](_MAX_UNREAD)
        self._body = aiter(request.stream)
        self._is_sent = False
        self._has_left = asyncio.Event()

    async def receive(self) -> Message:
        """Give the app a chunk of the request's body; after the last one, the disconnect."""
        if not self._is_sent:
            piece = await anext(self._body, None)
            self._is_sent = piece is None
            return {"type": "http.request", "body": piece or b"", "more_body": piece is not None}
        await self._has_left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Accept a message from the app, waiting until the client has read the previous one."""
        if message["type"] == "http.response.start":
            if not self.started.done():
                self.started.set_result((message["status"], list(message.get("headers", ()))))
            return
        body = bytes(message.get("body", b""))
        # A client that has left reads nothing; the app sees that in `receive`.
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            if body:
                await self._unread.send(body)
            if not message.get("more_body", False):
                self._unread.close()

    def leave(self) -> None:
        """Tell the app that the client has disconnected."""
        self._has_left.set()
        self.pieces.close()

    def end(self, task: asyncio.Task[None]) -> None:
        """Record that the app has returned or failed. The client can still read what it sent."""
        was_cancelled = task.cancelled()
        self.error = EngineStopped("the app was stopped") if was_cancelled else _cause(task)
        if not self.started.done():
            lost = self.error or RuntimeError("the app returned without a response")
            self.started.set_exception(lost)
            self.started.exception()  # the caller may have left; mark the exception as retrieved
        self._unread.close()


class _Body(httpx.AsyncByteStream):
    def __init__(self, exchange: _Exchange):
        self._exchange = exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._exchange.pieces:
            yield piece
        if self._exchange.error is not None:
            raise self._exchange.error

    async def aclose(self) -> None:
        """Disconnect, and wait until the app has stopped, because the loop may end after this."""
        self._exchange.leave()
        await asyncio.wait([self._exchange.ended])


def http_scope(request: httpx.Request) -> Message:
    """Return the ASGI scope of a request."""
    url = request.url
    return {
        "type": "http",
        "asgi": _ASGI,
        "http_version": "1.1",
        "method": request.method,
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "scheme": url.scheme,
        "path": url.path,
        "raw_path": url.raw_path.split(b"?")[0],
        "query_string": url.query,
        "root_path": "",
        "server": (url.host, url.port),
        "client": ("127.0.0.1", 0),
    }


def _cause(task: asyncio.Task[None]) -> BaseException | None:
    """Return the original exception; Starlette wraps those raised after the response started."""
    error = task.exception()
    if isinstance(error, RuntimeError) and isinstance(error.__cause__, IzwiError):
        return error.__cause__
    return error


async def _run(call: Awaitable[None]) -> None:
    await call
