"""An engine and an API server in one process that communicate over sockets only."""

from __future__ import annotations

import asyncio
import itertools
import socket
import tempfile
import threading
from pathlib import Path

import zmq

from izwi.backends.torch.backend import TorchBackend
from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi_api.serve.control import ApiServerGone, Control
from izwi_api.serve.engine_process import ApiServerConnections, pass_on
from izwi_api.serve.remote_engine import RemoteEngine
from izwi_api.serve.sockets import close_monitored
from izwi_api.serve.wire import RequestCodec
from tests.engine.toy import ToyPrompt, ToySpeech

_numbers = itertools.count()


class EngineSide:
    """What the engine's process does, in threads."""

    def __init__(self, engine: Engine, codec: RequestCodec, *, publishes: bool = False):
        self.folder = tempfile.TemporaryDirectory(prefix="izwi-")
        self.path = Path(self.folder.name)
        self.address = f"ipc://{self.path / 'engine'}"
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self.lines = ApiServerConnections(engine, codec, context, publishes=publishes)
        ours, theirs = socket.socketpair()
        self.supervisor = Control(ours)
        self._control = Control(theirs)
        self._commands = context.socket(zmq.PULL)
        self._commands.set_hwm(0)
        self._commands.bind(self.address)
        self._receiving = threading.Thread(
            target=pass_on, args=(self._control, self._commands, self.lines, engine._backend)
        )

    def start(self) -> None:
        self.lines.thread.start()
        self._receiving.start()

    def forget(self, api_server: str) -> None:
        self.supervisor.send(ApiServerGone(api_server))

    def stop(self) -> None:
        self.supervisor.finish()
        self._receiving.join(60)
        self.lines.thread.stop()
        for line in self.lines._lines.values():
            close_monitored(line.socket, line.monitor)
        self._commands.close(linger=0)
        self.supervisor.close()
        self._control.close()
        self.folder.cleanup()


class OverSockets(RemoteEngine):
    """An API server's engine client, together with its engine."""

    def __init__(self, engine: Engine, codec: RequestCodec | None = None, patience_s: float = 0.0):
        codec = codec or RequestCodec([ToyPrompt])
        self._engine = engine
        self.side = EngineSide(engine, codec)
        name = f"api-server-{next(_numbers)}"
        super().__init__(name, self.side.path, codec, patience_s=patience_s)

    async def open(self) -> None:
        """Start both sides, and wait until they are connected."""
        self.side.start()
        self.connect(self.side.address)
        await until(lambda: self.alive)

    async def stop(self) -> None:
        await super().stop()
        if self.side.lines.thread.alive:
            await asyncio.to_thread(self.side.stop)


def toy_engine(**settings: int) -> Engine:
    model = ToySpeech()
    return Engine({"toy": model}, TorchBackend(model.ops), EngineConfig(page_size=4, **settings))  # type: ignore[arg-type]


async def until(condition, seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 (what is waited for sets no event)
            await asyncio.sleep(0.002)
