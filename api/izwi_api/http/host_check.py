"""Refuse requests whose Host header is not a name of this machine.

A foreign page can point its own name at 127.0.0.1 (DNS rebinding). For the browser, this server
then belongs to that page, so origin checks do not help. But the Host header still has the foreign
name.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from ipaddress import ip_address

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from izwi_api.http.auth import PROBES
from izwi_api.http.errors import error_body, refuse

_LOCAL = "localhost"
_PORT = re.compile(r"(?<=[^:]):[0-9]*\Z")  # not at the end of a bare IPv6 address


class HostCheck:
    """ASGI middleware that refuses host names that are not allowed.

    Args:
        app: The app behind it.
        allowed: Allowed names, besides localhost and IP addresses.
    """

    def __init__(self, app: ASGIApp, allowed: Collection[str] = ()):
        self._app = app
        self._allowed = frozenset(name.lower() for name in allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app, or refuse the request."""
        if scope["type"] in ("http", "websocket") and scope["path"] not in PROBES:
            hosts = Headers(scope=scope).getlist("host")
            if not all(is_own_name(host, self._allowed) for host in hosts):
                await refuse(_misdirected(), scope, receive, send)
                return
        await self._app(scope, receive, send)


def is_own_name(host: str, allowed: Collection[str] = ()) -> bool:
    """Whether a Host header has a name that no foreign name server controls."""
    name = _PORT.sub("", host.strip().lower()).removesuffix(".")
    if name.startswith("[") and name.endswith("]"):
        name = name[1:-1]
    if name == _LOCAL or name.endswith("." + _LOCAL) or name in allowed:
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _misdirected() -> JSONResponse:
    message = (
        "this server does not answer to that host name; call it by its address, or start it "
        "with --allowed-host"
    )
    return JSONResponse(error_body(message, "invalid_request_error", code="unknown_host"), 421)
