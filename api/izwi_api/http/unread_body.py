"""Time out request bodies that arrive too slowly; close connections with unread bodies."""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from izwi.errors import RequestTimeout
from izwi_api.fair_timeout import fair_timeout
from izwi_api.settings import RequestPace


class CloseUnread:
    """ASGI middleware: the rest of a refused body is not read.

    Otherwise the server would read and discard everything that the client still sends. An app that
    reads a body that is too slow gets RequestTimeout.

    Args:
        app: The app that reads the bodies.
        pace: The minimum rate of bodies.
    """

    def __init__(self, app: ASGIApp, pace: RequestPace):
        self._app, self._pace = app, pace

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app, and track how far it reads."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        chunked, length = "transfer-encoding" in headers, headers.get("content-length")
        unread = chunked or length not in (None, "0")
        # If both are sent, a proxy may see another end of the body, and another next request.
        ambiguous = chunked and length is not None

        num_bytes, waited_s = 0, 0.0

        async def watched() -> Message:
            nonlocal unread, num_bytes, waited_s
            if not unread:  # the app now waits for the client to disconnect
                return await receive()
            try:
                left_s = self._pace.body_time_s(num_bytes) - waited_s
                async with fair_timeout(left_s) as countdown:
                    message = await receive()
            except TimeoutError as error:
                raise RequestTimeout("the body did not arrive in time") from error
            waited_s += countdown.counted_s
            num_bytes += len(message.get("body", b""))
            if message["type"] == "http.request" and not message.get("more_body", False):
                unread = False
            return message

        async def closing(message: Message) -> None:
            if message["type"] == "http.response.start" and (unread or ambiguous):
                MutableHeaders(scope=message)["connection"] = "close"
            await send(message)

        await self._app(scope, watched, closing)
