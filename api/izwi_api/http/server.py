"""The HTTP server: uvicorn with limits on request heads, and graceful shutdown.

Malformed HTTP never reaches the app; it gets an error response here, in the usual format.
WebSockets are uvicorn's over websockets, with another rule for close frames.
"""

from __future__ import annotations

import asyncio
import http
import json
import logging
import os
import re
import sys
import threading
import time
from types import FrameType
from typing import Any
from uuid import uuid4

import h11
import h11._readers
import uvicorn
from starlette.types import ASGIApp
from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
from uvicorn.config import LOGGING_CONFIG
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.exceptions import ProtocolError
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.server import ServerProtocol

from izwi.errors import RequestTimeout
from izwi_api.fair_timeout import Countdown
from izwi_api.http.drain import Drain
from izwi_api.http.errors import error_body
from izwi_api.settings import RequestPace, TlsFiles
from izwi_api.telemetry.log_lines import logs_json

logger = logging.getLogger(__name__)

MAX_TARGET_BYTES = 8 << 10
MAX_HEADERS = 100
MAX_HEAD_BYTES = 32 << 10
# websockets reads lines of up to 8 KiB, "GET TARGET HTTP/1.1" and "NAME: VALUE", with their ends.
MAX_HANDSHAKE_LINE_BYTES = (8 << 10) - 32
# Chunks of a few bytes cost the event loop a hundred times more than their content.
_FREE_CHUNKS = 2048
_MIN_CHUNK_BYTES = 16
# A header line as h11 0.16 reads it (h11._abnf.header_field), without going back. h11's own takes
# time with the square of the white space before a value: 6 s for 30 KB, before any key is checked.
HEADER_LINE = re.compile(
    rb"(?P<field_name>[-!#$%&'*+.^_`|~0-9a-zA-Z]++):[ \t]*+"
    rb"(?P<field_value>([^\x00\s]++(?:[ \t]++[^\x00\s]++)*+)?+)[ \t]*+"
)

# Longer than clients and proxies keep an unused connection: a request that is sent just as the
# server closes the connection is lost. httpx, and so OpenAI's client, closes after 5 s, nginx after
# 60. uvicorn's default is 5 s.
_KEEP_ALIVE_S = 75

# Frames of a WebSocket that are parsed at once: 1,365 of them may be in 8 KiB, and take 20 ms.
_PARSED_BYTES = 8 << 10
# Beyond this, a client that reads nothing gets no more pongs: what it sends is not read.
_MAX_UNSENT_BYTES = 4 << 20
# An append of a realtime session has up to 15 MiB of audio, in base64.
MAX_WEBSOCKET_BYTES = 24 << 20

# Seconds after the drain until remaining connections are cut off.
_CUT_OFF_S = 2.0


