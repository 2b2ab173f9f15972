"""Send a batch's line to this process's own app, as its owner, and as work that can wait."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

from starlette.types import ASGIApp, Message, Scope

from izwi.fairness.callers import is_idle_work
from izwi_api.http.auth import LINE_OWNER


class LineAnswer(NamedTuple):
    """The whole response to a line."""

    status: int
    headers: Mapping[str, str]
    body: bytes


async def call_app(
    app: ASGIApp, path: str, content_type: bytes, body: bytes, owner: str
) -> LineAnswer:
    """Run a request in a task of its own, and return its response.

    Cancelling the call is the disconnect of its client.

    Args:
        app: The whole app.
        path: The endpoint.
        content_type: Of the body.
        body: The body.
        owner: Name of the key whose request it is, or empty.
    """
    headers = [(b"host", b"localhost"), (b"content-type", content_type)]
    headers.append((b"content-length", str(len(body)).encode()))
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 0),
        "server": ("localhost", None),
        LINE_OWNER: owner,
    }
    exchange = _Exchange(body)

    async def run() -> None:
        is_idle_work.set(True)  # in this task only
        await app(scope, exchange.receive, exchange.send)

    task = asyncio.create_task(run())
    try:
        await task
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise
    except Exception:  # the app has answered 500, and logged it
        if not exchange.status:
            raise
    return LineAnswer(exchange.status, exchange.headers, bytes(exchange.answer))


class _Exchange:
    def __init__(self, body: bytes):
        self._body: bytes | None = body
        self.status = 0
        self.headers: dict[str, str] = {}
        self.answer = bytearray()

    async def receive(self) -> Message:
        if self._body is None:  # its client stays until the call is cancelled
            await asyncio.Event().wait()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body or b"", "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            pairs = message.get("headers", ())
            self.headers = {name.decode().lower(): value.decode("latin-1") for name, value in pairs}
        elif message["type"] == "http.response.body":
            self.answer += message.get("body", b"")
