"""The API-server process: HTTP and WebSocket; loads neither weights nor torch."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp

from izwi.allocator import IDLE_S, settle, trim
from izwi.registry import Registry
from izwi.weightless import WeightlessBackend
from izwi_api.http.app import create_app
from izwi_api.http.app_state import AppState
from izwi_api.http.drain import Drain
from izwi_api.http.server import Server, server_config
from izwi_api.serve.control import (
    ApiServerSpec,
    Control,
    EngineGone,
    EngineUp,
    Ready,
    child_process,
)
from izwi_api.serve.listen_sockets import ListenSocket
from izwi_api.serve.process_log import leave_queries_out
from izwi_api.serve.remote_engine import RemoteEngine
from izwi_api.serve.wire import RequestCodec

logger = logging.getLogger(__name__)

# What does not let go after the supervisor's death is left behind.
_CUT_OFF_S = 2.0


class ApiServer(Server):
    """A server that the supervisor tells which engine there is.

    Args:
        config: Of uvicorn.
        drain: Of the app.
        drain_s: Seconds that what runs may take to finish.
        control: To the supervisor.
        engine: Of the app.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        drain: Drain,
        drain_s: float,
        control: Control,
        engine: RemoteEngine,
    ):
        super().__init__(config, drain, drain_s)
        self._running, self._control, self._engine = drain, control, engine
        self._num_seen, self._idle_s = 0, 0.0  # requests so far, and when that was last new

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and begin to hear the supervisor."""
        await super().startup(sockets)
        asyncio.get_running_loop().add_reader(self._control.fileno(), self._hear)
        self._control.send(Ready())

    async def on_tick(self, counter: int) -> bool:
        """Say that this API server works, and give memory back when it has had nothing to do."""
        now_s = time.monotonic()
        self._control.beat()
        if self._running.num_running or self.server_state.total_requests != self._num_seen:
            self._num_seen, self._idle_s = self.server_state.total_requests, now_s
        elif self._idle_s and now_s - self._idle_s > IDLE_S:
            self._idle_s = 0.0
            await asyncio.to_thread(trim)
        return await super().on_tick(counter)

    def _hear(self) -> None:
        try:
            messages = self._control.receive()
        except EOFError:
            logger.error("the supervisor is gone")
            asyncio.get_running_loop().remove_reader(self._control.fileno())
            self.should_exit = self.force_exit = True
            threading.Timer(_CUT_OFF_S, os._exit, (1,)).start()
            return
        for message in messages:
            if isinstance(message, EngineUp):
                self._engine.connect(message.address)
            elif isinstance(message, EngineGone):
                self._engine.disconnect()
                if self._running.is_begun:  # no other comes while the server leaves
                    self._engine.give_up()


LoadModels = Callable[[ApiServerSpec], Registry]


def load_weightless_models(spec: ApiServerSpec) -> Registry:
    """Read checkpoints without their weights. Raises IzwiError."""
    registry = Registry(WeightlessBackend())
    for name, folder in spec.models.items():
        registry.load(str(folder), name)
    return registry


def api_server_config(app: ASGIApp, spec: ApiServerSpec) -> uvicorn.Config:
    """Return how uvicorn is to serve an API server's app."""
    config = server_config(app, "", 0, spec.settings.pace.max_head_s, spec.settings.tls)
    if spec.metrics is not None:  # there are several API servers
        config.backlog = 1  # accepted in one go, so that a crowd spreads over them
        # uvloop, where it is installed, would listen anew, with a queue of one: who came second
        # would be lost
        config.loop = "asyncio"
    return config


def run(control: Control, spec: ApiServerSpec, registry: Registry) -> None:
    """Serve until the supervisor asks to leave.

    Raises:
        IzwiError: A setting cannot be used.
        OSError: A file that the settings name cannot be used.
    """
    engine = RemoteEngine(
        spec.name,
        spec.folder,
        RequestCodec(),
        sends_asks=spec.sends_asks,
        patience_s=spec.settings.resume_within_s,
    )
    app = create_app(engine, registry, spec.settings, metrics_folder=spec.metrics, kept=spec.kept)
    leave_queries_out()
    state: AppState = app.state.izwi
    state.services.decoder.start()
    settle()
    listen_sockets: list[socket.socket] = [
        ListenSocket(fileno=number) for number in spec.listen_sockets
    ]
    config = api_server_config(app, spec)
    ApiServer(config, state.drain, spec.drain_s, control, engine).run(listen_sockets)


def main(load: LoadModels = load_weightless_models) -> None:
    """Do what the supervisor says.

    Args:
        load: Reads the models.
    """
    with child_process() as control:
        spec = control.first(ApiServerSpec)
        run(control, spec, load(spec))


if __name__ == "__main__":
    main()
