"""WebSockets: uvicorn's protocol over websockets, with another rule for close frames."""

from __future__ import annotations

import asyncio
import http
import json
import logging
from typing import Any

import uvicorn
from uvicorn._types import ASGISendEvent
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.server import ServerProtocol

from izwi_api.http.errors import error_body

_SERVER_ERROR = 500


class Frames(ServerProtocol):
    """A client's handshake and frames; a close frame may come in the middle of a message.

    websockets treats that as a protocol error (1002). But RFC 6455 (5.4) allows control frames
    between the fragments of a message, and a close frame is one, so the response is the client's
    own code.
    """

    def recv_frame(self, frame: Frame) -> None:
        """Parse a frame. Raises websockets.exceptions.ProtocolError."""
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
    """uvicorn's protocol with these frames, without compression, because audio does not shrink."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.conn = Frames(max_size=config.ws_max_size, logger=logging.getLogger("uvicorn.error"))

    async def send(self, message: ASGISendEvent) -> None:
        """Send a message of the app. A handshake that is refused is complete with the response.

        Otherwise uvicorn logs each refusal as an error of the app.
        """
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and self.close_sent:
            self.handshake_complete = True
