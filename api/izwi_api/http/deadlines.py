"""Read the deadlines that a call asks for, before anything of it is run."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from izwi.errors import InvalidRequest
from izwi_api.http.errors import refuse, response_to
from izwi_api.services.models.caller_deadlines import HEADER, current_deadlines, parse_deadlines


class CallerDeadlines:
    """ASGI middleware: requests to the engine of a call with `x-izwi-deadlines` have these.

    Args:
        app: The app behind it.
    """

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app, or refuse a header that cannot be read."""
        text = Headers(scope=scope).get(HEADER) if scope["type"] in ("http", "websocket") else None
        if text is None:
            await self._app(scope, receive, send)
            return
        try:
            deadlines = parse_deadlines(text)
        except InvalidRequest as error:
            await refuse(response_to(error), scope, receive, send)
            return
        token = current_deadlines.set(deadlines)
        try:
            await self._app(scope, receive, send)
        finally:
            current_deadlines.reset(token)
