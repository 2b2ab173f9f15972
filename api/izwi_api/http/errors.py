"""Map each error to an HTTP response in OpenAI's format. Nothing else knows both."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from functools import partial

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from pydantic_core import ErrorDetails
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from izwi.errors import (
    BatchNotFound,
    CompletionNotFound,
    DeadlineExceeded,
    EngineStopped,
    FileNotStored,
    InvalidRequest,
    IzwiError,
    ModelNotFound,
    Overloaded,
    QuotaExceeded,
    RateLimited,
    RequestTimeout,
    StorageFull,
    TooLarge,
    UnsupportedMediaType,
    VoiceNotFound,
)
from izwi_api.http.sse import event

logger = logging.getLogger(__name__)

STATUS: dict[type[IzwiError], int] = {
    ModelNotFound: 404,
    VoiceNotFound: 404,
    CompletionNotFound: 404,
    FileNotStored: 404,
    BatchNotFound: 404,
    TooLarge: 413,
    RequestTimeout: 408,
    UnsupportedMediaType: 415,
    RateLimited: 429,
    InvalidRequest: 400,
    Overloaded: 503,
    EngineStopped: 503,
    DeadlineExceeded: 504,
    StorageFull: 507,
    IzwiError: 500,
}
CLIENT_LEFT = 499
_RETRY_AFTER_STOP_S = 5
_MAX_SDK_WAIT_S = 120  # the SDK waits no longer than this, so a longer wait should not be retried
# A message may quote input, which can be megabytes long.
_MAX_MESSAGE_CHARS = 400

# Set while this process handles its own request, which may see internal errors.
caller_is_own_process: ContextVar[bool] = ContextVar("caller_is_own_process", default=False)


def status_of(error: IzwiError) -> int:
    """Return the status of the nearest mapped ancestor, so a new subclass needs no new line."""
    return next(STATUS[cls] for cls in type(error).__mro__ if cls in STATUS)


def is_internal(error: Exception) -> bool:
    """Whether the details of an error are for the log only."""
    if not isinstance(error, IzwiError):
        return True
    return status_of(error) == 500 and not caller_is_own_process.get()


def error_body(
    message: str, kind: str, *, param: str | None = None, code: str | None = None
) -> dict[str, object]:
    """Return OpenAI's error object, with all of its four keys."""
    # it may quote input, in which a lone surrogate has no UTF-8
    message = message.encode(errors="backslashreplace").decode()
    if len(message) > _MAX_MESSAGE_CHARS:
        message = message[: _MAX_MESSAGE_CHARS - 3] + "..."
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def body_of(error: IzwiError) -> dict[str, object]:
    """Return the error object for one of our errors."""
    # Details of internal errors are for the log: callers see neither paths nor tensor names.
    message = "internal error" if is_internal(error) else str(error)
    return error_body(
        message, _kind_of(error), param=getattr(error, "param", None), code=error.code
    )


def _kind_of(error: IzwiError) -> str:
    """Return OpenAI's `type` of an error."""
    if isinstance(error, RateLimited):
        return "insufficient_quota" if isinstance(error, QuotaExceeded) else "requests"
    return "invalid_request_error" if status_of(error) < 500 else "server_error"


def response_to(error: IzwiError) -> JSONResponse:
    """Return the complete response for one of our errors."""
    return JSONResponse(body_of(error), status_of(error), headers=_headers_of(error))


def _headers_of(error: IzwiError) -> dict[str, str]:
    """Return the headers that tell a client whether and when to retry."""
    if isinstance(error, RateLimited):
        wait = {"retry-after": str(error.retry_after_s)}
        return (
            wait if error.retry_after_s <= _MAX_SDK_WAIT_S else wait | {"x-should-retry": "false"}
        )
    if isinstance(error, StorageFull):
        return {"x-should-retry": "false"}
    if status_of(error) == 503:
        wait_s = getattr(error, "retry_after_s", _RETRY_AFTER_STOP_S)
        return {"retry-after": str(max(1, min(int(wait_s), _MAX_SDK_WAIT_S)))}
    return {}


