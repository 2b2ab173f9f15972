"""A WebSocket as the transport of a live session, from its handshake to its close frame."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fastapi import WebSocket, WebSocketDisconnect

from izwi.errors import IzwiError
from izwi_api.http.app_state import AppState
from izwi_api.http.errors import response_to
from izwi_api.sessions.core import Message, Service, Session, Wire
from izwi_api.sessions.errors import ClientLeft
from izwi_api.sessions.limits import SessionLimits
from izwi_api.usage.metering import Usage, current_usage


async def serve_socket(
    socket: WebSocket,
    limits: SessionLimits,
    open_service: Callable[[Session], Service],
    protocol: str | None = None,
    wire_over: Callable[[Wire], Wire] = lambda wire: wire,
    headers: Mapping[str, str] | None = None,
) -> None:
    """Serve a WebSocket, or refuse its handshake if there are too many sessions.

    Args:
        socket: The WebSocket, not accepted yet.
        limits: Limits of the session.
        open_service: Makes the service of the session.
        protocol: The subprotocol to accept if a client offers it.
        wire_over: Returns the wire of the session over that of the socket.
        headers: Of the handshake's answer, in addition to its own.
    """
    state: AppState = socket.app.state.izwi
    usage = current_usage.get() or Usage()
    try:
        with state.sessions.slot(usage) as seat:
            # A browser that offers subprotocols disconnects unless one is accepted.
            offered: list[str] = socket.scope.get("subprotocols", [])
            chosen = protocol if protocol in offered else next(iter(offered), None)
            added = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
            await socket.accept(chosen, added)
            session = Session(wire_over(SocketWire(socket)), limits)
            with state.sessions.running(session, seat):
                await session.run(open_service(session))
    except IzwiError as error:
        await socket.send_denial_response(response_to(error))


class SocketWire:
    """A `Wire` over a WebSocket."""

    def __init__(self, socket: WebSocket):
        self._socket = socket

    async def receive(self) -> Message:
        """Return the next message. Raises ClientLeft."""
        event = await self._socket.receive()
        if event["type"] == "websocket.disconnect":
            raise ClientLeft
        text: str | None = event.get("text")
        data: bytes = event.get("bytes") or b""
        return data if text is None else text

    async def send(self, message: Message) -> None:
        """Send a message; wait while the client reads nothing. Raises ClientLeft."""
        try:
            if isinstance(message, str):
                await self._socket.send_text(message)
            else:
                await self._socket.send_bytes(message)
        except (WebSocketDisconnect, RuntimeError) as error:
            raise ClientLeft from error

    async def close(self, code: int, reason: str) -> None:
        """Close the connection. Raises ClientLeft."""
        try:
            await self._socket.close(code, reason)
        except (WebSocketDisconnect, RuntimeError) as error:
            raise ClientLeft from error
