"""Convert a server's error responses to exceptions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from izwi import errors
from izwi.errors import InvalidRequest, IzwiError

_BY_CODE: dict[str, type[InvalidRequest]] = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, InvalidRequest)
}


def error_from_response(status: int, content: bytes) -> IzwiError:
    """Return the exception for an error response."""
    try:
        error = json.loads(content)["error"]
        message, code, param = str(error["message"]), str(error["code"]), error.get("param")
    except (ValueError, KeyError, TypeError, AttributeError):
        message, code, param = f"the server answered {status}", "", None
    if status >= 500:
        return IzwiError(message)
    return _BY_CODE.get(code, InvalidRequest)(message, param=param)


def error_from_event(event: Mapping[str, Any]) -> IzwiError:
    """Return the exception for an error event within a response."""
    error = event["error"]
    kind, message = _BY_CODE.get(str(error["code"])), str(error["message"])
    return kind(message, param=error.get("param")) if kind is not None else IzwiError(message)