def invalid_body(errors: list[ErrorDetails]) -> dict[str, object]:
    """Return the error object for the first violation of a schema."""
    first = errors[0]
    location = [part for part in first["loc"] if part not in ("body", "query", "path")]
    param = str(location[0])[:64] if location else None
    place = _place(location)
    if first["type"] == "missing":
        message, code = f"missing required parameter: {place!r}", "missing_required_parameter"
    elif first["type"] == "extra_forbidden":
        message, code = f"unknown parameter: {place!r}", "unknown_parameter"
    else:
        message, code = f"invalid value for {param!r}: {first['msg']}", "invalid_value"
    return error_body(message, "invalid_request_error", param=param, code=code)


def _place(location: Sequence[object]) -> str | None:
    """Return the path of a key, such as "messages[0].role", without names of our types."""
    if not location:
        return None
    first, *rest = location
    path = str(first)[:64]
    for before, part, after in zip(location, rest, [*rest[1:], None], strict=False):
        if isinstance(part, int):
            path += f"[{part}]"
        # the last one, or a list's in an item of a list: others may be names of our types
        elif after is None or (isinstance(before, int) and isinstance(after, int)):
            path += f".{str(part)[:64]}"
    return path


def install(app: FastAPI, routes: Sequence[BaseRoute]) -> None:
    """Make this module handle all errors of the app.

    Args:
        app: The app.
        routes: All its routes, to list the allowed methods of a path.
    """
    app.add_exception_handler(IzwiError, _answer_izwi_error)
    app.add_exception_handler(ValidationError, _answer_validation_error)
    app.add_exception_handler(RequestValidationError, _answer_validation_error)
    app.add_exception_handler(HTTPException, partial(_answer_http_exception, routes))
    app.add_exception_handler(ClientDisconnect, _answer_client_gone)
    app.add_exception_handler(Exception, _answer_unexpected)
    app.router.default = _refuse_path


def error_line(error: IzwiError) -> bytes:
    """Return an error as the last event of a stream."""
    return event(body_of(error))


async def refuse(answer: Response, scope: Scope, receive: Receive, send: Send) -> None:
    """Respond to an HTTP request or a WebSocket's handshake without running the app."""
    extensions = scope.get("extensions") or {}
    if scope["type"] == "websocket" and "websocket.http.response" not in extensions:
        # The server has no other way to refuse a handshake: it responds with 403.
        await send({"type": "websocket.close", "code": 1008, "reason": "policy violation"})
        return
    await answer(scope, receive, send)


async def _answer_izwi_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, IzwiError)
    if is_internal(error):
        logger.error("request failed: %s", request.url.path, exc_info=error)
    return response_to(error)


async def _answer_validation_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, (ValidationError, RequestValidationError))
    return JSONResponse(invalid_body(list(error.errors())), 400)


def _methods_of(request: Request, routes: Sequence[BaseRoute]) -> set[str]:
    """Return the allowed methods of a path, each of which is a route."""
    methods = {
        method
        for route in routes
        if route.matches(request.scope)[0] is not Match.NONE
        for method in getattr(route, "methods", None) or ()
    }
    return methods | {"HEAD"} if "GET" in methods else methods


async def _refuse_path(scope: Scope, receive: Receive, send: Send) -> None:
    """Return 404 for an unknown path, for a WebSocket handshake over HTTP as well."""
    message = f"no {'WebSocket' if scope['type'] == 'websocket' else 'endpoint'} is served here"
    body = error_body(message, "invalid_request_error", code="not_found")
    await refuse(JSONResponse(body, 404), scope, receive, send)


async def _answer_http_exception(
    routes: Sequence[BaseRoute], request: Request, error: Exception
) -> Response:
    assert isinstance(error, HTTPException)
    kind = "invalid_request_error" if error.status_code < 500 else "server_error"
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
    headers: Mapping[str, str] | None = error.headers
    if error.status_code == 405:
        headers = {"allow": ", ".join(sorted(_methods_of(request, routes)))}
    return JSONResponse(
        error_body(str(error.detail), kind, code=code), error.status_code, headers=headers
    )


async def _answer_client_gone(_: Request, __: Exception) -> Response:
    return Response(status_code=CLIENT_LEFT)


async def _answer_unexpected(request: Request, _: Exception) -> Response:
    # This response is sent outside the middleware that adds the id to all others.
    headers = {"x-request-id": request.state.request_id}
    body = error_body("internal error", "server_error", code="internal_error")
    return JSONResponse(body, 500, headers=headers)
