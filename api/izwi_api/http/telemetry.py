"""Open a call for each HTTP request and WebSocket, and report it when it has ended."""

from __future__ import annotations

from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from izwi_api.telemetry.calls import Call, CallObserver, current_call, traceparent_of

# Paths that machines ask again and again; they use no model.
_NOT_OBSERVED: Collection[str] = frozenset({"/livez", "/readyz", "/metrics"})
_STATUS_OF_SOCKET = 101
DEGRADED = "x-izwi-degraded"  # what was changed because the model is loaded


class ObserveCalls:
    """ASGI middleware that makes `current_call` the call for the app behind it.

    Args:
        app: The app.
        observer: Opens the calls and takes those that have ended.
    """

    def __init__(self, app: ASGIApp, observer: CallObserver):
        self._app, self._observer = app, observer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app, and report the call."""
        if scope["type"] not in ("http", "websocket") or scope["path"] in _NOT_OBSERVED:
            await self._app(scope, receive, send)
            return
        parent = traceparent_of(Headers(scope=scope).get("traceparent"))
        call = self._observer.open_call(scope["state"]["request_id"], parent)
        call.method = scope["method"] if scope["type"] == "http" else "WEBSOCKET"

        async def send_seen(message: Message) -> None:
            _see(call, message)
            await send(message)

        token = current_call.set(call)
        try:
            await self._app(scope, receive, send_seen)
        except Exception:
            call.status = 500 if call.status == 499 else call.status
            self._end(call, scope)
            # the call stays in this task's context: the server logs the error there
            raise
        except BaseException:
            self._end(call, scope)
            current_call.reset(token)
            raise
        self._end(call, scope)
        current_call.reset(token)

    def _end(self, call: Call, scope: Scope) -> None:
        call.route = getattr(scope.get("route"), "path", None)
        call.end()


def _see(call: Call, message: Message) -> None:
    match message["type"]:
        case "http.response.start" | "websocket.http.response.start":
            call.status = message["status"]
            if call.degraded:
                MutableHeaders(scope=message)[DEGRADED] = call.degraded
        case "websocket.accept":
            call.status = _STATUS_OF_SOCKET
        case "websocket.close" if call.status == 499:
            call.status = 403
