"""Hang up after an answer that came before the end of the request's body."""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class CloseUnread:
    """ASGI middleware: what is left of a refused body is not read.

    The server would otherwise take in, and throw away, whatever a client goes on sending.
    """

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app, watching how far it reads."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        chunked, length = "transfer-encoding" in headers, headers.get("content-length")
        unread = chunked or length not in (None, "0")
        # With both, a proxy before us may see another end of the body, and another next request.
        ambiguous = chunked and length is not None

        async def watched() -> Message:
            nonlocal unread
            message = await receive()
            if message["type"] == "http.request" and not message.get("more_body", False):
                unread = False
            return message

        async def closing(message: Message) -> None:
            if message["type"] == "http.response.start" and (unread or ambiguous):
                MutableHeaders(scope=message)["connection"] = "close"
            await send(message)

        await self._app(scope, watched, closing)
