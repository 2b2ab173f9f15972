"""A client of a running server over HTTP, with the standard library alone."""

from __future__ import annotations

import asyncio
import json
import re
import time
import urllib.request
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from typing import Any, cast
from urllib.error import HTTPError
from urllib.parse import urlsplit
from uuid import uuid4

import numpy as np

from izwi import errors
from izwi.audio.encode import PCM_RATE
from izwi.errors import EngineStopped, InvalidRequest, IzwiError, ModelNotFound
from izwi.request import Chunk, Task

_TIMEOUT_S = 600.0
_BLOCK_BYTES = 1 << 15
_ERROR_BYTES = 1 << 16
_ANSWER_BYTES = 1 << 20
# A server that is full says when to come back. So often we do.
_MAX_TRIES = 5
_BUSY = (429, 503)
_MAX_PAUSE_S = 30.0
LOOPBACK = ("localhost", "127.0.0.1", "::1")
_BY_CODE: dict[str, type[InvalidRequest]] = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, InvalidRequest)
}


@dataclass(frozen=True, slots=True)
class Upload:
    """A file of a form. Of its name, only letters, digits, "_", "-" and "." are sent."""

    field: str
    name: str
    content: bytes


class SampleChunks:
    """Chunks of a server's 16-bit samples, which the network cuts anywhere."""

    def __init__(self, name: str):
        """Begin; the chunks are of a request of that name."""
        self._name, self._half = name, b""
        self._nothing = np.zeros((0, 0), np.int64)

    def take(self, content: bytes) -> Chunk:
        """Return the samples that are complete with these bytes."""
        content = self._half + content
        whole = len(content) - len(content) % 2
        self._half = content[whole:]
        # divided by what the server multiplied with, so that its samples come back exactly
        pcm = np.frombuffer(content[:whole], "<i2").astype(np.float32) / np.float32(32767.0)
        return Chunk(self._name, self._nothing, pcm=pcm)


class RemoteSpeech:
    """Sound that a server makes, read while it comes. Call `abort` to stop early.

    Attributes:
        sample_rate: Of the sound, in Hz.
    """

    sample_rate = PCM_RATE

    def __init__(self, response: HTTPResponse):
        self._response = response

    async def chunks(self) -> AsyncGenerator[Chunk]:
        """Yield the sound; the chunks have no codes.

        Raises:
            EngineStopped: The server broke off.
        """
        chunks = SampleChunks(f"remote-{uuid4().hex}")
        try:
            while content := await asyncio.to_thread(self._read):
                yield chunks.take(content)
        finally:
            self.abort()

    def abort(self) -> None:
        """Leave; the server stops when it notices."""
        self._response.close()

    def _read(self) -> bytes:
        try:
            return self._response.read1(_BLOCK_BYTES)
        except (HTTPException, OSError) as error:
            raise EngineStopped("the server broke off before the sound was complete") from error


