"""Models that come and go, as one API server sees them: it asks the supervisor, and follows it."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from izwi.checkpoints.registry import Registry
from izwi.errors import EngineStopped, InvalidRequest, IzwiError
from izwi_api.serve.control import (
    Control,
    ForgetModel,
    LoadModel,
    ModelChanged,
    ModelKnown,
    ServeModel,
    UnloadModel,
)
from izwi_api.serve.replica_router import ReplicaRouter

logger = logging.getLogger(__name__)

# Seconds between looks at the requests of a model that is unloaded.
_LOOK_S = 0.05


class ChangingModels:
    """Implements `izwi_api.serve.replica_router.ChangesModels`, on the event loop.

    Args:
        control: The connection to the supervisor.
        registry: The frontends of the served models.
        router: Places requests on the engines.
    """

    def __init__(self, control: Control, registry: Registry, router: ReplicaRouter):
        self._control, self._registry, self._router = control, registry, router
        self._asked: dict[str, asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._order = asyncio.Lock()  # the supervisor's messages are carried out in their order

    async def load(self, name: str, folder: Path) -> None:
        """Serve another model by engine processes of its own, on all API servers.

        Raises:
            InvalidRequest: It cannot be loaded.
            EngineStopped: The server stops.
        """
        await self._ask(LoadModel(name, folder))

    async def unload(self, name: str) -> None:
        """Serve a model no more; all API servers finish what runs. Raises as `load`."""
        await self._ask(UnloadModel(name))

    def stop(self) -> None:
        """End what still waits with EngineStopped."""
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(EngineStopped("the server is stopping"))
        for task in self._tasks:
            task.cancel()

    def changed(self, message: ModelChanged) -> None:
        """Answer who asked for a change."""
        asked = self._asked.get(message.name)
        if asked is None or asked.done():
            return
        if message.error:
            asked.set_exception(InvalidRequest(message.error, param="model"))
        else:
            asked.set_result(None)

    def follow(self, message: ServeModel | ForgetModel) -> None:
        """Carry out what all API servers receive; `ModelKnown` follows."""
        task = asyncio.get_running_loop().create_task(self._follow(message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _follow(self, message: ServeModel | ForgetModel) -> None:
        if isinstance(message, ServeModel):
            async with self._order:
                await self._serve(message)
        else:
            if message.name in self._registry.names():
                self._registry.unload(message.name)
            while self._router.num_requests_of(message.name):  # noqa: ASYNC110
                await asyncio.sleep(_LOOK_S)
            self._router.place_model(message.name, ())
        self._control.send(ModelKnown(message.name))

    async def _serve(self, message: ServeModel) -> None:
        self._router.place_model(message.name, message.replicas)
        if message.name in self._registry.names():
            return
        try:
            loaded = await asyncio.to_thread(self._registry.read, message.folder, message.name)
        except (IzwiError, OSError):  # it was readable when the load was asked for
            logger.exception("cannot serve %s", message.name)
            return
        self._registry.serve(message.name, loaded)

    async def _ask(self, message: LoadModel | UnloadModel) -> None:
        asked = self._asked[message.name] = asyncio.get_running_loop().create_future()
        self._control.send(message)
        try:
            await asked
        finally:
            self._asked.pop(message.name, None)
