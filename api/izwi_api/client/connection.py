"""The client's HTTP requests and WebSockets, to a server or to the app in this process."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import httpx
from httpx_sse import EventSource

from izwi.errors import EngineStopped, InvalidRequest, IzwiError
from izwi_api.client.app_transport import App, AppTransport
from izwi_api.client.errors import error_from_event, error_from_response
from izwi_api.client.socket import AppSocket, NetworkSocket, Socket, SocketClosed, SocketRefused

_TIMEOUT_S = 600.0
_BUSY = (429, 503)
_MAX_PAUSE_S = 30.0
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_MAX_MESSAGE_BYTES = 64 << 20

Fields = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Upload:
    """A file in a form. Only letters, digits, "_", "-" and "." of its name are sent."""

    field: str
    name: str
    content: bytes


class Connection(Protocol):
    """A connection for the client's requests.

    Attributes:
        http: The HTTP client, with the base address.
        shown: Its name in messages.
        max_tries: How often to send a request that is refused because the server is overloaded.
    """

    http: httpx.AsyncClient
    shown: str
    max_tries: int

    async def open_socket(self, path: str) -> Socket:
        """Open a WebSocket. Raises SocketRefused, SocketClosed and EngineStopped."""
        ...


class ServerConnection:
    """A server at an address.

    Raises:
        InvalidRequest: The address is invalid.
    """

    max_tries = 5

    def __init__(self, base_url: str, api_key: str | None):
        url = server_address(base_url)
        self.shown = base_url.rstrip("/").removesuffix("/v1")
        # A proxy would resolve "localhost" as itself.
        self._is_local = url.host in _LOOPBACK
        self.http = httpx.AsyncClient(
            base_url=self.shown,
            headers={"authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=_TIMEOUT_S,
            limits=httpx.Limits(max_connections=None),  # the server enforces the limit
            follow_redirects=True,  # httpx drops the key if the host changes
            trust_env=not self._is_local,
            # trust the system's certificates and SSL_CERT_FILE, as other programs do
            verify=ssl.create_default_context() if url.scheme == "https" else True,
        )

    async def open_socket(self, path: str) -> Socket:
        """Open a WebSocket. Raises SocketRefused and EngineStopped."""
        from websockets.asyncio.client import connect
        from websockets.exceptions import InvalidHandshake, InvalidStatus

        address = re.sub("^http", "ws", self.shown) + path
        headers = {k: v for k, v in self.http.headers.items() if k == "authorization"}
        proxy: Literal[True] | None = None if self._is_local else True
        try:
            return NetworkSocket(
                await connect(
                    address,
                    additional_headers=headers,
                    proxy=proxy,
                    max_size=_MAX_MESSAGE_BYTES,
                )
            )
        except InvalidStatus as error:
            response = error.response
            raise SocketRefused(response.status_code, bytes(response.body or b"")) from error
        except (InvalidHandshake, OSError) as error:
            raise EngineStopped(f"no server responds at {self.shown}: {error}") from error


class AppConnection:
    """An app in this process, after its lifespan startup."""

    shown = "this process"
    max_tries = 1  # it has no other callers, so a retry would fail as well

    def __init__(self, app: App):
        self._app, self._transport = app, AppTransport(app)
        self.http = httpx.AsyncClient(
            base_url="http://localhost", transport=self._transport, timeout=None
        )

    async def open_socket(self, path: str) -> Socket:
        """Open a WebSocket. Raises SocketRefused and SocketClosed."""
        request = self.http.build_request("GET", path)
        return await AppSocket.open(self._app, self._transport.calls, request)


ReadHeaders = Callable[[Mapping[str, str]], None]


def _unread(_: Mapping[str, str]) -> None:
    """Ignore the headers of a response."""


class Requests:
    """Sends requests over a connection, with retries while the server is overloaded.

    All methods raise IzwiError: the one that the server reported, or EngineStopped if it cannot be
    reached or closes the connection early.
    """

    def __init__(self, connection: Connection):
        self._connection, self._http = connection, connection.http
        self.shown = connection.shown

    async def get(self, path: str) -> dict[str, Any]:
        """Return the JSON object at a path."""
        return await self._json(lambda: self._http.build_request("GET", path))

    async def delete(self, path: str) -> dict[str, Any]:
        """Delete the resource at a path; return the JSON object of the response."""
        return await self._json(lambda: self._http.build_request("DELETE", path))

    async def content(self, path: str) -> bytes:
        """Return the bytes at a path."""
        return await self._whole(lambda: self._http.build_request("GET", path))

    async def post(self, path: str, fields: Fields) -> dict[str, Any]:
        """Post a JSON object, and return that of the response."""
        return await self._json(lambda: self._json_request(path, fields))

    async def post_form(self, path: str, fields: Fields, upload: Upload) -> dict[str, Any]:
        """Send a form with one file, and return the JSON object of the response."""
        return await self._json(lambda: self._form(path, fields, upload))

    async def stream(
        self, path: str, fields: Fields, read_headers: ReadHeaders = _unread
    ) -> AsyncGenerator[bytes]:
        """Post a JSON object, and stream the bytes of the response."""
        response = await self._open(lambda: self._json_request(path, fields))
        read_headers(response.headers)
        try:
            async for piece in response.aiter_bytes():
                yield piece
        except httpx.HTTPError as error:
            raise EngineStopped(
                "the server closed the connection before the audio was complete"
            ) from error
        finally:
            await response.aclose()

    async def events(
        self,
        path: str,
        fields: Fields,
        upload: Upload | None = None,
        read_headers: ReadHeaders = _unread,
    ) -> AsyncGenerator[dict[str, Any]]:
        """Post a JSON object, or a form with a file, and yield the events up to [DONE] or the end.

        A server without event streams responds with one object.
        """

        def build() -> httpx.Request:
            if upload is not None:
                return self._form(path, fields, upload)
            return self._json_request(path, fields, accept="text/event-stream")

        response = await self._open(build)
        read_headers(response.headers)
        try:
            if response.headers.get("content-type", "").startswith("application/json"):
                yield json.loads(await response.aread())
                return
            async with aclosing(EventSource(response).aiter_sse()) as events:
                async for sent in events:
                    if sent.data == "[DONE]":
                        return
                    event: dict[str, Any] = json.loads(sent.data)
                    if "error" in event:
                        raise error_from_event(event)
                    yield event
        except (ValueError, KeyError, TypeError, httpx.HTTPError) as error:
            raise EngineStopped(f"{self.shown} closed the connection early") from error
        finally:
            await response.aclose()

    async def open_socket(self, path: str) -> Socket:
        """Open a WebSocket. Raises SocketRefused."""
        try:
            return await self._connection.open_socket(path)
        except SocketClosed as error:
            raise EngineStopped(f"{self.shown} closed the connection early") from error

    def _json_request(self, path: str, fields: Fields, **headers: str) -> httpx.Request:
        given = {key: value for key, value in fields.items() if value is not None}
        return self._http.build_request("POST", path, json=given, headers=headers)

    def _form(self, path: str, fields: Fields, upload: Upload) -> httpx.Request:
        given = {key: value for key, value in fields.items() if value is not None}
        name = re.sub(r"[^\w.-]", "_", upload.name, flags=re.ASCII)
        file = (name, upload.content, "application/octet-stream")
        return self._http.build_request("POST", path, data=given, files={upload.field: file})

    async def _json(self, build: Callable[[], httpx.Request]) -> dict[str, Any]:
        content = await self._whole(build)
        try:
            value = json.loads(content)
        except ValueError as error:
            raise EngineStopped(f"{self.shown} sent an incomplete response") from error
        if not isinstance(value, dict):
            raise IzwiError(f"{self.shown} does not respond like a speech server")
        return value

    async def _whole(self, build: Callable[[], httpx.Request]) -> bytes:
        response = await self._open(build)
        try:
            return await response.aread()
        except httpx.HTTPError as error:
            raise EngineStopped(f"{self.shown} sent an incomplete response") from error
        finally:
            await response.aclose()

    async def _open(self, build: Callable[[], httpx.Request]) -> httpx.Response:
        """Return a successful response whose body is unread."""
        for turn in range(1, self._connection.max_tries + 1):
            try:
                response = await self._http.send(build(), stream=True)
                if response.is_success:
                    return response
                try:
                    content = await response.aread()
                finally:
                    await response.aclose()
            except httpx.HTTPError as error:
                raise EngineStopped(f"no server responds at {self.shown}: {error}") from error
            if turn == self._connection.max_tries or not _is_busy(response):
                raise error_from_response(response.status_code, content)
            await asyncio.sleep(_pause_s(response))
        raise AssertionError("unreachable")


def server_address(text: str) -> httpx.URL:
    """Parse the address of a server. Raises InvalidRequest if it is invalid."""
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL:
        url = httpx.URL("")
    if url.scheme not in ("http", "https") or not url.host:
        raise InvalidRequest(
            f"a server's address is like http://127.0.0.1:8000, got {text!r}", param="server"
        )
    return url


def file_name(path: Path | None) -> str:
    """Return a name for an upload that reveals only the suffix of its path."""
    return f"audio{path.suffix if path is not None else ''}"


def _is_busy(response: httpx.Response) -> bool:
    if response.headers.get("x-should-retry") == "false":
        return False
    return response.status_code in _BUSY


def _pause_s(response: httpx.Response) -> float:
    try:
        wanted = float(response.headers.get("retry-after") or 1.0)
    except ValueError:
        wanted = 1.0
    return min(max(wanted, 0.0), _MAX_PAUSE_S)
