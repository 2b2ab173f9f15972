"""Read a request's body under limits of size and pace; what is not read closes the connection."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from starlette.datastructures import FormData, Headers, MutableHeaders, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from izwi.errors import InvalidRequest, RequestTimeout, TooLarge, UnsupportedMediaType
from izwi_api.fair_timeout import fair_timeout
from izwi_api.schemas.form import Form
from izwi_api.schemas.json_text import MAX_DEPTH, check_depth, check_unicode, refuse_constant
from izwi_api.settings import RequestPace

# Room for the other fields of a form and its boundaries, in addition to the file.
_FORM_OVERHEAD_BYTES = 256 * 1024
# A body of up to this size is read without yielding to other tasks.
_TURN_BYTES = 1 << 16
_OTHER_JSON = re.compile(r"application/[a-z0-9!#$&^_.+-]+\+json")
# An escape of half a surrogate pair; most are followed by the other half.
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
# A field for each likely word of a transcription, and some more.
_MAX_FIELDS = 512


class _Overflow(MultiPartException):
    """The body exceeds its limit; derived from this class so that the parser cleans up."""


class _Gone(MultiPartException):
    """The client disconnected or timed out; derived from this class as above."""

    def __init__(self, why: Exception):
        super().__init__("client left")
        self.why = why


async def read_json(request: Request, limit_bytes: int) -> dict[str, object]:
    """Read a JSON object. Keys with the value null are left out: null requests the default.

    A body without a content type counts as JSON. The types that a page of another site may send
    without a preflight request (text/plain, forms) are refused.

    Raises:
        UnsupportedMediaType: The content type is neither application/json nor one that ends in
            +json.
        TooLarge: The body exceeds the limit.
        RequestTimeout: The body did not arrive in time.
        InvalidRequest: The body is not a JSON object, is nested too deeply, or has text that is not
            Unicode.
    """
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not _OTHER_JSON.fullmatch(kind):
        raise UnsupportedMediaType(
            f"the body is {kind[:64]!r}; send JSON with the header Content-Type: application/json"
        )
    content = await read_raw(request, limit_bytes)
    try:
        value = json.loads(
            content.decode("utf-8"), parse_constant=refuse_constant, parse_float=_number
        )
    except (ValueError, RecursionError) as error:
        raise InvalidRequest("the body is not valid JSON") from error
    if not isinstance(value, dict):
        raise InvalidRequest("the body must be a JSON object")
    if content.count(b"{") + content.count(b"[") > MAX_DEPTH:
        check_depth(value, MAX_DEPTH)
    if _SURROGATE.search(content):
        check_unicode(value)
    return {key: item for key, item in value.items() if item is not None}


async def read_raw(request: Request, limit_bytes: int) -> bytes:
    """Read a body. Raises TooLarge and RequestTimeout as `read_json`."""
    content = bytearray()
    try:
        async for piece in _capped(request, limit_bytes):
            content += piece
    except _Overflow as error:
        raise TooLarge(f"the body is larger than {limit_bytes} bytes") from error
    except _Gone as error:
        raise error.why from error
    return bytes(content)


async def read_form(
    request: Request,
    limit_bytes: int,
    file_field: str = "file",
    *,
    max_text_bytes: int = _FORM_OVERHEAD_BYTES,
    max_files: int = 1,
) -> Form:
    """Read a multipart form.

    Args:
        request: The request to read.
        limit_bytes: Maximum size of each file.
        file_field: Name of the file's field.
        max_text_bytes: Maximum size of everything else.
        max_files: Maximum number of files.

    Raises:
        TooLarge: The file is over the limit.
        RequestTimeout: The form did not arrive in time.
        InvalidRequest: The body is not a multipart form, or a file is sent as text or twice.
    """
    too_large = _too_large(limit_bytes)
    parsed = await _parsed(request, limit_bytes, max_text_bytes, max_files)
    fields: dict[str, list[str]] = {}
    files: dict[str, bytes] = {}
    for name, value in parsed.multi_items():
        if isinstance(value, UploadFile):
            if (value.size or 0) > limit_bytes:
                await parsed.close()
                raise too_large
            name = name.removesuffix("[]")
            if name in files:
                await parsed.close()
                raise InvalidRequest(f"only one {name[:64]!r} is taken", param=name[:64])
            files[name] = await value.read()
        else:
            fields.setdefault(name.removesuffix("[]"), []).append(value)
    await parsed.close()
    if file_field in fields and file_field not in files:
        raise InvalidRequest(
            f"{file_field!r} must be a file: give its part of the form a filename", param=file_field
        )
    return Form(fields, files)


@asynccontextmanager
async def open_upload(
    request: Request, limit_bytes: int
) -> AsyncGenerator[tuple[dict[str, str], UploadFile]]:
    """Read a form whose file may be large: it is kept on disk until the block ends.

    Args:
        request: The request to read.
        limit_bytes: Maximum size of the file, which the field `file` has.

    Yields:
        The fields and the file. Its name is the caller's: nothing may use it as a path.

    Raises:
        IzwiError: As `read_form`, and if there is no file.
    """
    parsed = await _parsed(request, limit_bytes, _FORM_OVERHEAD_BYTES)
    try:
        upload = parsed.get("file")
        if not isinstance(upload, UploadFile):
            raise InvalidRequest("'file' is missing, or is no file with a name", param="file")
        if (upload.size or 0) > limit_bytes:
            raise _too_large(limit_bytes)
        items = parsed.multi_items()
        fields = {name: value for name, value in items if isinstance(value, str)}
        if len(items) != len(fields) + 1:
            raise InvalidRequest("a field was given twice")
        yield fields, upload
    finally:
        await parsed.close()


async def _parsed(
    request: Request, limit_bytes: int, max_text_bytes: int, max_files: int = 1
) -> FormData:
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise InvalidRequest("the body must be multipart/form-data")
    stream = _capped(request, limit_bytes * max_files + max_text_bytes)
    parser = MultiPartParser(request.headers, stream, max_files=max_files, max_fields=_MAX_FIELDS)
    parser.max_part_size = max_text_bytes
    try:
        return await parser.parse()
    except _Overflow as error:
        raise _too_large(limit_bytes) from error
    except _Gone as error:
        raise error.why from error
    except MultiPartException as error:
        raise InvalidRequest(f"the form cannot be read: {error.message}") from error


def _too_large(limit_bytes: int) -> TooLarge:
    return TooLarge(f"the file is larger than {limit_bytes} bytes", param="file")


async def _capped(request: Request, limit_bytes: int) -> AsyncGenerator[bytes]:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit_bytes:
        raise _Overflow("too large")
    size = 0
    try:
        async for piece in request.stream():
            size += len(piece)
            if size > limit_bytes:
                raise _Overflow("too large")
            yield piece
            if size > _TURN_BYTES:
                # Parsing an upload yields to streams that are being sent.
                await asyncio.sleep(0)
    except (ClientDisconnect, RequestTimeout) as error:
        raise _Gone(error) from error


def _number(text: str) -> float:
    """Parse a number with a point or an exponent. JSON has one kind of number: 3.0 is 3."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("the number is too large")
    return int(value) if value.is_integer() else value


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
