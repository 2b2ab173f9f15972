"""The engine as a door sees it that is another process. Lives on the door's event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import zmq

from izwi.errors import EngineStopped, InvalidRequest
from izwi.model import Model
from izwi.request import Request
from izwi.stream import Stream, failure
from izwi_api.serve import wire
from izwi_api.serve.packing import Frame

logger = logging.getLogger(__name__)

# The engine is told after so many messages that they have come.
HEARD_EVERY = 32
# Messages that are looked at before others on the event loop have their turn.
_MOST_AT_ONCE = 64


class RemoteEngine:
    """Implements `izwi_api.door.Engine` over local sockets.

    There is an engine between `connect` and `disconnect`; the process that started this one says
    when. Without one, nothing is taken in, and what was under way ends with EngineStopped.

    Args:
        name: Of this door, which no other has had.
        folder: Where its socket is made.
        codec: Of its requests.
        sends_asks: Requests are sent with what they were prepared from, for traces.
    """

    def __init__(
        self, name: str, folder: Path, codec: wire.RequestCodec, *, sends_asks: bool = False
    ):
        self._name, self._folder, self._codec = name, folder, codec
        self._sends_asks = sends_asks
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self._commands: zmq.Socket[bytes] | None = None
        self._news: zmq.Socket[bytes] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._streams: dict[str, Stream] = {}
        self._num_engines = 0
        self._num_heard = 0
        self._is_welcome = False
        self.max_backlog = 1
        self.load: Mapping[str, Mapping[str, float]] = {}

    @property
    def alive(self) -> bool:
        """Whether there is an engine that takes requests."""
        return self._is_welcome

    def start(self) -> None:
        """Nothing: the engine runs when its process does."""

    async def stop(self) -> None:
        """Leave the engine; what was under way ends with EngineStopped."""
        self.disconnect()

    def connect(self, address: str) -> None:
        """Turn to an engine; call it on the event loop that reads the streams.

        Args:
            address: Where it takes commands.
        """
        self.disconnect()
        self._num_engines += 1
        own = f"ipc://{self._folder / f'{self._name}-{self._num_engines}'}"
        self._news = self._socket(zmq.PULL)
        self._news.bind(own)
        self._commands = self._socket(zmq.PUSH)
        self._commands.connect(address)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._news.fileno(), self._read)
        self._send([wire.encode_command(self._name, wire.Hello(own))])
        self._loop.call_soon(self._read)

    def disconnect(self) -> None:
        """Turn away from an engine that is gone; what was under way ends with EngineStopped."""
        self._is_welcome, self._num_heard, self.load = False, 0, {}
        if self._loop is not None and self._news is not None:
            self._loop.remove_reader(self._news.fileno())
        for socket in (self._commands, self._news):
            if socket is not None:
                socket.close(linger=0)
        self._commands = self._news = None
        streams, self._streams = self._streams, {}
        for request_id, stream in streams.items():
            stream.put(failure(request_id, EngineStopped("the engine has stopped")))

    def submit(self, request: Request) -> Stream:
        """Take a request in; see `submit_all`."""
        return self.submit_all([request])[0]

    def submit_all(self, requests: Sequence[Request]) -> list[Stream]:
        """Take all requests in, or none, so that they enter the same step.

        What the engine's queue refuses is told on every stream.

        Raises:
            EngineStopped: There is no engine now.
        """
        if not self._is_welcome:
            raise EngineStopped("the engine is not running")
        loop = asyncio.get_running_loop()
        streams = [Stream(request.request_id, self, loop) for request in requests]
        frames = self._codec.submit(self._name, requests, with_ask=self._sends_asks)
        self._streams.update((stream.request_id, stream) for stream in streams)
        self._send(frames)
        return streams

    def abort(self, request_id: str) -> None:
        """End a request before the next step."""
        self._tell(wire.Abort(request_id))

    def pause(self, request_id: str) -> None:
        """Stop a request where it is before the next step."""
        self._tell(wire.Pause(request_id, True))

    def resume(self, request_id: str) -> None:
        """Let a paused request go on with the next sample or token."""
        self._tell(wire.Pause(request_id, False))

    def hold(self, request_id: str, held: bool) -> None:
        """Stop or go on emitting for a request."""
        self._tell(wire.Hold(request_id, held))

    def write(self, request_id: str, text_ids: Sequence[int], closed: bool) -> None:
        """Write text to a request with open input; nothing if it has ended."""
        self._tell(wire.Write(request_id, list(text_ids), closed))

    async def add(self, name: str, model: Model) -> NoReturn:
        """Refuse: models come and go only where doors and engine are one process.

        Raises:
            InvalidRequest: Always.
        """
        del model
        raise InvalidRequest(f"model {name!r} cannot come while the server runs", param="model")

    async def remove(self, name: str) -> NoReturn:
        """Refuse, as `add`. Raises InvalidRequest."""
        raise InvalidRequest(f"model {name!r} cannot go while the server runs", param="model")

    def _tell(self, command: wire.Command) -> None:
        if self._is_welcome:
            self._send([wire.encode_command(self._name, command)])

    def _send(self, frames: list[Frame]) -> None:
        if self._commands is not None:
            self._commands.send_multipart(frames, copy=False)

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.set_hwm(0)
        return socket

    def _read(self) -> None:
        """Take what has come. The descriptor tells of news only once, so all of it is taken."""
        for _ in range(_MOST_AT_ONCE):
            if self._news is None:
                return
            try:
                frames = self._news.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            self._hear([frame.buffer for frame in frames])
        if self._loop is not None:
            self._loop.call_soon(self._read)

    def _hear(self, frames: Sequence[Frame]) -> None:
        news = wire.decode_news(frames[0])
        match news:
            case wire.Welcome():
                self.max_backlog, self.load = news.max_backlog, news.load
                self._is_welcome = True
            case wire.Figures():
                self.load = news.load
            case wire.Told():
                for packed in news.chunks:
                    self._give(packed, frames)
                self._num_heard += 1
                if self._num_heard == HEARD_EVERY:
                    self._num_heard = 0
                    self._tell(wire.Heard(HEARD_EVERY))

    def _give(self, packed: wire.PackedChunk, frames: Sequence[Frame]) -> None:
        stream = self._streams.get(packed.request_id)
        if stream is not None:
            if packed.reason is not None:
                del self._streams[packed.request_id]
            stream.put(wire.unpack_chunk(packed, frames))
