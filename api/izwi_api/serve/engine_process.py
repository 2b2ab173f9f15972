"""The engine process: models and the loop. Started by the supervisor; knows no HTTP.

Two threads: this one receives commands from the socket and messages of the supervisor; the step
thread steps the engine and sends the output itself. There is no event loop here.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

import zmq

from izwi.backends.choice import open_backend, own_device, spread_device
from izwi.backends.protocol import Backend
from izwi.checkpoints.registry import OWN_RUNNER, Registry, load_model, runner_family
from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi.engine.step_thread import SteppingThread
from izwi.engine.stepped import Stepped
from izwi.engine_client.output_stream import failure
from izwi.errors import InvalidMessage, InvalidRequest, IzwiError
from izwi.host.allocator import settle
from izwi.model.protocol import Model
from izwi.request.correlation import Correlation
from izwi.request.request import Chunk, Request
from izwi.request.serialization import Frame
from izwi.runner.planning import prepare_device
from izwi_api.serve import wire
from izwi_api.serve.control import (
    BEAT_S,
    ApiServerGone,
    Control,
    EngineSpec,
    ModelRemoved,
    Ready,
    RemoveModel,
    child_process,
)
from izwi_api.serve.moved_pages import PageMoves
from izwi_api.serve.process_log import log_memory
from izwi_api.serve.recording import recorded
from izwi_api.serve.sockets import (
    Context,
    Socket,
    bind,
    close_monitored,
    connect,
    is_remote,
    open_monitor,
    open_socket,
    receive,
    send,
)

logger = logging.getLogger("izwi_api.serve.engine_process")  # run as __main__

# Seconds between reports of figures while there is work; one more report follows when it ends.
_FIGURES_EVERY_S = 0.1
# Page digests of each model that are published to routers, the most recently used first.
_MOST_DIGESTS = 1024
# Messages with chunks that an API server may leave unacknowledged before all its requests get
# backpressure. A working API server acknowledges every `ACKNOWLEDGE_EVERY` messages.
MAX_UNACKNOWLEDGED = 256
# Seconds between looks at a model that leaves.
_REMOVAL_LOOK_S = 0.05
# Exit code of an engine whose step thread cannot continue.
DIED = 70  # EX_SOFTWARE


class _ApiServerConnection:
    """The connection to one API server; used on the step thread alone.

    Attributes:
        live: Ids of its requests that have not ended.
        backpressured: Ids of requests whose readers are behind.
        num_unacknowledged: Messages with chunks that it has not acknowledged.
        is_behind: It has so many of these that its requests get backpressure.
        load: The figures that were last sent to it.
        num_prefix_changes: Changes of the known prefixes up to those that were last sent to it.
        monitor: Tells when the connection is lost, if it is to another machine. Of API servers on
            this machine the supervisor tells.
    """

    def __init__(self, socket: Socket, monitor: Socket | None = None):
        self.socket, self.monitor = socket, monitor
        self.live: set[str] = set()
        self.backpressured: set[str] = set()
        self.num_unacknowledged = 0
        self.is_behind = False
        self.load: wire.LoadFigures = {}
        self.num_prefix_changes = 0
        self.prefills: set[str] = set()  # ids of requests whose pages were computed for it


class ApiServerConnections:
    """Connections to API servers: sends each the output of its own requests.

    Everything runs on the step thread, except `receive` and `forget`.

    Args:
        engine: The engine, not started.
        codec: Decodes its requests.
        context: ZeroMQ's context.
        died: Called on the step thread when that thread cannot continue.
        publishes: Send the known prefixes, for routers.
    """

    def __init__(
        self,
        engine: Stepped,
        codec: wire.RequestCodec,
        context: Context,
        died: Callable[[], object] = lambda: None,
        *,
        publishes: bool = False,
    ):
        self._publishes = publishes
        self._engine, self._codec, self._context, self._died = engine, codec, context, died
        self.thread = SteppingThread(engine, self)
        self._lines: dict[str, _ApiServerConnection] = {}
        self._gone: set[str] = set()  # API servers that died; their messages may still arrive
        self._owners: dict[str, _ApiServerConnection] = {}
        self._calls: dict[str, Correlation | None] = {}  # of live requests, for log lines
        self._figures_s = 0.0
        self._moves = PageMoves(engine, self.thread.enqueue)
        self._prefills: dict[str, Request] = {}  # live requests whose pages are for other engines

    # -- from the receiving thread -------------------------------------------------------------
    def receive(self, frames: Sequence[Frame]) -> None:
        """Decode a message. An unreadable one is logged, because API servers are our own code."""
        try:
            envelope = self._codec.decode(frames)
        except InvalidMessage as error:
            logger.exception("an API server sent an invalid message")
            api_server, ids = wire.named_requests(frames)
            self.thread.enqueue(partial(self._refuse, api_server, ids, error))
            return
        self.thread.enqueue(partial(self._do, envelope.api_server, envelope.command))

    def forget(self, api_server: str) -> None:
        """Abort all requests of an API server that died."""
        self.thread.enqueue(partial(self._forget, api_server))

    def remove(self, name: str) -> Future[None]:
        """Accept no more requests for a model, and free it when the running ones have ended."""
        return self.thread.change(name, lambda: self._engine.remove(name))

    def forget_lost(self) -> None:
        """Abort all requests of API servers whose connections were lost."""
        if any(line.monitor is not None for line in list(self._lines.values())):
            self.thread.enqueue(self._forget_lost)

    # -- on the stepping thread ----------------------------------------------------------------
    def deliver(self, chunks: list[Chunk]) -> None:
        """Send each API server its chunks, as one message."""
        shares: dict[_ApiServerConnection, list[Chunk]] = {}
        for chunk in chunks:
            line = self._owners.get(chunk.request_id)
            if line is None:
                continue
            prefill = self._prefills.get(chunk.request_id)
            if prefill is None:
                shares.setdefault(line, []).append(chunk)
            if chunk.reason is not None:
                self._log_end(chunk)
                self._let_go(line, chunk.request_id)
                if prefill is not None:
                    self._pass_on(line, prefill)
        for line, share in shares.items():
            self._send_chunks(line, share)

    def _pass_on(self, line: _ApiServerConnection, prefill: Request) -> None:
        """Pass on the pages of a prompt that has run for another engine, or was refused."""
        request_id = prefill.request_id
        line.prefills.add(request_id)

        def send_path(path: str) -> None:
            self._respond(line, wire.ComputedPages(request_id, path))

        self._moves.pass_on(prefill, send_path)

    def _log_end(self, chunk: Chunk) -> None:
        call = {"correlation": self._calls.get(chunk.request_id)}
        if chunk.error is not None and not isinstance(chunk.error, IzwiError):
            logger.error("request %s failed", chunk.request_id, exc_info=chunk.error, extra=call)
        elif logger.isEnabledFor(logging.DEBUG):
            logger.debug("request %s ended: %s", chunk.request_id, chunk.reason, extra=call)

    def stepped(self) -> None:
        """Send figures from time to time, and when the last request has ended.

        An API server that is behind gets them as soon as it has caught up.
        """
        now_s = time.monotonic()
        if self._engine.has_work and now_s - self._figures_s < _FIGURES_EVERY_S:
            return
        self._figures_s = now_s
        load = self._engine.load
        outdated = [line for line in self._lines.values() if line.load != load]
        message = wire.encode_engine_message(wire.Figures(load)) if outdated else []
        for line in outdated:
            if not line.is_behind:
                line.load = load
                send(line.socket, message)
        if self._publishes:
            self._publish()

    def _publish(self) -> None:
        """Send the known prefixes to API servers that have older ones."""
        num_changes = self._engine.num_prefix_changes
        lines = [line for line in self._lines.values() if not line.is_behind]
        outdated = [line for line in lines if line.num_prefix_changes != num_changes]
        if not outdated:
            return
        message = wire.Prefixes(self._engine.prefix_digests(_MOST_DIGESTS))
        frames = wire.encode_engine_message(message)
        for line in outdated:
            line.num_prefix_changes = num_changes
            send(line.socket, frames)

    def ended(self, broken: BaseException | None) -> None:
        """End this process if the step thread failed; the next engine resumes its requests."""
        if broken is not None:
            self._died()

    def _do(self, api_server: str, command: wire.Command) -> None:
        if api_server in self._gone:
            return
        if isinstance(command, wire.Hello):
            self._welcome(api_server, command.address)
            return
        engine, line = self._engine, self._lines[api_server]
        if isinstance(command, wire.OF_ONE) and command.request_id not in line.live:
            return  # the request has ended, or another API server has a request of that id
        if isinstance(command, wire.OF_ONE) and self.thread.deferred(
            command.request_id, partial(self._do, api_server, command)
        ):
            return  # its adapter is being read
        match command:
            case wire.Submit():
                self._submit(line, command)
            case wire.Abort():
                self.thread.end(command.request_id)
            case wire.Pause():
                (engine.pause if command.paused else engine.resume)(command.request_id)
            case wire.Backpressure():
                self._set_backpressure(line, command.request_id, command.backpressured)
            case wire.Write():
                self.thread.write_to(command.request_id, command.text_ids, command.closed)
            case wire.Acknowledge():
                self._acknowledge(line, command.num_messages)
            case wire.WritePages():
                self._write_pages(line, command)
            case wire.FreePages():
                line.prefills.discard(command.request_id)
                self._moves.free([command.request_id])

    def _write_pages(self, line: _ApiServerConnection, command: wire.WritePages) -> None:
        written = wire.WrittenPages(command.request_id)
        self._moves.write(command.path, lambda: self._respond(line, written))

    def _respond(self, line: _ApiServerConnection, message: wire.EngineMessage) -> None:
        """Send a message to an API server, if it is still there."""
        if line in self._lines.values():
            send(line.socket, wire.encode_engine_message(message))

    def _welcome(self, api_server: str, address: str) -> None:
        socket = open_socket(self._context, zmq.PUSH)  # `MAX_UNACKNOWLEDGED` bounds it
        monitor = open_monitor(socket) if is_remote(address) else None
        connect(socket, address)
        line = self._lines[api_server] = _ApiServerConnection(socket, monitor)
        line.load = self._engine.load
        welcome = wire.Welcome(self._engine.config.max_backlog, line.load)
        send(socket, wire.encode_engine_message(welcome))

    def _submit(self, line: _ApiServerConnection, command: wire.Submit[Any]) -> None:
        requests: list[Request] = command.requests
        ids = [request.request_id for request in requests]
        if taken := [request_id for request_id in ids if request_id in self._owners]:
            error = InvalidRequest(f"request {taken[0]!r} is running already")
            self._send_chunks(line, [failure(request_id, error) for request_id in ids])
            return
        line.live.update(ids)
        self._owners.update(dict.fromkeys(ids, line))
        self._calls.update({request.request_id: request.correlation for request in requests})
        if command.prefills:
            self._prefills.update(zip(ids, requests, strict=True))
        self.thread.take_in(requests, command.logs)

    def _refuse(self, api_server: str, request_ids: list[str], error: InvalidMessage) -> None:
        """Fail requests that cannot be decoded, if their ids can, so that no caller waits."""
        line = self._lines.get(api_server)
        if line and request_ids:
            self._send_chunks(line, [failure(request_id, error) for request_id in request_ids])

    def _set_backpressure(
        self, line: _ApiServerConnection, request_id: str, backpressured: bool
    ) -> None:
        (line.backpressured.add if backpressured else line.backpressured.discard)(request_id)
        self._engine.set_backpressure(request_id, backpressured or line.is_behind)

    def _acknowledge(self, line: _ApiServerConnection, num_messages: int) -> None:
        line.num_unacknowledged -= num_messages
        if line.is_behind and line.num_unacknowledged <= MAX_UNACKNOWLEDGED // 2:
            line.is_behind = False
            for request_id in line.live:
                self._engine.set_backpressure(request_id, request_id in line.backpressured)

    def _forget(self, api_server: str) -> None:
        self._gone.add(api_server)
        line = self._lines.pop(api_server, None)
        if line is None:  # it died before its `Hello`
            return
        for request_id in list(line.live):
            self._let_go(line, request_id)
            self.thread.end(request_id)
        self._moves.free(list(line.prefills))
        close_monitored(line.socket, line.monitor)

    def _forget_lost(self) -> None:
        for api_server, line in list(self._lines.items()):
            if line.monitor is not None and receive(line.monitor):
                logger.warning("the connection to %s is lost", api_server)
                self._forget(api_server)

    def _let_go(self, line: _ApiServerConnection, request_id: str) -> None:
        del self._owners[request_id]
        self._prefills.pop(request_id, None)
        self._calls.pop(request_id, None)
        line.live.discard(request_id)
        line.backpressured.discard(request_id)

    def _send_chunks(self, line: _ApiServerConnection, chunks: Iterable[Chunk]) -> None:
        send(line.socket, wire.encode_chunks(chunks))
        line.num_unacknowledged += 1
        if line.num_unacknowledged >= MAX_UNACKNOWLEDGED:
            line.is_behind = True
            for request_id in line.live:
                self._engine.set_backpressure(request_id, True)


# Returns the models, their backend, and the bytes of the weights of each, as far as known.
LoadModels = Callable[[EngineSpec], tuple[Mapping[str, Model], Backend, Mapping[str, int]]]


def run(control: Control, spec: EngineSpec, load: LoadModels) -> None:
    """Load the models and step until the supervisor is gone.

    Raises:
        IzwiError: A model or a setting cannot be used.
        OSError: The recording cannot be written.
    """
    engine, backend = _open_engine(spec, load)
    context: Context = zmq.Context.instance()
    lines = ApiServerConnections(
        *(engine, wire.RequestCodec(), context, _die), publishes=spec.publishes_prefixes
    )
    commands = open_socket(context, zmq.PULL)
    address = bind(commands, spec.address)
    if not spec.models_go:  # removed models may leave cycles behind
        settle()
    log_memory(engine.load)
    readers = Registry()  # of what a recording has as text
    if spec.record is not None:
        for name, folder in spec.models.items():
            readers.load(str(folder), name)
    recording = recorded(lines.thread, spec.record, readers, backend, spec.runtime)
    with recording:
        lines.thread.start()
        control.send(Ready(address))
        try:
            pass_on(control, commands, lines, backend)
            if is_remote(address):
                # API servers outlive what started this process: the end of their requests, which
                # the step thread would send, must not reach them, for other engines go on
                shutil.rmtree(spec.folder, ignore_errors=True)
                os._exit(0)
        finally:
            lines.thread.stop()
            commands.close()
            if backend is not None and backend.followers is not None:
                backend.followers.close()


def _open_engine(spec: EngineSpec, load: LoadModels) -> tuple[Stepped, Backend | None]:
    """Load the models; returns the engine and its backend, or None for another runner's."""
    runtime = spec.runtime
    if runtime.runner != OWN_RUNNER:
        device = runtime.device
        if spec.spread is not None:
            device = spread_device(device, spec.spread)
        family = runner_family(runtime.runner)
        engine: Stepped = family.open_engine(
            spec.models, own_device(device), runtime.dtype, spec.config
        )
        return engine, None
    models, backend, weight_bytes = load(spec)
    config = spec.config if not spec.num_beside else share_beside(spec, backend)
    return Engine(models, backend, config, weight_bytes=weight_bytes), backend


