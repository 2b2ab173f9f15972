"""The API-server process: HTTP and WebSocket; loads neither weights nor torch."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import uvicorn
from starlette.types import ASGIApp

from izwi.checkpoints.registry import Registry
from izwi.host.allocator import IDLE_S, settle, share_heaps, trim
from izwi_api.http.app_state import AppState
from izwi_api.http.drain import Drain
from izwi_api.http.metrics import Restarts
from izwi_api.http.server import Server, server_config
from izwi_api.serve.app import create_app
from izwi_api.serve.changing_models import ChangingModels
from izwi_api.serve.control import (
    ApiServerSpec,
    CircuitChanged,
    Control,
    Drained,
    EngineAccepts,
    EngineDraining,
    EngineGone,
    EngineUp,
    ForgetModel,
    ModelChanged,
    Operate,
    Ready,
    Restarted,
    ServeModel,
    child_process,
)
from izwi_api.serve.listen_sockets import ListenSocket
from izwi_api.serve.operations import Operations
from izwi_api.serve.remote_engine import RemoteEngine
from izwi_api.serve.replica_router import ReplicaRouter
from izwi_api.serve.wire import RequestCodec
from izwi_api.services.chat.answer import start_ahead

logger = logging.getLogger("izwi_api.serve.api_server_process")  # run as __main__

# Seconds after the supervisor's death until requests that still run are abandoned.
_CUT_OFF_S = 2.0


@dataclass(frozen=True, slots=True)
class Targets:
    """What the supervisor's messages change.

    Attributes:
        engine: The app's engine client.
        models: Follows models that come and go.
        restarts: What the app's metrics say of restarts.
        operations: Carries out commands of operators.
    """

    engine: ReplicaRouter
    models: ChangingModels
    restarts: Restarts
    operations: Operations


class ApiServer(Server):
    """An HTTP server that the supervisor tells which engine is running.

    Args:
        config: uvicorn's configuration.
        drain: The app's drain.
        drain_s: Seconds that requests in flight may take to finish.
        control: The connection to the supervisor.
        targets: What the supervisor's messages change.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        drain: Drain,
        drain_s: float,
        control: Control,
        targets: Targets,
    ):
        super().__init__(config, drain, drain_s)
        self._models, self._restarts = targets.models, targets.restarts
        self._operations = targets.operations
        self._running, self._control, self._engine = drain, control, targets.engine
        self._num_seen, self._idle_s = 0, 0.0  # requests so far, and when the last one arrived

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and start to receive the supervisor's messages."""
        await super().startup(sockets)
        asyncio.get_running_loop().add_reader(self._control.fileno(), self._read_messages)
        self._control.send(Ready())

    async def on_tick(self, counter: int) -> bool:
        """Send a heartbeat, and release memory after a time without requests."""
        now_s = time.monotonic()
        self._control.beat()
        if self._running.num_running or self.server_state.total_requests != self._num_seen:
            self._num_seen, self._idle_s = self.server_state.total_requests, now_s
        elif self._idle_s and now_s - self._idle_s > IDLE_S:
            self._idle_s = 0.0
            await asyncio.to_thread(trim)
        return await super().on_tick(counter)

    def _read_messages(self) -> None:
        try:
            messages = self._control.receive()
        except EOFError:
            logger.error("the supervisor is gone")
            asyncio.get_running_loop().remove_reader(self._control.fileno())
            self.should_exit = self.force_exit = True
            threading.Timer(_CUT_OFF_S, os._exit, (1,)).start()
            return
        for message in messages:
            match message:
                case EngineUp():
                    self._engine.connect(message.replica, message.address)
                case EngineGone():
                    if message.for_good:
                        self._engine.vacate(message.replica)
                    else:
                        self._engine.disconnect(message.replica)
                    if self._running.is_begun:  # a draining server gets no other engine
                        self._engine.give_up()
                case EngineDraining():
                    self._engine.drain(message.replica, is_hung=message.is_hung)
                    self._control.send(Drained(message.replica))
                case EngineAccepts():
                    self._engine.accept(message.replica)
                case CircuitChanged():
                    self._engine.change_circuit(message.replica, message.model, message.event)
                case Operate():
                    self._operations.start(message)
                case Restarted():
                    self._restarts.engines = message.engines
                    self._restarts.api_servers = message.api_servers
                case ServeModel() | ForgetModel():
                    self._models.follow(message)
                case ModelChanged():
                    self._models.changed(message)


LoadModels = Callable[[ApiServerSpec], Registry]


def load_frontends(spec: ApiServerSpec) -> Registry:
    """Read configurations and tokenizers. Raises IzwiError."""
    registry = Registry(runner=spec.runner)
    for name, folder in spec.models.items():
        registry.load(str(folder), name)
    return registry


def api_server_config(app: ASGIApp, spec: ApiServerSpec) -> uvicorn.Config:
    """Return uvicorn's configuration for an API server's app."""
    config = server_config(app, "", 0, spec.settings.pace.max_head_s, spec.settings.tls)
    if spec.metrics is not None:  # several API servers
        config.backlog = 1  # accept one connection at a time, so that bursts spread
        # uvloop, if installed, would call listen again with a queue of one, so that the second of
        # two simultaneous connections would be lost
        config.loop = "asyncio"
    return config


def _engine_client(spec: ApiServerSpec) -> ReplicaRouter:
    """Return a client of all engines; none is connected yet."""
    options, codec = spec.replicas, RequestCodec()

    def make_engine(replica: int) -> RemoteEngine:
        return RemoteEngine(
            *(spec.name, spec.folder, codec),
            sends_asks=spec.sends_asks,
            patience_s=spec.settings.resume_within_s,
            replica=replica,
        )

    engines = [make_engine(replica) for replica in range(options.count)]
    return ReplicaRouter(engines, options.router, options.min_ready, make_engine)


def run(control: Control, spec: ApiServerSpec, registry: Registry) -> None:
    """Serve until the supervisor asks to stop.

    Raises:
        IzwiError: A setting cannot be used.
        OSError: A file that the settings name cannot be used.
    """
    engine = _engine_client(spec)
    models = ChangingModels(control, registry, engine)
    if spec.settings.manage_models:
        engine.changes = models
    engine.share_circuits(lambda *change: control.send(CircuitChanged(*change)))
    app = create_app(engine, registry, spec.settings, metrics_folder=spec.metrics, kept=spec.kept)
    state: AppState = app.state.izwi
    state.services.decoder.start()
    start_ahead(registry)
    if not spec.settings.manage_models:  # unloaded models may leave cycles behind
        settle()
    listen_sockets: list[socket.socket] = [
        ListenSocket(fileno=number) for number in spec.listen_sockets
    ]
    config = api_server_config(app, spec)
    operations = Operations(control, state, engine.running)
    targets = Targets(engine, models, state.metrics.restarts, operations)
    ApiServer(config, state.drain, spec.drain_s, control, targets).run(listen_sockets)


def main(load: LoadModels = load_frontends) -> None:
    """Run as the supervisor specifies.

    Args:
        load: Reads the models.
    """
    share_heaps()
    with child_process() as control:
        spec = control.first(ApiServerSpec)
        run(control, spec, load(spec))


if __name__ == "__main__":
    main()