class Connection(h11.Connection):
    """The bytes of one client as HTTP, with limits; what exceeds them counts as malformed."""

    def __init__(self) -> None:
        super().__init__(h11.SERVER, MAX_HEAD_BYTES)
        self._num_chunks = self._num_bytes = 0

    def next_event(self) -> Any:
        """Return the next event. Raises h11.RemoteProtocolError with the status to send."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._num_chunks = self._num_bytes = 0
            _check_head(event)
        elif isinstance(event, h11.Data):
            self._num_bytes += len(event.data)
            self._num_chunks += event.chunk_end
            fair = self._num_chunks - _FREE_CHUNKS
            if fair > 0 and self._num_bytes < fair * _MIN_CHUNK_BYTES:
                raise h11.RemoteProtocolError("request body arrived in too many small pieces", 400)
        return event


class Protocol(H11Protocol):
    """uvicorn's protocol with these connections.

    Attributes:
        max_head_s: Seconds for a request line and its headers. uvicorn's own `timeout_keep_alive`
            starts after a response and ends with the next byte.
    """

    max_head_s = RequestPace().max_head_s

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.conn = Connection()
        self._head_time: Countdown | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start to wait for a request."""
        super().connection_made(transport)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up after the connection."""
        super().connection_lost(exc)
        self._unwatch_head()

    def data_received(self, data: bytes) -> None:
        """Receive bytes."""
        super().data_received(data)
        # Bytes that do not complete a request belong to its head.
        if self.conn.their_state is h11.IDLE:
            self._watch_head()
        else:
            self._unwatch_head()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Switch to WebSocket, or refuse a request that cannot be a handshake.

        The WebSocket protocol reads the head again, with limits of its own, and falls silent if it
        cannot.
        """
        refused = _handshake_problem(event)
        if refused is None:
            super().handle_websocket_upgrade(event)
            protocol = self.transport.get_protocol()
            if isinstance(protocol, WebSocketProtocol) and protocol.handshake_initiated:
                return
            refused = 400, "the request is not a WebSocket handshake"
        self._answer(*refused)
        self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Respond to malformed HTTP; uvicorn calls this while it handles the error."""
        error = sys.exc_info()[1]
        status, reported = 400, msg
        if isinstance(error, h11.RemoteProtocolError):
            status, reported = error.error_status_hint, str(error)
        if self.cycle is not None and not self.cycle.response_complete:
            # The app was reading this request's body: for the app the client has disconnected.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._answer(status, reported)
        self.transport.close()

    def _answer(self, status: int, message: str) -> None:
        code = RequestTimeout.code if status == 408 else "bad_http"
        body = json.dumps(error_body(message, "invalid_request_error", code=code)).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
            (b"x-request-id", f"req_{uuid4().hex}".encode()),
        ]
        events = (
            h11.Response(status_code=status, headers=headers, reason=STATUS_PHRASES[status]),
            h11.Data(data=body),
            h11.EndOfMessage(),
        )
        for event in events:
            self.transport.write(self.conn.send(event) or b"")

    def _watch_head(self) -> None:
        if self._head_time is None:
            self._head_time = Countdown(self.loop, self.max_head_s, self._head_is_late)
            self._head_time.start()

    def _unwatch_head(self) -> None:
        if self._head_time is not None:
            self._head_time.stop()
            self._head_time = None

    def _head_is_late(self) -> None:
        self._head_time = None
        # A WebSocket has switched to another protocol by now.
        if self.transport.get_protocol() is self and not self.transport.is_closing():
            self._answer(408, "the request did not arrive in time")
            self.transport.close()


class Server(uvicorn.Server):
    """A server that drains at the first signal, and stops at once at the second.

    While it drains it still listens: probes get 503, and requests in flight have `drain_s` to
    finish.

    Args:
        config: uvicorn's configuration; see `server_config`.
        drain: The app's drain.
        drain_s: Seconds that requests in flight may take to finish.
    """

    def __init__(self, config: uvicorn.Config, drain: Drain, drain_s: float):
        super().__init__(config)
        self._drain, self._drain_s = drain, drain_s
        self._until_s = 0.0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal to stop."""
        del sig, frame
        if self._drain.is_begun:
            self.should_exit = self.force_exit = True
            # If something never finishes, the process ends without it.
            threading.Thread(target=_exit_soon, daemon=True).start()
            return
        self._until_s = time.monotonic() + self._drain_s
        self._drain.start_draining()

    async def on_tick(self, counter: int) -> bool:
        """Check ten times a second whether to stop."""
        is_late = time.monotonic() >= self._until_s
        if self._drain.is_begun and (is_late or not self._drain.num_running):
            await self._drain.end_sessions()
            self.should_exit = True
        return await super().on_tick(counter)


def server_config(
    app: ASGIApp, host: str, port: int, max_head_s: float, tls: TlsFiles | None = None
) -> uvicorn.Config:
    """Return uvicorn's configuration for the app.

    Args:
        app: The app.
        host: Where to listen, unless sockets are passed later.
        port: As `host`.
        max_head_s: See `Protocol`.
        tls: Serve HTTPS with this certificate.
    """
    h11._readers.header_field_re = HEADER_LINE
    # uvicorn instantiates this class for each connection.
    protocol = type("TimedProtocol", (Protocol,), {"max_head_s": max_head_s})
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        http=protocol,
        server_header=False,
        timeout_graceful_shutdown=int(_CUT_OFF_S),
        timeout_keep_alive=_KEEP_ALIVE_S,
        # the answer of a client that is slowed down waits behind its own text; our API servers have
        # time limits of their own
        ws_ping_timeout=None,
        ws_max_size=MAX_WEBSOCKET_BYTES,
        ws=WebSocketProtocol,
        log_config=None if logs_json() else LOGGING_CONFIG,  # None: as all other loggers
        ssl_certfile=tls.cert if tls else None,
        ssl_keyfile=tls.key if tls else None,
    )


def _check_head(request: h11.Request) -> None:
    if request.http_version not in (b"1.0", b"1.1"):
        raise h11.RemoteProtocolError("unsupported HTTP version", 400)
    if len(request.target) > MAX_TARGET_BYTES:
        raise h11.RemoteProtocolError("the request's target is too long", 414)
    size = sum(len(name) + len(value) for name, value in request.headers)
    if len(request.headers) > MAX_HEADERS or size > MAX_HEAD_BYTES:
        raise h11.RemoteProtocolError("the request has too many headers", 431)


