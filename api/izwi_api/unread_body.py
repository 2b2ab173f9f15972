"""Do not wait for a body that comes too slowly, and hang up after an answer to half a body."""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from izwi_api.request_pace import RequestPace, SlowRequest


class CloseUnread:
    """ASGI middleware: what is left of a refused body is not read.

    The server would otherwise take in, and throw away, whatever a client goes on sending. Whoever
    reads a body that is too slow gets SlowRequest.

    Args:
        app: What reads.
        pace: How fast bodies must come.
    """

    def __init__(self, app: ASGIApp, pace: RequestPace):
        self._app, self._pace = app, pace

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

        loop = asyncio.get_running_loop()
        begun_s, num_bytes = loop.time(), 0

        async def watched() -> Message:
            nonlocal unread, num_bytes
            if not unread:  # what is waited for now is that the client leaves
                return await receive()
            try:
                async with asyncio.timeout_at(begun_s + self._pace.body_time_s(num_bytes)):
                    message = await receive()
            except TimeoutError as error:
                raise SlowRequest("the body did not arrive in time") from error
            num_bytes += len(message.get("body", b""))
            if message["type"] == "http.request" and not message.get("more_body", False):
                unread = False
            return message

        async def closing(message: Message) -> None:
            if message["type"] == "http.response.start" and (unread or ambiguous):
                MutableHeaders(scope=message)["connection"] = "close"
            await send(message)

        await self._app(scope, watched, closing)
