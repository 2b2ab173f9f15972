"""Load, unload and pull models at run time. A change continues if its caller disconnects."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from izwi.checkpoints.hub import DownloadProgress, Report, is_hub_id
from izwi.checkpoints.registry import Loaded
from izwi.engine_client.protocol import EngineClient
from izwi.errors import CheckpointError, EngineStopped, InvalidRequest, ModelNotFound
from izwi_api.services.models.served import Registry

logger = logging.getLogger(__name__)

LAST_STAGES = frozenset({"ready", "unloaded"})
_LOOK_EVERY_S = 0.25
# Proxies and clients close a stream that is idle.
_REPEAT_AFTER_S = 15.0


class Change:
    """A running load, unload or pull.

    Attributes:
        name: Name of the model.
    """

    def __init__(self, name: str, work: Callable[[Report], Awaitable[None]]):
        self.name = name
        self.is_stopped = False
        self._stages = [DownloadProgress("resolving")]
        self._task = asyncio.ensure_future(work(self._report))
        self._task.add_done_callback(self._log_failure)

    @property
    def is_done(self) -> bool:
        """Whether it has ended, successfully or not."""
        return self._task.done()

    async def follow(self) -> AsyncGenerator[DownloadProgress]:
        """Yield each stage and the progress within it; the last one tells the outcome.

        Raises:
            IzwiError: The change failed.
        """
        loop = asyncio.get_running_loop()
        stage, reported, reported_s = 0, None, 0.0
        while True:
            is_done = self.is_done
            while stage < len(self._stages) - 1:
                if reported is not self._stages[stage]:
                    yield self._stages[stage]
                stage += 1
            if is_done:
                break
            now_s = loop.time()
            if reported is not self._stages[stage] or now_s - reported_s > _REPEAT_AFTER_S:
                reported, reported_s = self._stages[stage], now_s
                yield reported
            await asyncio.wait({self._task}, timeout=_LOOK_EVERY_S)
        self._task.result()
        yield self._stages[-1]

    def _report(self, progress: DownloadProgress) -> None:
        """Record progress; called from any thread."""
        if self.is_stopped:
            raise EngineStopped("the server is stopping")
        if self._stages[-1].stage == progress.stage:
            self._stages[-1] = progress
        else:
            self._stages.append(progress)

    def _log_failure(self, task: asyncio.Future[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.warning("model %s: %s", self.name, error.__cause__ or error)


class ModelChanges:
    """Loads, unloads and pulls models of a server. Used from its event loop.

    Args:
        engine: The engine that runs the models.
        registry: The served models.
        offline: Never connect to the hub.
    """

    def __init__(self, engine: EngineClient, registry: Registry, *, offline: bool):
        self._engine, self._registry, self._offline = engine, registry, offline
        self._changes: dict[tuple[str, str], Change] = {}
        # Loading measures the free memory, so models are loaded one at a time.
        self._loading = asyncio.Lock()

    def load(self, name: str) -> Change:
        """Load and serve a model: embedded, from a known folder, or from the hub; ends "ready".

        Raises InvalidRequest while the model is being unloaded. The change fails with
        ModelNotFound, or with InvalidRequest if the checkpoint is broken or does not fit in memory.
        """
        leaving = self._changes.get(("unload", name))
        if leaving is not None and not leaving.is_done:
            raise InvalidRequest(f"model {name!r} is still being unloaded", param="model")

        async def work(report: Report) -> None:
            async with self._loading:
                if name not in self._registry.names():
                    folder = await self._locate(name, report)
                    report(DownloadProgress("loading"))
                    loaded = await self._read(name, folder)
                    await self._engine.add(name, loaded.model, folder)
                    self._registry.serve(name, loaded)
            report(DownloadProgress("ready"))

        return self._start_change("load", name, work)

    def pull(self, name: str) -> Change:
        """Download a model from the hub into the local cache without serving it; ends "ready".

        Raises ModelNotFound if the name is not a hub id. The change fails with ModelNotFound if
        the hub has no such model.
        """
        if not is_hub_id(name):
            raise ModelNotFound(f"{name!r} is not a hub id such as org/name", param="model")

        async def work(report: Report) -> None:
            await self._locate(name, report)
            report(DownloadProgress("ready"))

        return self._start_change("pull", name, work)

    def unload(self, name: str) -> Change:
        """Refuse new requests for a model, and free it after the running ones; ends "unloaded".

        Raises ModelNotFound if the model is not served, and InvalidRequest if its adapters are.
        """
        self._registry.model(name)
        if adapters := self._registry.adapters_of(name):
            raise InvalidRequest(
                f"model {name!r} has adapters: unload {', '.join(adapters)} first", param="model"
            )

        async def work(report: Report) -> None:
            report(DownloadProgress("unloading"))
            if self._registry.adapter(name) is None:
                await self._engine.remove(name)
            else:
                with suppress(ModelNotFound):  # an engine in this process knows none by name
                    await self._engine.remove(name)
            if name in self._registry.names():  # engines in other processes: it was the first step
                self._registry.unload(name)
            report(DownloadProgress("unloaded"))

        return self._start_change("unload", name, work)

    def stop(self) -> None:
        """Cancel downloads."""
        for change in self._changes.values():
            change.is_stopped = True

    async def _locate(self, name: str, report: Report) -> Path:
        locate = partial(self._registry.locate, name, offline=self._offline, report=report)
        return await asyncio.to_thread(locate)

    async def _read(self, name: str, folder: Path) -> Loaded:
        try:
            return await asyncio.to_thread(self._registry.read, folder, name)
        except CheckpointError as error:  # its message has paths: only for the log
            message = f"the checkpoint of {name!r} cannot be used; the server's log says why"
            raise InvalidRequest(message, param="model") from error

    def _start_change(
        self, verb: str, name: str, work: Callable[[Report], Awaitable[None]]
    ) -> Change:
        """Start a change, or join one that is running."""
        self._changes = {key: c for key, c in self._changes.items() if not c.is_done}
        if (verb, name) not in self._changes:
            self._changes[verb, name] = Change(name, work)
        return self._changes[verb, name]