def _handshake_problem(request: h11.Request) -> tuple[int, str] | None:
    """Return status and message for a request to upgrade that websockets would not read."""
    if len(request.target) > MAX_HANDSHAKE_LINE_BYTES:
        return 414, "the request's target is too long for a WebSocket"
    for name, value in request.headers:
        if len(name) + len(value) > MAX_HANDSHAKE_LINE_BYTES:
            return 431, "a header is too long for a WebSocket handshake"
        if name == b"transfer-encoding" or (name == b"content-length" and int(value)):
            return 400, "a WebSocket handshake has no body"
    return None


def _exit_soon() -> None:
    time.sleep(_CUT_OFF_S)
    logging.shutdown()
    os._exit(1)


_SERVER_ERROR = 500


class Frames(ServerProtocol):
    """A client's handshake and frames; a close frame may come in the middle of a message.

    websockets treats that as a protocol error (1002). But RFC 6455 (5.4) allows control frames
    between the fragments of a message, and a close frame is one, so the response is the client's
    own code.

    A message in small fragments costs a hundred times more than its content, as chunks of a body.
    """

    _num_fragments = _num_bytes = 0  # of the message that is being received

    def recv_frame(self, frame: Frame) -> None:
        """Parse a frame. Raises websockets.exceptions.ProtocolError."""
        if frame.opcode in (Opcode.TEXT, Opcode.BINARY):
            self._num_fragments = self._num_bytes = 0
        elif frame.opcode is Opcode.CONT:
            self._num_fragments += 1
            self._num_bytes += len(frame.data)
            fair = self._num_fragments - _FREE_CHUNKS
            if fair > 0 and self._num_bytes < fair * _MIN_CHUNK_BYTES:
                raise ProtocolError("the message has too many small fragments")
        if frame.opcode is Opcode.CLOSE:
            # size of the fragments so far; websockets 15 uses the other name
            self.current_size = self.cur_size = None
        super().recv_frame(frame)

    def reject(self, status: http.HTTPStatus | int, text: str) -> Response:
        """Return the response to a request that is no handshake, in the usual format of errors."""
        kind = "invalid_request_error" if status < _SERVER_ERROR else "server_error"
        message = text.strip() or http.HTTPStatus(status).phrase
        body = json.dumps(error_body(message, kind, code="bad_http"))
        response = super().reject(status, body)
        del response.headers["Content-Type"]
        response.headers["Content-Type"] = "application/json"
        return response


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn's protocol with these frames, without compression, because audio does not shrink.

    A read may have tens of thousands of frames. They are parsed in turns with what else the event
    loop has to do, and nothing is read before all of them are parsed and taken by the app.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.conn = Frames(max_size=config.ws_max_size, logger=logging.getLogger("uvicorn.error"))
        self._unparsed = bytearray()
        self._parsing: asyncio.Handle | None = None

    def data_received(self, data: bytes) -> None:
        """Receive bytes."""
        if not self.handshake_initiated:  # the server waits for its outcome
            super().data_received(data)
            return
        self._unparsed += data
        self._go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up after the connection."""
        self._unparsed.clear()
        super().connection_lost(exc)

    def resume_writing(self) -> None:
        """Go on when the client has read."""
        super().resume_writing()
        self._go_on()

    async def receive(self) -> ASGIReceiveEvent:
        """Return the next event for the app."""
        message = await self.queue.get()
        self.read_paused = not self.queue.empty()
        self._go_on()
        return message

    def _go_on(self) -> None:
        """Parse what was received in the next turn of the loop, or read more, or wait."""
        unsent = 0 if self.writable.is_set() else self.transport.get_write_buffer_size()
        is_held = self.read_paused or unsent > _MAX_UNSENT_BYTES
        if self._unparsed and not is_held and self._parsing is None:
            self._parsing = self.loop.call_soon(self._parse)
        if self.transport.is_closing():
            return
        if self._unparsed or is_held:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def _parse(self) -> None:
        self._parsing = None
        piece = bytes(self._unparsed[:_PARSED_BYTES])
        del self._unparsed[:_PARSED_BYTES]
        if piece:  # else the connection was lost
            super().data_received(piece)
            self._go_on()

    def handle_parser_exception(self) -> None:
        """Send the close frame, and read on until the client has seen it.

        uvicorn closes the connection at once. If the client is still sending, the kernel then
        resets the connection, and the client may never see the code, for example 1009.
        """
        if self.close_sent or self.transport.is_closing():
            return  # what comes later is discarded
        assert self.conn.close_sent is not None
        code, reason = self.conn.close_sent.code, self.conn.close_sent.reason
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        if self.transport.can_write_eof():
            self.transport.write_eof()
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        self.close_timer = self.loop.call_later(_CUT_OFF_S, self.transport.close)

    async def send(self, message: ASGISendEvent) -> None:
        """Send a message of the app. A handshake that is refused is complete with the response.

        Otherwise uvicorn logs each refusal as an error of the app.
        """
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and self.close_sent:
            self.handshake_complete = True