def _die() -> None:
    """Exit at once, whatever state the device is in: for the supervisor it is as if killed."""
    os._exit(DIED)


def load_models(
    spec: EngineSpec,
) -> tuple[Mapping[str, Model], Backend, Mapping[str, int]]:
    """Read checkpoints with their weights. Raises IzwiError; DoesNotFit before any is loaded."""
    where = spec.runtime
    if spec.rank_devices:
        # imported by few engines
        from izwi_api.serve.ranks import OtherRanks

        backend = OtherRanks(spec, _die).open_backend(spec)
    else:
        device = where.device
        if spec.spread is not None:
            device = spread_device(device, spec.spread)
        backend = open_backend(own_device(device), where.dtype, where.weights, where.attention)
    weight_bytes = prepare_device(backend, spec.models, spec.config, where.weights)
    models = {name: load_model(folder, backend) for name, folder in spec.models.items()}
    return models, backend, weight_bytes


def share_beside(spec: EngineSpec, backend: Backend) -> EngineConfig:
    """Return the budgets of an engine with a model that was added beside others on its device.

    It takes one share of what is configured. If the device's free memory is divided, it is that
    which others have left.
    """
    config = spec.config
    if config.kv_bytes or backend.memory().is_shared:
        return config
    left = max(1, config.max_models - spec.num_beside)

    def part(num_bytes: int) -> int:
        return num_bytes * left // config.max_models

    return replace(
        config,
        max_models=left,
        host_bytes=part(config.host_bytes),
        disk_bytes=part(config.disk_bytes),
        encoded_bytes=part(config.encoded_bytes),
    )