class Server:
    """A server at an address.

    Raises InvalidRequest if the address is none. All methods raise IzwiError: of the kind that the
    server told, or EngineStopped where it cannot be reached.
    """

    def __init__(self, url: str, api_key: str | None = None):
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidRequest(
                f"a server's address is like http://127.0.0.1:8000, got {url!r}", param="server"
            )
        self.url = url.rstrip("/").removesuffix("/v1")
        self._key = api_key
        # A proxy of this machine knows another "localhost" than this machine.
        local = [urllib.request.ProxyHandler({})] if parts.hostname in LOOPBACK else []
        self._opener = urllib.request.build_opener(*local)

    @property
    def headers(self) -> dict[str, str]:
        """What every request says of whom it is from."""
        return {"authorization": f"Bearer {self._key}"} if self._key else {}

    def ask_once(self, path: str, timeout_s: float) -> bytes:
        """Return what a path answers, the first MiB of it, if that comes in time.

        Raises:
            OSError: No server responds; HTTPError: the status is an error.
            HTTPException: What comes is no HTTP.
        """
        request = self._signed(urllib.request.Request(self.url + path))
        with self._opener.open(request, timeout=timeout_s) as response:
            content: bytes = response.read(_ANSWER_BYTES)
        return content

    async def get(self, path: str) -> dict[str, Any]:
        """Return what a path answers: a JSON object."""
        return await self._json(urllib.request.Request(self.url + path))

    async def model(self, task: Task, wanted: str | None) -> str:
        """Return the wanted model's name, or that of the first one served for a task."""
        if wanted is not None:
            return wanted
        for entry in (await self.get("/v1/models")).get("data", []):
            if entry.get("task") == task.value:
                return str(entry["id"])
        raise ModelNotFound(f"{self.url} serves no model for {task.value}", param="model")

    async def first_speaker(self, model: str) -> str | None:
        """Return the speaker that a model takes if none is named, None if it has none."""
        for voice in (await self.get("/v1/audio/voices")).get("data", []):
            if voice.get("kind") == "speaker" and voice.get("model") == model:
                return str(voice["id"])
        return None

    async def speech(self, fields: Mapping[str, object]) -> RemoteSpeech:
        """Start to say a text; the fields are those of POST /v1/audio/speech."""
        body = {key: value for key, value in fields.items() if value is not None}
        request = urllib.request.Request(
            f"{self.url}/v1/audio/speech",
            data=json.dumps(body | {"response_format": "pcm"}).encode(),
            headers={"content-type": "application/json"},
        )
        return RemoteSpeech(await self._open(request))

    async def events(
        self, path: str, fields: Mapping[str, object]
    ) -> AsyncGenerator[dict[str, Any]]:
        """Post a JSON object, and yield the events that are answered, up to [DONE] or the end."""
        given = {key: value for key, value in fields.items() if value is not None}
        headers = {"content-type": "application/json", "accept": "text/event-stream"}
        url, data = self.url + path, json.dumps(given).encode()
        request = urllib.request.Request(url, data=data, headers=headers)
        async with aclosing(self._events(request)) as events:
            async for event in events:
                yield event

    async def form_events(
        self, path: str, fields: Mapping[str, str | None], upload: Upload
    ) -> AsyncGenerator[dict[str, Any]]:
        """Send a form with one file, and yield the events that are answered.

        A server that knows no events answers with one object.
        """
        async with aclosing(self._events(self._form(path, fields, upload))) as events:
            async for event in events:
                yield event

    async def post_form(
        self, path: str, fields: Mapping[str, str | None], upload: Upload
    ) -> dict[str, Any]:
        """Send a form with one file, and return the JSON object that is answered."""
        return await self._json(self._form(path, fields, upload))

    def _form(
        self, path: str, fields: Mapping[str, str | None], upload: Upload
    ) -> urllib.request.Request:
        boundary = uuid4().hex
        return urllib.request.Request(
            self.url + path,
            data=_form(boundary, fields, upload),
            headers={"content-type": f"multipart/form-data; boundary={boundary}"},
        )

    async def _events(self, request: urllib.request.Request) -> AsyncGenerator[dict[str, Any]]:
        response = await self._open(request)
        try:
            if response.headers.get_content_type() == "application/json":
                yield json.loads(await asyncio.to_thread(response.read))
                return
            while line := await asyncio.to_thread(response.readline):
                if line.startswith(b"data: "):
                    content = line.removeprefix(b"data: ").strip()
                    if content == b"[DONE]":
                        return
                    event: dict[str, Any] = json.loads(content)
                    if "error" in event:
                        raise kind_of(event["error"]["code"])(event["error"]["message"])
                    yield event
        except (ValueError, KeyError, TypeError, HTTPException, OSError) as error:
            raise EngineStopped(f"{self.url} broke off") from error
        finally:
            response.close()

    async def _json(self, request: urllib.request.Request) -> dict[str, Any]:
        response = await self._open(request)
        try:
            value = json.loads(await asyncio.to_thread(response.read))
        except (ValueError, HTTPException, OSError) as error:
            raise EngineStopped(f"{self.url} gave an answer that is not whole") from error
        finally:
            response.close()
        if not isinstance(value, dict):
            raise IzwiError(f"{self.url} does not answer as a speech server does")
        return value

    async def _open(self, request: urllib.request.Request) -> HTTPResponse:
        return await asyncio.to_thread(self._open_patiently, self._signed(request))

    def _signed(self, request: urllib.request.Request) -> urllib.request.Request:
        for name, value in self.headers.items():
            request.add_unredirected_header(name, value)  # not sent on to where a redirect leads
        return request

    def _open_patiently(self, request: urllib.request.Request) -> HTTPResponse:
        for turn in range(1, _MAX_TRIES + 1):
            try:
                return cast(HTTPResponse, self._opener.open(request, timeout=_TIMEOUT_S))
            except HTTPError as error:
                with error:
                    hopeless = error.headers.get("x-should-retry") == "false"
                    if error.code not in _BUSY or hopeless or turn == _MAX_TRIES:
                        raise error_from_answer(error.code, _read(error)) from error
                    time.sleep(_pause_s(error))
            except (HTTPException, OSError) as error:
                reason = getattr(error, "reason", error)
                raise EngineStopped(f"no server answers at {self.url}: {reason}") from error
        raise AssertionError("unreachable")


def error_from_answer(status: int, content: bytes) -> IzwiError:
    """Turn an answer that is an error into the error that the server had."""
    try:
        error = json.loads(content)["error"]
        message, code = str(error["message"]), str(error["code"])
    except (ValueError, KeyError, TypeError):
        message, code = f"the server answered {status}", ""
    if status >= 500:
        return IzwiError(message)
    return _BY_CODE.get(code, InvalidRequest)(message)


def _read(error: HTTPError) -> bytes:
    try:
        return error.read(_ERROR_BYTES)
    except (HTTPException, OSError):
        return b""


def kind_of(code: object) -> type[IzwiError]:
    """Kind of an error that is told in the middle of an answer, where there is no status."""
    return _BY_CODE.get(str(code), IzwiError)


def _pause_s(error: HTTPError) -> float:
    try:
        wanted = float(error.headers.get("retry-after") or 1.0)
    except ValueError:
        wanted = 1.0
    return min(max(wanted, 0.0), _MAX_PAUSE_S)


def _form(boundary: str, fields: Mapping[str, str | None], upload: Upload) -> bytes:
    head = f"--{boundary}\r\ncontent-disposition: form-data; name="
    parts = [
        f'{head}"{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in fields.items()
        if value is not None
    ]
    name = re.sub(r"[^\w.-]", "_", upload.name, flags=re.ASCII)
    file_head = f'{head}"{upload.field}"; filename="{name}"\r\n'
    kind = "content-type: application/octet-stream\r\n\r\n"
    end = f"\r\n--{boundary}--\r\n"
    return b"".join([*parts, (file_head + kind).encode(), upload.content, end.encode()])
