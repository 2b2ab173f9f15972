"""Read the lines of a batch's input file, and check each before any of them runs."""

from __future__ import annotations

import base64
import binascii
import json
import secrets
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from izwi.errors import InvalidRequest
from izwi_api.schemas.json_text import MAX_DEPTH, check_depth

TRANSCRIPTIONS = "/v1/audio/transcriptions"
ENDPOINTS = ("/v1/chat/completions", "/v1/responses", "/v1/audio/speech", TRANSCRIPTIONS)
MAX_LINES = 50_000
_MAX_ID_CHARS = 512
# Faults that are listed; a file with more is as wrong.
_MAX_FAULTS = 100


class Line(NamedTuple):
    """Where a line is in the input file, and its id."""

    start: int
    num_bytes: int
    custom_id: str


class Asked(msgspec.Struct):
    """One line of the input file."""

    custom_id: str
    url: str
    body: dict[str, Any]
    method: str = "POST"


class Checked(NamedTuple):
    """The lines of a file, or what is wrong with them, as OpenAI lists it."""

    lines: list[Line]
    faults: list[dict[str, Any]]


def check_lines(path: Path, endpoint: str, max_line_bytes: int) -> Checked:
    """Read all lines of a file; empty ones are skipped.

    Args:
        path: The input file.
        endpoint: What every line must ask.
        max_line_bytes: Limit of a line. No longer one is ever in memory.
    """
    lines: list[Line] = []
    faults: list[dict[str, Any]] = []
    known: set[str] = set()
    start = number = 0
    with path.open("rb") as file:
        while (content := file.readline(max_line_bytes + 1)) and len(faults) < _MAX_FAULTS:
            number, begins, start = number + 1, start, start + len(content)
            if len(content) > max_line_bytes:
                faults.append(_fault("line_too_large", f"more than {max_line_bytes} bytes", number))
                break
            if not content.strip():
                continue
            if len(lines) >= MAX_LINES:
                faults.append(_fault("too_many_lines", f"more than {MAX_LINES} lines", number))
                break
            try:
                asked = read_line(content, endpoint)
                if asked.custom_id in known:
                    raise InvalidRequest("an earlier line has this custom_id", param="custom_id")
            except InvalidRequest as error:
                faults.append(_fault("invalid_line", str(error), number, error.param))
                continue
            known.add(asked.custom_id)
            lines.append(Line(begins, len(content), asked.custom_id))
    if not lines and not faults:
        faults.append(_fault("empty_file", "the file has no lines", None))
    return Checked([] if faults else lines, faults)


def read_line(content: bytes, endpoint: str) -> Asked:
    """Return one line. Raises InvalidRequest if it cannot be run."""
    try:
        asked = msgspec.json.decode(content, type=Asked)
    except RecursionError as error:
        raise InvalidRequest("this line is nested too deeply", param="body") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"this line is no request: {str(error)[:200]}") from error
    if not 0 < len(asked.custom_id) <= _MAX_ID_CHARS:
        raise InvalidRequest(f"custom_id has 1 to {_MAX_ID_CHARS} characters", param="custom_id")
    if asked.method != "POST":
        raise InvalidRequest("method must be POST", param="method")
    if asked.url != endpoint:
        raise InvalidRequest(f"url must be {endpoint}, that of the batch", param="url")
    try:
        check_depth(asked.body, MAX_DEPTH)
    except InvalidRequest as error:
        raise InvalidRequest(str(error), param="body") from error
    if asked.body.get("stream") or asked.body.get("stream_format") == "sse":
        raise InvalidRequest("a line of a batch cannot be streamed", param="stream")
    return asked


def first_model(path: Path, max_line_bytes: int) -> str | None:
    """Return the model that the first line names; None if it cannot be read."""
    with path.open("rb") as file:
        content = file.readline(max_line_bytes)
    try:
        model = msgspec.json.decode(content, type=Asked).body.get("model")
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    return model if isinstance(model, str) else None


def audio_of(source: str) -> bytes | None:
    """Return the audio in a data: URL; None if it is the id of a file. Raises InvalidRequest."""
    if not source.startswith("data:"):
        return None
    head, comma, content = source.partition(",")
    try:
        if not (comma and head.endswith(";base64")):
            raise ValueError("not base64")
        return base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest("file is no data: URL with base64", param="file") from error


def form_of(body: dict[str, Any], audio: bytes) -> tuple[bytes, bytes]:
    """Return the content type and the multipart form of a transcription's line."""
    boundary = secrets.token_hex(16).encode()
    parts: list[bytes] = []
    for name, value in body.items():
        values = value if isinstance(value, list) else [value]
        for one in values:
            if one is not None:
                head = f'Content-Disposition: form-data; name="{_quoted(name)}"\r\n\r\n'
                parts.append(head.encode() + _field(one))
    file = b'Content-Disposition: form-data; name="file"; filename="audio"\r\n\r\n'
    parts.append(file + audio)
    begins = b"--" + boundary + b"\r\n"
    form = b"".join(begins + part + b"\r\n" for part in parts) + b"--" + boundary + b"--\r\n"
    return b"multipart/form-data; boundary=" + boundary, form


def _field(value: Any) -> bytes:
    text = value if isinstance(value, str) else json.dumps(value)
    return text.encode(errors="replace")


def _quoted(name: str) -> str:
    return name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")


def _fault(code: str, message: str, line: int | None, param: str | None = None) -> dict[str, Any]:
    return {"code": code, "message": message, "line": line, "param": param}
