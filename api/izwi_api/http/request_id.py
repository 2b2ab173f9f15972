"""Give every response an x-request-id, which logs and traces have too."""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from izwi_api.telemetry.calls import call_id_of

_BEGINNINGS = frozenset(
    {"http.response.start", "websocket.accept", "websocket.http.response.start"}
)


class RequestId:
    """ASGI middleware; the id is the caller's, or a new one, and in `request.state.request_id`."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app, and add the id to its response."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        request_id = call_id_of(Headers(scope=scope).get("x-request-id"))
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] in _BEGINNINGS:
                message.setdefault("headers", [])
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        await self._app(scope, receive, send_with_id)