class _Removals:
    """Models that leave this engine once their requests have ended."""

    def __init__(self, lines: ApiServerConnections, backend: Backend | None):
        self._lines, self._backend = lines, backend
        self._leaving: dict[str, Future[None]] = {}

    def start(self, name: str) -> None:
        """Accept no more requests for a model."""
        self._leaving[name] = self._lines.remove(name)

    @property
    def wait_s(self) -> float:
        """Seconds until the next look."""
        return _REMOVAL_LOOK_S if self._leaving else BEAT_S

    def ended(self) -> list[str]:
        """Return models that have left since the last look; their memory is the device's again."""
        ended = [name for name, leaving in self._leaving.items() if leaving.done()]
        for name in ended:
            del self._leaving[name]
        if ended:
            self._lines.thread.enqueue(self._give_back)
        return ended

    def _give_back(self) -> None:
        if self._backend is not None:
            self._backend.memory()  # to measure it is to give back what nothing uses


def pass_on(
    control: Control, commands: Socket, lines: ApiServerConnections, backend: Backend | None
) -> None:
    """Pass on messages of API servers and of the supervisor, until the supervisor closes its end.

    While steps begin and end, heartbeats go to the supervisor.
    """
    looked_s, removals = time.monotonic(), _Removals(lines, backend)
    poller = zmq.Poller()
    poller.register(commands, zmq.POLLIN)
    poller.register(control.fileno(), zmq.POLLIN)
    while True:
        ready = dict(poller.poll(round(removals.wait_s * 1e3)))
        for name in removals.ended():
            control.send(ModelRemoved(name))
        if lines.thread.alive and lines.thread.busy_s < BEAT_S:
            control.beat()
        if time.monotonic() - looked_s >= BEAT_S:
            looked_s = time.monotonic()
            lines.forget_lost()
        if control.fileno() in ready:
            try:
                messages = control.receive()
            except EOFError:
                return
            for message in messages:
                if isinstance(message, ApiServerGone):
                    lines.forget(message.name)
                elif isinstance(message, RemoveModel):
                    removals.start(message.name)
        if commands in ready and (frames := receive(commands)):
            lines.receive(frames)


def main(load: LoadModels = load_models) -> None:
    """Run as the supervisor specifies.

    Args:
        load: Reads the models.
    """
    with child_process() as control:
        spec = control.first(EngineSpec)
        run(control, spec, load)
        # the supervisor has exited; if it was killed, remove its folder here
        shutil.rmtree(spec.folder, ignore_errors=True)
        if spec.rank_devices:  # at once: the device's library would wait for the other ranks
            os._exit(0)


if __name__ == "__main__":
    main()
