"""Stream text to a running server over a WebSocket and read its audio."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import Any, Literal
from urllib.parse import urlsplit
from uuid import uuid4

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from izwi.audio.encode import PCM_RATE
from izwi.errors import EngineStopped, InvalidRequest
from izwi.request import Chunk
from izwi_api.cli.remote import LOOPBACK, SampleChunks, Server, error_from_answer, kind_of
from izwi_api.cli.text_in import ArrivingText

_PATH = "/v1/audio/speech/stream"
# A server leaves who says nothing for longer than some 30 s.
_SIGN_OF_LIFE_S = 10.0


class RemoteDictation:
    """The sound of a text that is still arriving. Call `abort` to stop early.

    Attributes:
        sample_rate: Of the sound, in Hz.
    """

    sample_rate = PCM_RATE

    def __init__(
        self, server: Server, fields: Mapping[str, object], begun: str, text: ArrivingText
    ):
        """Say `begun`, and then what comes, as the fields of POST /v1/audio/speech say."""
        self._server, self._begun, self._text = server, begun, text
        given = {
            key: value for key, value in fields.items() if value is not None and key != "input"
        }
        self._config = {"type": "session.config", **given}
        self._socket: ClientConnection | None = None

    async def chunks(self) -> AsyncGenerator[Chunk]:
        """Yield the sound; the chunks have no codes.

        Raises:
            IzwiError: Of the kind that the server told, or EngineStopped where it broke off.
            InvalidRequest: The text was blank.
            OSError: The text cannot be read.
        """
        chunks, is_heard = SampleChunks(f"remote-{uuid4().hex}"), False
        async with await self._connected() as self._socket:
            writing = asyncio.create_task(self._write(self._socket))
            try:
                async for message in self._socket:
                    if isinstance(message, bytes):
                        is_heard = True
                        yield chunks.take(message)
                    elif not _is_last(json.loads(message)):
                        continue
                    elif is_heard:
                        return
                    else:
                        raise InvalidRequest("there is no text to say", param="text")
            except ConnectionClosed:
                pass  # told below, as an end that comes too soon is
            finally:
                writing.cancel()
                (failed,) = await asyncio.gather(writing, return_exceptions=True)
            if isinstance(failed, Exception) and not isinstance(failed, ConnectionClosed):
                raise failed  # the text broke off
            raise EngineStopped("the server broke off before the sound was complete")

    def abort(self) -> None:
        """Leave; the server stops when it notices."""
        if self._socket is not None:
            self._socket.transport.abort()

    async def _connected(self) -> ClientConnection:
        parts = urlsplit(self._server.url)
        scheme = "wss" if parts.scheme == "https" else "ws"
        address = f"{scheme}://{parts.netloc}{parts.path}{_PATH}"
        # a proxy of this machine knows another "localhost" than this machine
        proxy: Literal[True] | None = None if parts.hostname in LOOPBACK else True
        try:
            return await connect(address, additional_headers=self._server.headers, proxy=proxy)
        except InvalidStatus as error:
            raise error_from_answer(
                error.response.status_code, bytes(error.response.body or b"")
            ) from error
        except (InvalidHandshake, OSError) as error:
            raise EngineStopped(f"no server answers at {self._server.url}: {error}") from error

    async def _write(self, socket: ClientConnection) -> None:
        """Send what is written; a text that breaks off breaks off the sound."""
        alive = asyncio.create_task(_show_life(socket))
        try:
            await _send(socket, self._config)
            await _send(socket, {"type": "input.text", "text": self._begun})
            async for piece in self._text.pieces():
                await _send(socket, {"type": "input.text", "text": piece})
            await _send(socket, {"type": "input.done"})
        except BaseException:
            socket.transport.abort()
            raise
        finally:
            alive.cancel()


async def _show_life(socket: ClientConnection) -> None:
    """Send keep-alives while no text is written."""
    with suppress(ConnectionClosed):
        while True:
            await asyncio.sleep(_SIGN_OF_LIFE_S)
            await _send(socket, {"type": "input.text", "text": ""})


async def _send(socket: ClientConnection, message: Mapping[str, object]) -> None:
    await socket.send(json.dumps(message))


def _is_last(event: dict[str, Any]) -> bool:
    """Whether nothing more comes. Raises IzwiError if the server tells an error."""
    if event["type"] == "error":
        raise kind_of(event["error"]["code"])(event["error"]["message"])
    return bool(event["type"] == "session.done")
