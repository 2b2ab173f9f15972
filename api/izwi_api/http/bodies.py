"""Read a request's body under a size limit that is enforced while it arrives."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from izwi.errors import InvalidRequest, RequestTimeout, TooLarge, UnsupportedMediaType

# Room beside the file for the other fields of a form and its boundaries.
_FORM_OVERHEAD_BYTES = 256 * 1024
# What is no larger takes no turns.
_TURN_BYTES = 1 << 16
_OTHER_JSON = re.compile(r"application/[a-z0-9!#$&^_.+-]+\+json")
# A field for each likely word that a transcription may have, and some more.
_MAX_FIELDS = 512


@dataclass(frozen=True, slots=True)
class Form:
    """A multipart form with one file.

    Attributes:
        fields: Name -> its values in order; "x[]" is kept under "x".
        files: Name -> the file's bytes. File names are not kept: nothing may use one as a path.
    """

    fields: dict[str, list[str]]
    files: dict[str, bytes]

    def file(self, name: str) -> bytes:
        """Return the bytes of a file. Raises InvalidRequest if there is none of that name."""
        if name not in self.files:
            raise InvalidRequest(f"missing required parameter: {name!r}", param=name)
        return self.files[name]

    def take(self, name: str) -> bytes:
        """Return the bytes of a file and keep none; raises as `file`."""
        content = self.file(name)
        del self.files[name]
        return content


class _Overflow(MultiPartException):
    """The body went over its limit; of this class so that the parser cleans up."""


class _Gone(MultiPartException):
    """The client left while it was sending, or was left; of this class as above."""

    def __init__(self, why: Exception):
        super().__init__("client left")
        self.why = why


async def read_json(request: Request, limit_bytes: int) -> dict[str, object]:
    """Read a JSON object. Keys whose value is null are left out: null asks for the default.

    A body without a content type is taken for JSON. The types that a web page may send elsewhere
    without asking (text/plain, forms) are refused.

    Raises:
        UnsupportedMediaType: Its content type is not application/json, or one that ends in +json.
        TooLarge: More bytes than the limit.
        RequestTimeout: It did not arrive in time.
        InvalidRequest: It is not a JSON object.
    """
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not _OTHER_JSON.fullmatch(kind):
        raise UnsupportedMediaType(
            f"the body is {kind[:64]!r}; send JSON with the header Content-Type: application/json"
        )
    content = await read_raw(request, limit_bytes)
    try:
        value = json.loads(
            content.decode("utf-8"), parse_constant=_refuse_constant, parse_float=_number
        )
    except (ValueError, RecursionError) as error:
        raise InvalidRequest("the body is not valid JSON") from error
    if not isinstance(value, dict):
        raise InvalidRequest("the body must be a JSON object")
    return {key: item for key, item in value.items() if item is not None}


async def read_raw(request: Request, limit_bytes: int) -> bytes:
    """Read a body as it is. Raises TooLarge and RequestTimeout as `read_json`."""
    content = bytearray()
    try:
        async for piece in _capped(request, limit_bytes):
            content += piece
    except _Overflow as error:
        raise TooLarge(f"the body is larger than {limit_bytes} bytes") from error
    except _Gone as error:
        raise error.why from error
    return bytes(content)


async def read_form(request: Request, limit_bytes: int) -> Form:
    """Read a multipart form.

    Args:
        request: Whose body is read.
        limit_bytes: Bytes of its file.

    Raises:
        TooLarge: The file is over the limit.
        RequestTimeout: It did not arrive in time.
        InvalidRequest: It is not a multipart form.
    """
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise InvalidRequest("the body must be multipart/form-data")
    too_large = TooLarge(f"the file is larger than {limit_bytes} bytes", param="file")
    stream = _capped(request, limit_bytes + _FORM_OVERHEAD_BYTES)
    parser = MultiPartParser(request.headers, stream, max_files=1, max_fields=_MAX_FIELDS)
    try:
        parsed = await parser.parse()
    except _Overflow as error:
        raise too_large from error
    except _Gone as error:
        raise error.why from error
    except MultiPartException as error:
        raise InvalidRequest(f"the form cannot be read: {error.message}") from error
    fields: dict[str, list[str]] = {}
    files: dict[str, bytes] = {}
    for name, value in parsed.multi_items():
        if isinstance(value, UploadFile):
            if (value.size or 0) > limit_bytes:
                await parsed.close()
                raise too_large
            files[name] = await value.read()
        else:
            fields.setdefault(name.removesuffix("[]"), []).append(value)
    await parsed.close()
    return Form(fields, files)


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
                # Uploads take turns with the streams that are being sent.
                await asyncio.sleep(0)
    except (ClientDisconnect, RequestTimeout) as error:
        raise _Gone(error) from error


def _number(text: str) -> float:
    """Read what is written with a point or an exponent. JSON knows one kind of number: 3.0 is 3."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("the number is too large")
    return int(value) if value.is_integer() else value


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")
