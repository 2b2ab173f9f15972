"""The engine's process: models and the loop. Started by the supervisor; knows no HTTP.

Two threads: this one takes commands off the socket and the supervisor's words, the other one steps,
and sends what a step gave itself. An event loop with readers and text is in no one's way here.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import zmq

from izwi.allocator import settle
from izwi.engine import Engine
from izwi.errors import InvalidRequest, IzwiError
from izwi.log import Log
from izwi.registry import Registry
from izwi.request import Chunk, Request
from izwi.runner.device import TorchBackend, torch_backend
from izwi.stepping import SteppingThread
from izwi.stream import failure
from izwi_api.serve import wire
from izwi_api.serve.control import (
    BEAT_S,
    Control,
    DoorGone,
    EngineSpec,
    Ready,
    child_process,
)
from izwi_api.serve.packing import Frame
from izwi_api.serve.process_log import tell_memory
from izwi_api.serve.recording import recorded
from izwi_api.serve.sockets import Context, Socket, open_socket, receive, send

logger = logging.getLogger(__name__)

# Figures are told so often while there is work, and once when there is none any more.
_FIGURES_EVERY_S = 0.1
# Messages with chunks that a door may leave unread before all its requests are held. A door that
# reads says so every `HEARD_EVERY` of them.
MAX_UNHEARD = 256


class _DoorLine:
    """One door as the engine sees it; the stepping thread's alone.

    Attributes:
        live: Ids of its requests that have not ended.
        held: Those whose readers are behind.
        num_unheard: Messages with chunks that it has not said to have read.
        is_behind: So many that its requests are held.
    """

    def __init__(self, socket: Socket):
        self.socket = socket
        self.live: set[str] = set()
        self.held: set[str] = set()
        self.num_unheard = 0
        self.is_behind = False


class DoorLines:
    """The doors as the engine's listener: tells each what concerns its requests.

    All of it runs on the stepping thread, `receive` and `forget` aside.

    Args:
        engine: Not started.
        codec: Of its requests.
        context: Of the sockets.
    """

    def __init__(self, engine: Engine, codec: wire.RequestCodec, context: Context):
        self._engine, self._codec, self._context = engine, codec, context
        self.thread = SteppingThread(engine, self)
        self._lines: dict[str, _DoorLine] = {}
        self._gone: set[str] = set()  # doors that have died; what they sent may still come
        self._owners: dict[str, _DoorLine] = {}
        self._load: wire.Load = {}
        self._figures_s = 0.0

    # -- from the receiving thread -------------------------------------------------------------
    def receive(self, frames: Sequence[Frame]) -> None:
        """Take a message in. What is none is logged: doors are our own."""
        try:
            envelope = wire.decode_command(frames[0])
        except ValueError:
            logger.exception("a door sent what is no command")
            return
        command, requests, logs = envelope.command, list[Request](), list[Log]()
        if isinstance(command, wire.Submit):
            try:
                requests = self._codec.requests(command, frames)
                logs = self._codec.logs(command, frames)
            except ValueError as error:
                logger.exception("a door sent what are no requests")
                self.thread.tell(partial(self._refuse, envelope.door, command, error))
                return
        self.thread.tell(partial(self._do, envelope.door, command, requests, logs))

    def forget(self, door: str) -> None:
        """End all that a door has asked for: it is gone."""
        self.thread.tell(partial(self._forget, door))

    # -- on the stepping thread ----------------------------------------------------------------
    def take(self, chunks: list[Chunk]) -> None:
        """Send each door its chunks, as one message."""
        shares: dict[_DoorLine, list[Chunk]] = {}
        for chunk in chunks:
            line = self._owners.get(chunk.request_id)
            if line is None:
                continue
            shares.setdefault(line, []).append(chunk)
            if chunk.reason is not None:
                self._let_go(line, chunk.request_id)
            if chunk.error is not None and not isinstance(chunk.error, IzwiError):
                logger.error("request %s failed", chunk.request_id, exc_info=chunk.error)
        for line, share in shares.items():
            self._send_chunks(line, share)

    def stepped(self) -> None:
        """Tell the figures now and then, and when the last request has ended."""
        now_s = time.monotonic()
        if self._engine.has_work and now_s - self._figures_s < _FIGURES_EVERY_S:
            return
        self._figures_s = now_s
        load = self._engine.load
        if load != self._load:
            self._load = load
            message = wire.encode_news(wire.Figures(load))
            for line in self._lines.values():
                if not line.is_behind:
                    line.socket.send(message)

    def _do(
        self, door: str, command: wire.Command, requests: list[Request], logs: list[Log]
    ) -> None:
        if door in self._gone:
            return
        if isinstance(command, wire.Hello):
            self._welcome(door, command.address)
            return
        engine, line = self._engine, self._lines[door]
        match command:
            case wire.Submit():
                self._submit(line, requests, logs)
            case wire.Abort():
                self.thread.end(command.request_id)
            case wire.Pause():
                (engine.pause if command.paused else engine.resume)(command.request_id)
            case wire.Hold():
                self._hold(line, command.request_id, command.held)
            case wire.Write():
                engine.write(command.request_id, command.text_ids, command.closed)
            case wire.Heard():
                self._hear(line, command.num_messages)

    def _welcome(self, door: str, address: str) -> None:
        socket = open_socket(self._context, zmq.PUSH)  # `MAX_UNHEARD` bounds it
        socket.connect(address)
        self._lines[door] = _DoorLine(socket)
        self._load = self._engine.load
        socket.send(wire.encode_news(wire.Welcome(self._engine.config.max_backlog, self._load)))

    def _submit(self, line: _DoorLine, requests: list[Request], logs: list[Log]) -> None:
        ids = [request.request_id for request in requests]
        if taken := [request_id for request_id in ids if request_id in self._owners]:
            error = InvalidRequest(f"request {taken[0]!r} is running already")
            self._send_chunks(line, [failure(request_id, error) for request_id in ids])
            return
        line.live.update(ids)
        self._owners.update(dict.fromkeys(ids, line))
        self.thread.take_in(requests, logs)

    def _refuse(self, door: str, command: wire.Submit, error: ValueError) -> None:
        """Fail requests that cannot be read, as far as they have a name: somebody waits."""
        if line := self._lines.get(door):
            ids = wire.named_ids(command)
            self._send_chunks(line, [failure(request_id, error) for request_id in ids])

    def _hold(self, line: _DoorLine, request_id: str, held: bool) -> None:
        if request_id in line.live:
            (line.held.add if held else line.held.discard)(request_id)
            self._engine.hold(request_id, held or line.is_behind)

    def _hear(self, line: _DoorLine, num_messages: int) -> None:
        line.num_unheard -= num_messages
        if line.is_behind and line.num_unheard <= MAX_UNHEARD // 2:
            line.is_behind = False
            for request_id in line.live:
                self._engine.hold(request_id, request_id in line.held)

    def _forget(self, door: str) -> None:
        self._gone.add(door)
        line = self._lines.pop(door, None)
        if line is None:  # it died before it said hello
            return
        for request_id in list(line.live):
            self._let_go(line, request_id)
            self.thread.end(request_id)
        line.socket.close()

    def _let_go(self, line: _DoorLine, request_id: str) -> None:
        del self._owners[request_id]
        line.live.discard(request_id)
        line.held.discard(request_id)

    def _send_chunks(self, line: _DoorLine, chunks: Iterable[Chunk]) -> None:
        send(line.socket, wire.encode_chunks(chunks))
        line.num_unheard += 1
        if line.num_unheard >= MAX_UNHEARD:
            line.is_behind = True
            for request_id in line.live:
                self._engine.hold(request_id, True)


Load = Callable[[EngineSpec], tuple[Registry, TorchBackend]]


def run(control: Control, spec: EngineSpec, load: Load) -> None:
    """Load the models and step until the supervisor is gone.

    Raises:
        IzwiError: A model or a setting cannot be used.
        OSError: The trace cannot be written.
    """
    registry, backend = load(spec)
    engine = Engine(registry.models, backend.ops, spec.config)
    context: Context = zmq.Context.instance()
    lines = DoorLines(engine, wire.RequestCodec(), context)
    commands = open_socket(context, zmq.PULL)
    commands.bind(spec.address)
    settle()
    tell_memory(engine.load)
    trace = recorded(lines.thread, spec.record_trace, registry, backend, spec.where)
    with trace:
        lines.thread.start()
        control.send(Ready())
        try:
            pass_on(control, commands, lines)
        finally:
            lines.thread.stop()
            commands.close()


def load_models(spec: EngineSpec) -> tuple[Registry, TorchBackend]:
    """Read checkpoints with their weights. Raises IzwiError."""
    where = spec.where
    backend = torch_backend(where.device, where.dtype, where.weights, where.attention)
    registry = Registry(backend)
    for name, folder in spec.models.items():
        registry.load(str(folder), name)
    return registry, backend


def pass_on(control: Control, commands: Socket, lines: DoorLines) -> None:
    """Pass on what doors and supervisor say, until the supervisor says no more.

    As long as steps begin and end, the supervisor is told that all is well.
    """
    poller = zmq.Poller()
    poller.register(commands, zmq.POLLIN)
    poller.register(control.fileno(), zmq.POLLIN)
    while True:
        ready = dict(poller.poll(round(BEAT_S * 1e3)))
        if lines.thread.alive and lines.thread.busy_s < BEAT_S:
            control.beat()
        if control.fileno() in ready:
            try:
                messages = control.receive()
            except EOFError:
                return
            for message in messages:
                if isinstance(message, DoorGone):
                    lines.forget(message.name)
        if commands in ready and (frames := receive(commands)):
            lines.receive(frames)


def main(load: Load = load_models) -> None:
    """Do what the supervisor says.

    Args:
        load: Reads the models.
    """
    with child_process() as control:
        spec = control.first(EngineSpec)
        run(control, spec, load)
        # the supervisor has said its last word; should it have died, nobody else does this
        shutil.rmtree(spec.folder, ignore_errors=True)


if __name__ == "__main__":
    main()
