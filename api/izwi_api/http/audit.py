"""The audit log: key, route, time and result of each call. Never text or audio.

One JSON object a line:

    time           start of the call, UTC
    request_id     as in the response's x-request-id: the caller's own, if it sent one
    key            name of the key; null if none was required or none was valid
    method, route  the route's template; null for unknown paths; never the path or the query
    status         499: the caller disconnected before a response; 101: a WebSocket was opened
    complete       the whole response was sent
    model          name under which the model is served; null if none was used
    characters, audio_in_s, audio_out_s            text to speak, audio to transcribe, audio made
    duration_s, first_byte_s                       first_byte_s is null without a response
    bytes_in, bytes_out                            of the bodies, or of a WebSocket's messages

An attempt to send an event of a batch has a line, too (`batches/webhooks.py`): the event's id, the
key of the batch, method WEBHOOK, the type of the event as route, and the status, null without one.

It contains no other text from callers.
"""

from __future__ import annotations

import json
import logging
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from izwi_api.http.auth import PROBES
from izwi_api.usage.limits import Clock
from izwi_api.usage.metering import Usage

logger = logging.getLogger(__name__)


class AuditLog:
    """A file of lines, readable by its owner only; several processes may append to it.

    If the file is moved away, for example by log rotation, the next line starts a new one.

    Raises:
        OSError: The file cannot be opened.
    """

    def __init__(self, path: Path):
        self._path = path
        self._failing = False
        self._descriptor = -1
        self._open()

    def write(self, fields: dict[str, object]) -> None:
        """Append a line. If the disk is full, the failure is logged and the server continues."""
        line = json.dumps(fields, separators=(",", ":")).encode() + b"\n"
        try:
            if not self._is_in_place():
                self.close()
                self._open()
            # One write to a file opened for appending, so that lines of several processes do not
            # mix.
            os.write(self._descriptor, line)
            self._failing = False
        except OSError as error:
            if not self._failing:
                logger.error("the audit log cannot be written: %s", error)
            self._failing = True

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._descriptor = os.open(self._path, flags, 0o600)

    def _is_in_place(self) -> bool:
        if self._descriptor < 0:
            return False
        try:
            return os.path.samestat(os.fstat(self._descriptor), self._path.stat())
        except FileNotFoundError:
            return False


class Audit:
    """ASGI middleware that logs every call except the probes.

    Args:
        app: The app; its `Auth` provides the key's name and the usage.
        log: The audit log.
        clock: Monotonic seconds.
        wall_clock: Seconds since 1970.
    """

    def __init__(
        self,
        app: ASGIApp,
        log: AuditLog,
        clock: Clock = time.monotonic,
        wall_clock: Clock = time.time,
    ):
        self._app, self._log = app, log
        self._clock, self._wall_clock = clock, wall_clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app, and log the call."""
        if scope["type"] not in ("http", "websocket") or scope["path"] in PROBES:
            await self._app(scope, receive, send)
            return
        call = _Call(self._clock)
        began = datetime.fromtimestamp(self._wall_clock(), UTC)
        state = scope.setdefault("state", {})
        state.setdefault("request_id", f"req_{uuid4().hex}")  # if the caller sent none

        async def received() -> Message:
            message = await receive()
            call.bytes_in += _size(message)
            return message

        async def answered(message: Message) -> None:
            await send(message)
            call.see(message)

        try:
            await self._app(scope, received, answered)
        except BaseException as error:
            # Uncaught exceptions become a 500 outside this middleware.
            if call.status is None and isinstance(error, Exception):
                call.status = 500
            raise
        finally:
            self._log.write(
                {
                    "time": began.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
                    "request_id": state["request_id"],
                    **_asked(scope),
                    **call.fields(),
                }
            )


class _Call:
    """What is observed of one response."""

    def __init__(self, clock: Clock):
        self.status: int | None = None
        self.bytes_in = self.bytes_out = 0
        self._clock, self._began_s = clock, clock()
        self._first_byte_s: float | None = None
        self._complete = False

    def see(self, message: Message) -> None:
        """Observe a message that the app sends."""
        kind = message["type"]
        if kind in ("http.response.start", "websocket.http.response.start"):
            self.status = message["status"]
        elif kind == "websocket.accept":
            self.status = 101
        elif kind == "websocket.close":
            self.status = self.status or 403
            self._complete = True
        else:
            self.bytes_out += _size(message)
            if self._first_byte_s is None:
                self._first_byte_s = self._clock() - self._began_s
            if kind.endswith("http.response.body") and not message.get("more_body", False):
                self._complete = True

    def fields(self) -> dict[str, object]:
        """Return the fields of the line that describe the response."""
        first_s = self._first_byte_s
        return {
            "status": self.status or 499,
            "complete": self._complete,
            "duration_s": round(self._clock() - self._began_s, 4),
            "first_byte_s": None if first_s is None else round(first_s, 4),
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
        }


def _asked(scope: Scope) -> dict[str, object]:
    usage: Usage = scope["state"].get("usage") or Usage()
    return {
        "key": usage.key_name,
        "method": "WEBSOCKET" if scope["type"] == "websocket" else _method(scope["method"]),
        "route": getattr(scope.get("route"), "path", None),
        "model": usage.model,
        "characters": usage.characters,
        "audio_in_s": round(usage.heard_s, 3),
        "audio_out_s": round(usage.spoken_s, 3),
    }


def _method(method: str) -> str:
    # Callers can invent HTTP methods, and this log must not contain text of a caller.
    return method if method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS") else "?"


def _size(message: Message) -> int:
    content = message.get("body") or message.get("bytes") or b""
    text = message.get("text")
    return len(text.encode("utf-8")) if text else len(content)
