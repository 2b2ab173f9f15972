"""WebSocket frames: uvicorn's protocol over websockets, with another rule for close frames."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import uvicorn
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.frames import Frame, Opcode
from websockets.server import ServerProtocol


class Frames(ServerProtocol):
    """A client's frames; a close frame may come in the middle of a message.

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
