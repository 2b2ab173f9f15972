"""Commands of an operator that an API server carries out for the supervisor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from prometheus_client import generate_latest

from izwi.errors import EngineStopped, InvalidRequest, IzwiError
from izwi_api.http.app_state import AppState
from izwi_api.serve.control import Control, Operate, Operated
from izwi_api.serve.operator_socket import (
    LoadServed,
    PassedOn,
    ReadMetrics,
    UnloadServed,
    WarmReplicas,
)
from izwi_api.serve.remote_engine import RemoteEngine
from izwi_api.services.models.changes import Change
from izwi_api.services.warming import Warming


class Operations:
    """Carries out commands on the event loop, each as a task of its own.

    Args:
        control: The connection to the supervisor.
        state: What routes share.
        engines: Returns the clients of the engines that run.
    """

    def __init__(
        self, control: Control, state: AppState, engines: Callable[[], list[RemoteEngine]]
    ):
        self._control, self._state, self._engines = control, state, engines
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, message: Operate) -> None:
        """Carry out a command; `Operated` follows."""
        task = asyncio.get_running_loop().create_task(self._run(message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, message: Operate) -> None:
        answer = Operated(message.number, error="it failed; the server's log says why")
        try:
            answer = Operated(message.number, await self._carry_out(message.command))
        except IzwiError as error:
            answer = Operated(message.number, error=str(error))
        finally:
            self._control.send(answer)

    async def _carry_out(self, command: PassedOn) -> str:
        match command:
            case ReadMetrics():
                return generate_latest(self._state.metrics.registry).decode()
            case WarmReplicas():
                return await self._warm(command)
            case LoadServed():
                self._check_manages()
                return await _last_stage(self._state.changes.load(command.name))
            case UnloadServed():
                self._check_manages()
                return await _last_stage(self._state.changes.unload(command.name))

    async def _warm(self, command: WarmReplicas) -> str:
        """Warm one engine after the other, so that the others stay free for requests."""
        wanted = [one for one in self._engines() if command.replica in (None, one.replica)]
        if not wanted:
            raise EngineStopped("no such replica is running")
        warming = Warming(self._state.services, command.wanted)
        count = len(command.wanted.prompt) + len(command.wanted.voice)
        warmed = [f"replica {one.replica}: {await warming.warm(one)} of {count}" for one in wanted]
        return "\n".join(warmed)

    def _check_manages(self) -> None:
        if not self._state.services.settings.manage_models:
            raise InvalidRequest("start the server with --manage-models to load and unload models")


async def _last_stage(change: Change) -> str:
    stage = ""
    async for progress in change.follow():
        stage = progress.stage
    return f"{change.name}: {stage}"
