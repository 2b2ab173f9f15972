"""Requests of vendors' clients as ours: their keys, and our errors in their format."""

from __future__ import annotations

import json
from collections.abc import Sequence

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from izwi_api.vendors.vendor import ErrorBody, Vendor

_FIRST_ERROR = 400
_STARTS = ("http.response.start", "websocket.http.response.start")
_BODIES = ("http.response.body", "websocket.http.response.body")


class VendorRequests:
    """ASGI middleware, outside the one that checks keys.

    Args:
        app: The app.
        vendors: Those that are served.
    """

    def __init__(self, app: ASGIApp, vendors: Sequence[Vendor]):
        self._app, self._vendors = app, vendors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app; for a vendor's path, with its key and its errors."""
        vendor = self._vendor_of(scope)
        if vendor is None:
            await self._app(scope, receive, send)
            return
        key = vendor.key_of(scope)
        if key is not None:
            _present(scope, key)
        if vendor.error_body is not None:
            request_id = scope.get("state", {}).get("request_id", "")
            send = _Rewriter(send, vendor.error_body, request_id).send
        await self._app(scope, receive, send)

    def _vendor_of(self, scope: Scope) -> Vendor | None:
        if scope["type"] not in ("http", "websocket"):
            return None
        path: str = scope["path"]
        return next((v for v in self._vendors if path.startswith(v.prefix)), None)


class _Rewriter:
    """Writes errors in a vendor's format, and passes everything else on."""

    def __init__(self, send: Send, error_body: ErrorBody, request_id: str):
        self._send, self._error_body, self._request_id = send, error_body, request_id
        self._start: Message | None = None  # of an error, until its body is complete
        self._content = bytearray()

    async def send(self, message: Message) -> None:
        """Send a message of the app."""
        if message["type"] in _STARTS and message["status"] >= _FIRST_ERROR:
            self._start = message
            return
        if self._start is None or message["type"] not in _BODIES:
            await self._send(message)
            return
        self._content += message.get("body", b"")
        if message.get("more_body", False):
            return
        start, self._start = self._start, None
        content = self._rewritten()
        MutableHeaders(scope=start)["content-length"] = str(len(content))
        await self._send(start)
        await self._send({"type": message["type"], "body": content, "more_body": False})

    def _rewritten(self) -> bytes:
        try:
            error = json.loads(bytes(self._content))["error"]
        except (ValueError, KeyError, TypeError):  # not one of our errors
            return bytes(self._content)
        return json.dumps(self._error_body(error, self._request_id)).encode()


def _present(scope: Scope, key: str) -> None:
    """Present a key as our own clients do, and in no other way."""
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    kept = [(name, value) for name, value in headers if name != b"authorization"]
    scope["headers"] = [*kept, (b"authorization", b"Bearer " + _header_bytes(key))]


def _header_bytes(key: str) -> bytes:
    """Return a key as a header's value; one with other characters is no valid key."""
    return key.encode("latin-1", "replace")
