"""Deepgram's endpoints, below /deepgram."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.types import Scope

from izwi_api.vendors.deepgram import listen, listen_live, speak, speak_live
from izwi_api.vendors.deepgram.formats import PREFIX
from izwi_api.vendors.vendor import Vendor, authorization_of

# Deepgram's own names of some errors, which its clients compare.
_CODES = {
    "invalid_api_key": "INVALID_AUTH",
    "insufficient_quota": "ASR_PAYMENT_REQUIRED",
    "rate_limit_exceeded": "TOO_MANY_REQUESTS",
    "invalid_audio": "Bad Request",
}
# How browsers, which cannot set headers on a WebSocket, present a key: `token, KEY`.
_SUBPROTOCOLS = ("token", "bearer")


def error_body(error: Mapping[str, Any], request_id: str) -> dict[str, Any]:
    """Return the body of an error as Deepgram writes it."""
    code = str(error.get("code") or error["type"])
    return {
        "err_code": _CODES.get(code, code.upper()),
        "err_msg": error["message"],
        "request_id": request_id,
    }


def key_of(scope: Scope) -> str | None:
    """Return the key in the header or among the subprotocols; None for `Authorization: Bearer`."""
    offered: list[str] = scope.get("subprotocols", [])
    if len(offered) == 2 and offered[0].lower() in _SUBPROTOCOLS:
        scope["subprotocols"] = offered[:1]  # routes must not see the key
        return offered[1]
    return authorization_of(scope, "token")


VENDOR = Vendor(
    prefix=f"{PREFIX}/",
    routers=(listen.router, listen_live.router, speak.router, speak_live.router),
    key_of=key_of,
    error_body=error_body,
)
