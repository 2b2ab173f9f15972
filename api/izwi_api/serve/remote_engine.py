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
from izwi.stream import Stream, aborted, failure
from izwi_api.serve import wire
from izwi_api.serve.life import Life
from izwi_api.serve.packing import Frame
from izwi_api.serve.sockets import Context, Socket, open_socket, receive, send

logger = logging.getLogger(__name__)

# The engine is told after so many messages that they have come.
HEARD_EVERY = 32
# Messages that are looked at before others on the event loop have their turn.
_MOST_AT_ONCE = 64
# Engines that may die under a request before it fails.
_MOST_DEATHS = 1


class RemoteEngine:
    """Implements `izwi_api.door.Engine` over local sockets.

    There is an engine between `connect` and `disconnect`; the process that started this one says
    when. Without one, nothing is taken in. What was under way waits for the next engine, which goes
    on where its log ends: the reader notices a pause. A request that outlives one engine does
    not outlive another: it may be why they die.

    Args:
        name: Of this door, which no other has had.
        folder: Where its socket is made.
        codec: Of its requests.
        sends_asks: Requests are sent with what they were prepared from, for traces.
        patience_s: For how long what was under way waits for the next engine before it ends with
            EngineStopped; 0: it ends at once.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        codec: wire.RequestCodec,
        *,
        sends_asks: bool = False,
        patience_s: float = 0.0,
    ):
        self._name, self._folder, self._codec = name, folder, codec
        self._sends_asks, self._patience_s = sends_asks, patience_s
        self._context: Context = zmq.Context.instance()
        self._commands: Socket | None = None
        self._news: Socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lives: dict[str, Life] = {}
        self._giving_up: asyncio.TimerHandle | None = None
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
        self.give_up()

    def connect(self, address: str) -> None:
        """Turn to an engine; call it on the event loop that reads the streams.

        Args:
            address: Where it takes commands.
        """
        self.disconnect()
        self._num_engines += 1
        own = f"ipc://{self._folder / f'{self._name}-{self._num_engines}'}"
        self._news = open_socket(self._context, zmq.PULL)
        self._news.bind(own)
        self._commands = open_socket(self._context, zmq.PUSH)
        self._commands.connect(address)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._news.fileno(), self._read)
        self._send([wire.encode_command(self._name, wire.Hello(own))])
        self._loop.call_soon(self._read)

    def disconnect(self) -> None:
        """Turn away from an engine that is gone; what was under way waits for the next."""
        if self._news is None or self._commands is None or self._loop is None:
            return
        self._is_welcome, self._num_heard, self.load = False, 0, {}
        self._loop.remove_reader(self._news.fileno())
        self._commands.close()
        self._news.close()
        self._commands = self._news = None
        for life in list(self._lives.values()):
            life.num_deaths += 1
            if life.num_deaths > _MOST_DEATHS or self._patience_s <= 0:
                self._fail(life)
        if self._lives and self._giving_up is None:
            self._giving_up = self._loop.call_later(self._patience_s, self.give_up)

    def give_up(self) -> None:
        """End what waits for an engine with EngineStopped: none will come."""
        self._stop_waiting()
        for life in list(self._lives.values()):
            self._fail(life)

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
        lives = [Life(request, Stream(request.request_id, self, loop)) for request in requests]
        frames = self._codec.submit(self._name, requests, with_ask=self._sends_asks)
        self._lives.update((life.request.request_id, life) for life in lives)
        self._send(frames)
        return [life.stream for life in lives]

    def abort(self, request_id: str) -> None:
        """End a request before the next step."""
        if self._is_welcome:
            self._tell(wire.Abort(request_id))
        elif life := self._lives.pop(request_id, None):  # nobody else would
            life.stream.put(aborted(request_id))

    def pause(self, request_id: str) -> None:
        """Stop a request where it is before the next step."""
        self._set_paused(request_id, True)

    def resume(self, request_id: str) -> None:
        """Let a paused request go on with the next sample or token."""
        self._set_paused(request_id, False)

    def hold(self, request_id: str, held: bool) -> None:
        """Stop or go on emitting for a request."""
        if life := self._lives.get(request_id):
            life.held = held
        self._tell(wire.Hold(request_id, held))

    def write(self, request_id: str, text_ids: Sequence[int], closed: bool) -> None:
        """Write text to a request with open input; nothing if it has ended."""
        if life := self._lives.get(request_id):
            life.written += text_ids
            life.closed |= closed
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

    def _set_paused(self, request_id: str, paused: bool) -> None:
        if life := self._lives.get(request_id):
            life.paused = paused
        self._tell(wire.Pause(request_id, paused))

    def _go_on(self) -> None:
        """Ask the engine that has come for the rest of what the last one began."""
        self._stop_waiting()
        for request_id, life in self._lives.items():
            frames = self._codec.submit(
                self._name, [life.request], [life.log()], with_ask=self._sends_asks
            )
            self._send(frames)
            if life.paused:
                self._tell(wire.Pause(request_id, True))
            if life.held:
                self._tell(wire.Hold(request_id, True))
        if self._lives:
            logger.warning("%d requests go on with the next engine", len(self._lives))

    def _stop_waiting(self) -> None:
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None

    def _fail(self, life: Life) -> None:
        del self._lives[life.request.request_id]
        error = EngineStopped("the engine has stopped")
        life.stream.put(failure(life.request.request_id, error))

    def _tell(self, command: wire.Command) -> None:
        if self._is_welcome:
            self._send([wire.encode_command(self._name, command)])

    def _send(self, frames: list[Frame]) -> None:
        if self._commands is not None:
            send(self._commands, frames)

    def _read(self) -> None:
        """Take what has come. The descriptor tells of news only once, so all of it is taken."""
        for _ in range(_MOST_AT_ONCE):
            if self._news is None:
                return
            frames = receive(self._news)
            if frames is None:
                return
            self._hear(frames)
        if self._loop is not None:
            self._loop.call_soon(self._read)

    def _hear(self, frames: Sequence[Frame]) -> None:
        news = wire.decode_news(frames[0])
        match news:
            case wire.Welcome():
                self.max_backlog, self.load = news.max_backlog, news.load
                self._is_welcome = True
                self._go_on()
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
        life = self._lives.get(packed.request_id)
        if life is not None:
            if packed.reason is not None:
                del self._lives[packed.request_id]
            life.give(wire.unpack_chunk(packed, frames))
