"""WebSockets of a client: to a server, or to an ASGI app in this process."""

from __future__ import annotations

import asyncio
from typing import Protocol

import anyio
import httpx
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from izwi_api.client.app_transport import App, AppCalls, Message, http_scope

_NORMAL = 1000  # of RFC 6455
_GONE = 1005


class SocketClosed(Exception):
    """The other side closed the WebSocket, or the connection broke."""


class SocketRefused(Exception):
    """The handshake got an HTTP response.

    Attributes:
        status: Its status.
        body: Its body.
    """

    def __init__(self, status: int, body: bytes):
        super().__init__(f"the handshake was answered with {status}")
        self.status, self.body = status, body


class Socket(Protocol):
    """An open WebSocket."""

    async def send(self, text: str) -> None:
        """Send a text message; wait while the other side reads nothing. Raises SocketClosed."""
        ...

    async def receive(self) -> str | bytes:
        """Wait for the next message. Raises SocketClosed."""
        ...

    def abort(self) -> None:
        """Disconnect at once; pending calls raise SocketClosed."""
        ...


class NetworkSocket:
    """A WebSocket over the network."""

    def __init__(self, connection: ClientConnection):
        self._connection = connection

    async def send(self, text: str) -> None:
        """Send a text message. Raises SocketClosed."""
        try:
            await self._connection.send(text)
        except ConnectionClosed as error:
            raise SocketClosed from error

    async def receive(self) -> str | bytes:
        """Wait for the next message. Raises SocketClosed."""
        try:
            return await self._connection.recv()
        except ConnectionClosed as error:
            raise SocketClosed from error

    def abort(self) -> None:
        """Disconnect at once."""
        self._connection.transport.abort()


class AppSocket:
    """A WebSocket to an app in this process. Made by `open`.

    Each side waits until the other has read its last message.
    """

    def __init__(self) -> None:
        self._to_app, self._app_reads = anyio.create_memory_object_stream[Message](0)
        self._app_writes, self._from_app = anyio.create_memory_object_stream[Message](0)

    @classmethod
    async def open(cls, app: App, calls: AppCalls, request: httpx.Request) -> AppSocket:
        """Open the WebSocket.

        Args:
            app: The app, after its startup.
            calls: The task group of the session.
            request: Has the path and the headers.

        Raises:
            SocketRefused: The app sent an HTTP response, or closed the WebSocket.
            SocketClosed: The app failed.
        """
        socket = cls()
        scope: Message = {
            **http_scope(request),
            "type": "websocket",
            "scheme": "ws",
            "subprotocols": [],
            "extensions": {"websocket.http.response": {}},
        }
        del scope["method"]
        task = calls.start(app(scope, socket._app_receives, socket._app_sends))
        task.add_done_callback(socket._end)
        try:
            await socket._give({"type": "websocket.connect"})
            answer = await socket._receive_message()
            if answer["type"] != "websocket.accept":
                raise await socket._refusal(answer)
        except BaseException:
            socket.abort()
            raise
        return socket

    async def send(self, text: str) -> None:
        """Send a text message; wait until the app reads it. Raises SocketClosed."""
        await self._give({"type": "websocket.receive", "text": text})

    async def receive(self) -> str | bytes:
        """Wait for the next message. Raises SocketClosed."""
        message = await self._receive_message()
        if message["type"] == "websocket.close":
            self.abort()
            raise SocketClosed(message.get("reason") or message.get("code", _NORMAL))
        text: str | None = message.get("text")
        return bytes(message["bytes"]) if text is None else text

    def abort(self) -> None:
        """Disconnect; the app notices at its next read or write."""
        self._to_app.close()
        self._from_app.close()

    async def _give(self, message: Message) -> None:
        try:
            await self._to_app.send(message)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            raise SocketClosed from error

    async def _receive_message(self) -> Message:
        try:
            return await self._from_app.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError) as error:
            raise SocketClosed from error

    async def _refusal(self, answer: Message) -> SocketRefused:
        if answer["type"] == "websocket.close":
            return SocketRefused(403, b"")
        body, more = b"", True
        while more:
            piece = await self._receive_message()
            body += piece.get("body", b"")
            more = piece.get("more_body", False)
        return SocketRefused(answer["status"], body)

    async def _app_receives(self) -> Message:
        try:
            return await self._app_reads.receive()
        except anyio.EndOfStream:
            return {"type": "websocket.disconnect", "code": _GONE}

    async def _app_sends(self, message: Message) -> None:
        try:
            await self._app_writes.send(message)
        except anyio.BrokenResourceError as error:
            raise OSError("the client has left") from error  # as the ASGI specification requires

    def _end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            task.exception()  # its client gets the failure
        self._app_reads.close()
        self._app_writes.close()
