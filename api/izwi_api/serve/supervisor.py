"""The supervisor: starts the server's processes, restarts those that die or hang, stops them."""

from __future__ import annotations

import heapq
import logging
import os
import selectors
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from types import FrameType

from prometheus_client.multiprocess import mark_process_dead

from izwi.checkpoints.registry import named
from izwi.errors import InvalidRequest, StartFailed
from izwi.router.breaker import CircuitBreaker, CircuitEvent, change_circuit, open_circuits
from izwi_api.console import BAD_INPUT, messages
from izwi_api.serve.announcement import announce
from izwi_api.serve.child import Backoff, Child, start_process
from izwi_api.serve.control import (
    BEAT_S,
    ApiServerGone,
    ApiServerSpec,
    CircuitChanged,
    Drained,
    EngineAccepts,
    EngineDraining,
    EngineGone,
    EngineSpec,
    EngineUp,
    Failed,
    LoadModel,
    Message,
    ModelChanged,
    ModelKnown,
    ModelRemoved,
    Operate,
    Operated,
    Ready,
    RemoveModel,
    Restarted,
    UnloadModel,
)
from izwi_api.serve.listen_sockets import open_listen_sockets, url_of
from izwi_api.serve.operator_socket import (
    DrainReplica,
    ListReplicas,
    Operator,
    OperatorSocket,
    PassedOn,
    ReplicaInfo,
    Report,
    RestartReplicas,
    ResumeReplica,
)
from izwi_api.serve.options import ADDRESS_TAKEN, ServeOptions
from izwi_api.serve.roster import Roster
from izwi_api.services.models.adapter_option import check_adapters
from izwi_api.settings import upload_pieces

logger = logging.getLogger(__name__)

PROGRAMS = ("izwi_api.serve.engine_process", "izwi_api.serve.api_server_process")

# Seconds without a heartbeat after which the requests of an engine go to another one, if one
# accepts requests; a working engine sends one every 1 or 2 s. It is killed later, if at all.
_UNRESPONSIVE_S = 3.5
# Seconds that API servers may take to move the requests of an engine.
_DRAIN_S = 10.0
# Seconds from a replica's start until the next one is replaced: API servers connect to it first.
_SETTLE_S = 1.0
# Seconds until a process that was asked to stop is killed.
_GRACE_S = 10.0
_SECOND_GRACE_S = 3.0
# Names of sockets may have 104 bytes on macOS; ours need 32.
_MAX_FOLDER_CHARS = 70


@dataclass(order=True, slots=True)
class _Timer:
    due_s: float
    number: int
    action: Callable[[], None] = field(compare=False)


@dataclass(slots=True)
class _Replica:
    """The place of one engine, whose process comes and goes.

    Attributes:
        number: Its number.
        place: That of the first engine on its devices: itself, unless it was started later.
        num_beside: Models that its devices had then, if it was started later.
        devices: The devices of the engine's ranks, as `izwi serve` was told.
        child: Its process, or None between the death of one and the start of the next.
        is_drained: An operator has drained it.
        is_hung: It has stopped responding, and its requests were moved.
        is_restarting: Its process is being replaced on request.
        num_starts: Processes so far.
        reason: Why the last process ended; empty if none did, or on request.
        num_drains: How often its requests were moved on request.
        undrained: API servers that have not moved its requests yet.
        when_drained: What waits for them.
        circuits: Of models that fail there, as all API servers together have seen them.
    """

    number: int
    devices: tuple[str, ...]
    place: int
    num_beside: int = 0
    child: Child | None = None
    is_drained: bool = False
    is_hung: bool = False
    is_restarting: bool = False
    num_starts: int = 0
    reason: str = ""
    num_drains: int = 0
    undrained: set[str] = field(default_factory=set)
    when_drained: list[Callable[[], None]] = field(default_factory=list)
    circuits: dict[str, CircuitBreaker] = field(default_factory=dict)

    @property
    def is_ready(self) -> bool:
        """Whether its process is ready."""
        return self.child is not None and self.child.is_ready

    @property
    def accepts(self) -> bool:
        """Whether it gets requests."""
        return self.is_ready and not (self.is_drained or self.is_hung or self.is_restarting)

    @property
    def status(self) -> str:
        """What an operator is shown."""
        if self.child is None:
            return "restarting" if self.is_restarting else "failed"
        if not self.child.is_ready:
            return "restarting" if self.is_restarting else "starting"
        if self.is_restarting:
            return "draining"
        if self.is_hung:
            return "unresponsive"
        if self.is_drained:
            return "draining" if self.undrained else "drained"
        return "ready"


class Supervisor:
    """Runs the processes of a server, on the main thread.

    Args:
        serve_options: What to serve, by at least one API server.
        models: Folders by the name under which they are served.
        listen_sockets: The listening sockets from which the API servers accept.
        url: The server's address in the log.
        programs: Modules of the engine process and of an API-server process.
    """

    def __init__(
        self,
        serve_options: ServeOptions,
        models: Mapping[str, Path],
        listen_sockets: Sequence[socket.socket],
        url: str,
        programs: tuple[str, str] = PROGRAMS,
    ):
        self._engine_program, self._api_server_program = programs
        self._serve_options, self._folders = serve_options, dict(models)
        self._listen_sockets, self._url = listen_sockets, url
        self._folder = Path()
        self._selector = selectors.DefaultSelector()
        engines, usual = serve_options.replicas, serve_options.runtime.device
        self._replicas = {
            number: _Replica(number, engines.devices_of(number) or (usual,), number)
            for number in range(engines.count)
        }
        num_shares = max(len(models), serve_options.config.max_models)
        adapters = serve_options.adapters
        self._roster = Roster(models, engines.places_of, num_shares, self, adapters)
        self._to_restart: list[int] = []  # replicas that an operator wants to be replaced, in turn
        self._api_servers: set[Child] = set()
        self._first_models: dict[str, Mapping[str, Path]] = {}  # with which each was started
        self._numbers = count()
        # by number: commands that API servers carry out, each with the name of its API server
        self._operations: dict[int, tuple[Operator, str]] = {}
        self._num_replaced = 0  # API servers that were started again
        self._timers: list[_Timer] = []
        self._leaving: set[Child] = set()  # engines of models that were unloaded
        self._backoffs: dict[tuple[int | None, int | None], Backoff] = {}
        self._is_leaving = self._has_announced = False
        self._failure: StartFailed | None = None
        self._code = 0

    def run(self) -> int:
        """Serve until a signal asks to stop; return the exit code.

        Raises:
            StartFailed: A process could not start.
        """
        with _private_folder() as self._folder, self._signals(), self._operators():
            try:
                self._look()
                for replica in self._replicas.values():
                    self._start_engine(replica)
                for slot in range(self._serve_options.num_api_servers):
                    self._start_api_server(slot)
                while self._children() or not self._is_leaving:
                    self._turn()
            finally:
                for child in self._children():
                    child.process.kill()
                    child.process.wait()
                    child.control.close()
        if self._failure is not None:
            raise self._failure
        return self._code

    # -- starting ------------------------------------------------------------------------------
    def _start_engine(self, replica: _Replica, models: Mapping[str, Path] | None = None) -> None:
        name = f"engine-{next(self._numbers)}"
        serve_options, count = self._serve_options, self._serve_options.replicas.count
        models = models or self._models_of(replica)
        spec = EngineSpec(
            self._folder,
            self._address_of(name),
            models,
            replace(serve_options.runtime, device=replica.devices[0]),
            serve_options.config,
            serve_options.record,
            replica.number,
            publishes_prefixes=any(len(self._roster.engines_of(name)) > 1 for name in models)
            or (replica.number < count and count > 1)
            or replica.num_beside > 0,
            spread=replica.place if count > 1 else None,
            models_go=serve_options.settings.manage_models,
            num_beside=replica.num_beside,
            rank_devices=replica.devices if len(replica.devices) > 1 else (),
        )
        child = self._start(name, None, self._engine_program, spec)
        child.replica = replica.number
        replica.child, replica.num_starts = child, replica.num_starts + 1
        if self._num_restarts:
            self._notify_api_servers(self._restarted())

    def _models_of(self, replica: _Replica) -> Mapping[str, Path]:
        return {name: self._folders[name] for name in self._roster.models_of(replica.number)}

    def _address_of(self, name: str) -> str:
        """Return where an engine receives commands."""
        return f"ipc://{self._folder / name}"

    def _start_api_server(self, slot: int) -> None:
        name = f"api-server-{next(self._numbers)}"
        serve_options = self._serve_options
        metrics = self._folder / "metrics" if serve_options.num_api_servers > 1 else None
        if metrics is not None:
            metrics.mkdir(parents=True, exist_ok=True)
        most_pieces = upload_pieces(serve_options.config.max_waiting, serve_options.num_api_servers)
        spec = ApiServerSpec(
            name,
            self._folder,
            tuple(listener.fileno() for listener in self._listen_sockets),
            dict(self._roster.served),
            replace(serve_options.settings, max_upload_pieces=most_pieces),
            serve_options.drain_s,
            sends_asks=serve_options.record is not None,
            metrics=metrics,
            kept=self._folder / "kept.sqlite3",
            replicas=serve_options.replicas,
            runner=serve_options.runtime.runner,
        )
        api_server = self._start(
            name, slot, self._api_server_program, spec, spec.listen_sockets, metrics
        )
        self._api_servers.add(api_server)
        self._first_models[name] = spec.models

    def _start(
        self,
        name: str,
        slot: int | None,
        program: str,
        spec: EngineSpec | ApiServerSpec,
        descriptors: Sequence[int] = (),
        metrics: Path | None = None,
    ) -> Child:
        environ = dict(os.environ)
        if metrics is not None:
            environ["PROMETHEUS_MULTIPROC_DIR"] = str(metrics)
        self._folder.mkdir(mode=0o700, exist_ok=True)  # something may have cleaned up /tmp
        process, control = start_process(program, spec, descriptors, environ)
        child = Child(name, slot, process, control)
        self._selector.register(
            child.control, selectors.EVENT_READ, lambda: self._read_messages(child)
        )
        logger.info("%s: process %d", name, process.pid)
        return child

    # -- watching ------------------------------------------------------------------------------
    def _turn(self) -> None:
        """Wait for the next event, and handle it."""
        wait_s = max(0.0, self._timers[0].due_s - time.monotonic()) if self._timers else None
        for key, _ in self._selector.select(wait_s):
            key.data()
        while self._timers and self._timers[0].due_s <= time.monotonic():
            heapq.heappop(self._timers).action()

    def _read_messages(self, child: Child) -> None:
        try:
            messages = child.control.receive()
        except EOFError:
            self._handle_death(child)
            return
        child.heartbeat_s = time.monotonic()
        replica = self._replica_of(child)
        if replica is not None and replica.is_hung:
            self._accept_again(replica)
        for message in messages:
            match message:
                case Failed():
                    is_loading = replica is not None and self._roster.is_loading(replica.number)
                    if not (self._has_announced or is_loading):
                        self._fail(message.message, message.code)
                    else:
                        logger.error("%s: %s", child.name, message.message)
                    if replica is not None:
                        # who asks for a load may read what is wrong with it, but no paths
                        is_shown = not is_loading or message.code == BAD_INPUT
                        replica.reason = message.message if is_shown else ""
                case Ready():
                    self._welcome(child)
                case Drained():
                    if message.replica in self._replicas:
                        self._note_drained(self._replicas[message.replica], child.name)
                case CircuitChanged():
                    self._change_circuit(child, message)
                case Operated():
                    self._end_operation(message)
                case LoadModel():
                    self._folders[message.name] = message.folder
                    self._roster.load(message.name, message.folder, _to(child, message.name))
                case UnloadModel():
                    self._roster.unload(message.name, _to(child, message.name))
                case ModelKnown():
                    self._roster.known(child.name, message.name)
                case ModelRemoved() if replica is not None:
                    self._roster.model_removed(replica.number, message.name)

    def _change_circuit(self, sender: Child, message: CircuitChanged) -> None:
        """Note what one API server has seen of an engine, and let the others know."""
        if (replica := self._replicas.get(message.replica)) is None or not replica.is_ready:
            return
        change_circuit(replica.circuits, message.model, message.event, time.monotonic())
        for api_server in self._api_servers:
            if api_server.is_ready and api_server is not sender:
                api_server.control.send(message)

    def _replica_of(self, child: Child) -> _Replica | None:
        return None if child.replica is None else self._replicas.get(child.replica)

    # -- models that come and go ---------------------------------------------------------------
    def start_beside(self, replica: int, name: str, folder: Path, num_beside: int) -> int:
        """See `izwi_api.serve.roster.EngineHost`, also the methods that follow."""
        self._folders[name] = folder
        first = self._replicas[replica]
        number = next(one for one in count() if one not in self._replicas)
        new = self._replicas[number] = _Replica(number, first.devices, replica, num_beside)
        self._start_engine(new, {name: folder})
        return number

    def end_engine(self, replica: int) -> bool:
        """End an engine for good; one that is ready has no more requests."""
        gone = self._replicas.pop(replica)
        self._backoffs.pop((None, replica), None)
        self._notify_api_servers(EngineGone(replica, for_good=True))
        if (child := gone.child) is not None:
            self._leaving.add(child)
            if child.is_ready:
                child.control.finish()
            else:  # it reads no messages while it loads
                child.process.terminate()
        return gone.child is not None

    def remove_model(self, replica: int, name: str) -> bool:
        """Let an engine free a model, unless there is none."""
        child = self._replicas[replica].child
        if child is not None:
            child.control.send(RemoveModel(name))
        return child is not None

    def tell_api_servers(self, message: Message) -> set[str]:
        """Send a message to all API servers that are ready."""
        self._notify_api_servers(message)
        return {one.name for one in self._api_servers if one.is_ready}

    def _welcome(self, child: Child) -> None:
        child.is_ready, child.ready_s = True, time.monotonic()
        replica = self._replica_of(child)
        if replica is not None:
            replica.reason, replica.is_restarting = "", False
            for api_server in self._api_servers:
                if api_server.is_ready:
                    self._introduce(replica, api_server)
            self._later(_SETTLE_S, self._restart_next)
            self._roster.engine_ready(replica.number)
        else:
            for known in self._replicas.values():
                if known.is_ready:
                    self._introduce(known, child)
            for message in self._roster.news_for(self._first_models[child.name]):
                child.control.send(message)
            if self._num_restarts:
                child.control.send(self._restarted())
        are_ready = all(known.is_ready for known in self._replicas.values())
        if not self._has_announced and are_ready and any(one.is_ready for one in self._api_servers):
            logger.info("Uvicorn running on %s (Press CTRL+C to quit)", self._url)
            announce(self._url)
            self._has_announced = True

    def _introduce(self, replica: _Replica, api_server: Child) -> None:
        """Tell an API server of an engine that is ready, and whether it may send it requests."""
        assert replica.child is not None
        api_server.control.send(EngineUp(self._address_of(replica.child.name), replica.number))
        if not replica.accepts:
            api_server.control.send(EngineDraining(replica.number, is_hung=replica.is_hung))
        for model, circuit in replica.circuits.items():
            failed = CircuitChanged(replica.number, model, CircuitEvent.FAILED)
            for _ in range(circuit.num_failures):
                api_server.control.send(failed)

    def _look(self) -> None:
        """Kill processes that have stopped responding."""
        self._later(BEAT_S, self._look)
        limit_s, now_s = self._serve_options.settings.hung_after_s, time.monotonic()
        for replica in self._replicas.values():
            if replica.accepts and self._others_accept(replica) and replica.child is not None:
                silent_s = now_s - replica.child.heartbeat_s
                if silent_s > _UNRESPONSIVE_S:
                    self._move_from_hung(replica, silent_s)
        for child in self._children():
            if child.is_ready and not self._is_leaving and now_s - child.heartbeat_s > limit_s:
                logger.error(
                    "%s has not responded for %.0f s: killed", child.name, now_s - child.heartbeat_s
                )
                child.heartbeat_s = now_s  # its end is handled when its connection closes
                child.process.kill()

    def _handle_death(self, child: Child) -> None:
        """Tell the other processes that one has died, and schedule its restart."""
        self._selector.unregister(child.control)
        child.control.close()
        try:
            status = child.process.wait(_SECOND_GRACE_S)
        except subprocess.TimeoutExpired:
            child.process.kill()
            status = child.process.wait()
        if child in self._leaving:
            self._leaving.discard(child)
            if child.replica is not None:
                self._roster.engine_ended(child.replica)
            self._later(0.0, self._restart_next)
            return
        replica = self._replica_of(child)
        if replica is not None:
            replica.child, replica.is_hung = None, False
            replica.circuits.clear()
            self._roster.engine_ended(replica.number)
            self._notify_api_servers(EngineGone(replica.number))
        else:
            self._forget_api_server(child)
        if self._is_leaving:
            if not self._api_servers:
                self._end_engines()
            return
        if replica is not None and self._roster.is_loading(replica.number):
            reason = "its checkpoint cannot be used; the server's log says why"
            self._roster.engine_failed(replica.number, replica.reason or reason)
            return
        if not self._has_announced:
            self._fail(f"{child.name} ended with status {status} before it was ready", 1)
            return
        if replica is not None and replica.is_restarting and child.is_ready:
            logger.info("replica %d: %s has ended and is replaced", replica.number, child.name)
            self._start_engine(replica)
            return
        worked_s = time.monotonic() - child.ready_s if child.is_ready else 0.0
        wait_s = self._backoffs.setdefault((child.slot, child.replica), Backoff()).after(worked_s)
        logger.error("%s ended with status %d; next in %.2f s", child.name, status, wait_s)
        if replica is not None and not replica.reason:
            replica.reason = f"ended with status {status}"
        self._later(wait_s, lambda: self._replace(child))

    def _forget_api_server(self, api_server: Child) -> None:
        self._api_servers.discard(api_server)
        self._first_models.pop(api_server.name, None)
        self._roster.api_server_gone(api_server.name)
        for number, (_, name) in list(self._operations.items()):
            if name == api_server.name:
                self._end_operation(Operated(number, error="its API server has ended"))
        for replica in self._replicas.values():
            if replica.child is not None and replica.is_ready:
                replica.child.control.send(ApiServerGone(api_server.name))
            self._note_drained(replica, api_server.name)
        if self._serve_options.num_api_servers > 1:
            mark_process_dead(api_server.process.pid, str(self._folder / "metrics"))  # type: ignore[no-untyped-call]

    def _replace(self, child: Child) -> None:
        if self._is_leaving:
            return
        replica = self._replica_of(child)
        if replica is not None and replica.child is None:
            self._start_engine(replica)
        elif child.slot is not None:
            self._num_replaced += 1
            self._start_api_server(child.slot)
            self._notify_api_servers(self._restarted())

    def _restarted(self) -> Restarted:
        engines = {
            number: max(0, replica.num_starts - 1) for number, replica in self._replicas.items()
        }
        return Restarted(engines, self._num_replaced)

    @property
    def _num_restarts(self) -> int:
        restarted = self._restarted()
        return sum(restarted.engines.values()) + restarted.api_servers

    def _notify_api_servers(self, message: Message) -> None:
        for api_server in self._api_servers:
            if api_server.is_ready:
                api_server.control.send(message)

    # -- replicas ------------------------------------------------------------------------------
    def _others_accept(self, replica: _Replica) -> bool:
        """Whether each model of a replica has another one that accepts requests."""
        all_others = (one for one in self._replicas.values() if one is not replica)
        others = {other.number for other in all_others if other.accepts}
        return bool(others) and all(
            others.intersection(self._roster.engines_of(model))
            for model in self._roster.models_of(replica.number)
        )

    def _move_from_hung(self, replica: _Replica, silent_s: float) -> None:
        """Let the requests of an engine that does not respond go on at the others."""
        replica.is_hung = True
        logger.error(
            "replica %d has not responded for %.1f s: its requests go on elsewhere",
            *(replica.number, silent_s),
        )
        self._notify_api_servers(EngineDraining(replica.number, is_hung=True))

    def _accept_again(self, replica: _Replica) -> None:
        replica.is_hung = False
        logger.warning("replica %d responds again", replica.number)
        if replica.accepts:
            self._notify_api_servers(EngineAccepts(replica.number))

    def _drain(self, replica: _Replica, when_drained: Callable[[], None]) -> None:
        """Let API servers move the requests of an engine; then do something."""
        replica.undrained = {one.name for one in self._api_servers if one.is_ready}
        replica.when_drained.append(when_drained)
        self._notify_api_servers(EngineDraining(replica.number))
        replica.num_drains += 1
        number = replica.num_drains

        def give_up() -> None:
            if number == replica.num_drains:
                self._end_drain(replica)

        self._later(_DRAIN_S, give_up)
        if not replica.undrained:
            self._end_drain(replica)

    def _note_drained(self, replica: _Replica, api_server: str) -> None:
        if api_server in replica.undrained:
            replica.undrained.discard(api_server)
            if not replica.undrained:
                self._end_drain(replica)

    def _end_drain(self, replica: _Replica) -> None:
        replica.undrained.clear()
        waiting, replica.when_drained = replica.when_drained, []
        for action in waiting:
            action()

    def _restart_next(self) -> None:
        """Replace the process of the next replica in turn, once all others are ready."""
        if self._is_leaving or not self._to_restart:
            return
        everyone = self._replicas.values()
        if any(replica.is_restarting or not replica.is_ready for replica in everyone):
            return  # the turn comes when it is ready
        if (number := self._to_restart.pop(0)) not in self._replicas:
            self._restart_next()
            return
        replica = self._replicas[number]
        replica.is_restarting, child = True, replica.child
        assert child is not None
        # SIGTERM ends it at once: a request that could not move waits for the next process
        self._drain(replica, child.process.terminate)

    def _pass_on(self, operator: Operator, command: PassedOn) -> None:
        """Let an API server carry out a command."""
        ready = [one for one in self._api_servers if one.is_ready]
        if not ready:
            operator.answer(self._report("no API server is ready; retry later"))
            return
        number, api_server = next(self._numbers), min(ready, key=lambda one: one.name)
        self._operations[number] = operator, api_server.name
        api_server.control.send(Operate(number, command))

    def _end_operation(self, message: Operated) -> None:
        operator, _ = self._operations.pop(message.number)
        operator.answer(self._report(message.error, message.text))

    def _report(self, error: str = "", text: str = "") -> Report:
        now_s = time.monotonic()
        return Report(
            [
                ReplicaInfo(
                    replica.number,
                    "+".join(replica.devices),
                    replica.status,
                    child.process.pid if (child := replica.child) is not None else None,
                    now_s - child.ready_s if child is not None and child.is_ready else None,
                    replica.num_starts,
                    replica.reason,
                    open_circuits(replica.circuits, now_s),
                )
                for replica in self._replicas.values()
            ],
            error,
            text,
        )

    def _carry_out(self, operator: Operator) -> None:
        """Carry out an operator's command, and answer with what the replicas are then."""
        command = operator.command
        numbers = getattr(command, "replicas", None)
        number = getattr(command, "replica", None)
        named = [number] if number is not None else list(numbers or ())
        if unknown := [one for one in named if one not in self._replicas]:
            numbers_known = ", ".join(map(str, self._replicas))
            message = f"there is no replica {unknown[0]}; there are {numbers_known}"
            operator.answer(self._report(message))
            return
        match command:
            case ListReplicas():
                operator.answer(self._report())
            case DrainReplica():
                self._drain_for(operator, self._replicas[command.replica])
            case ResumeReplica():
                replica = self._replicas[command.replica]
                replica.is_drained = False
                if replica.accepts:
                    self._notify_api_servers(EngineAccepts(replica.number))
                operator.answer(self._report())
            case RestartReplicas():
                wanted = command.replicas or tuple(self._replicas)
                self._to_restart += [one for one in wanted if one not in self._to_restart]
                self._restart_next()
                operator.answer(self._report())
            case _:
                self._pass_on(operator, command)

    def _drain_for(self, operator: Operator, replica: _Replica) -> None:
        if not self._others_accept(replica):
            operator.answer(
                self._report(
                    f"replica {replica.number} cannot be drained: no other one accepts requests "
                    "for all of its models"
                )
            )
            return
        replica.is_drained = True
        self._drain(replica, lambda: operator.answer(self._report()))

    @contextmanager
    def _operators(self) -> Iterator[None]:
        """Listen for commands of operators, if there are several replicas or if it is wanted."""
        if len(self._replicas) == 1 and not self._serve_options.operators:
            yield
            return
        port = self._listen_sockets[0].getsockname()[1]
        with OperatorSocket.open(port, self._selector, self._carry_out):
            yield

    # -- ending --------------------------------------------------------------------------------
    def _fail(self, message: str, code: int) -> None:
        if self._failure is None:
            self._failure = StartFailed(message, exit_code=code)
            self._leave()

    def _leave(self) -> None:
        """Let API servers finish requests in flight; at a second signal, stop everything now."""
        for api_server in self._api_servers:
            api_server.process.terminate()
        if self._is_leaving:
            self._later(_SECOND_GRACE_S, self._kill)
            return
        self._is_leaving = True
        for listener in self._listen_sockets:
            listener.close()  # or clients connect after the last API server exits
        self._later(self._serve_options.drain_s + _GRACE_S, self._kill)
        if not self._api_servers:
            self._end_engines()

    def _end_engines(self) -> None:
        engines = self._engines()
        for engine in engines:
            if engine.is_ready:
                engine.control.finish()
            else:  # it reads no messages while it loads
                engine.process.terminate()
        if engines:
            self._later(_GRACE_S, self._kill)

    def _kill(self) -> None:
        for child in self._children():
            logger.error("%s does not end: killed", child.name)
            child.process.kill()
            self._code = 1

    def _children(self) -> list[Child]:
        return [*self._api_servers, *self._engines(), *self._leaving]

    def _engines(self) -> list[Child]:
        found = (replica.child for replica in self._replicas.values())
        return [child for child in found if child is not None]

    def _later(self, wait_s: float, action: Callable[[], None]) -> None:
        timer = _Timer(time.monotonic() + wait_s, next(self._numbers), action)
        heapq.heappush(self._timers, timer)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Make SIGTERM and SIGINT wake `_turn`."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.setblocking(False)
            self._selector.register(ours, selectors.EVENT_READ, lambda: self._obey(ours))
            before = {
                number: signal.signal(number, _noted) for number in (signal.SIGTERM, signal.SIGINT)
            }
            descriptor = signal.set_wakeup_fd(theirs.fileno())
            try:
                yield
            finally:
                signal.set_wakeup_fd(descriptor)
                for number, handler in before.items():
                    signal.signal(number, handler)

    def _obey(self, signals: socket.socket) -> None:
        for number in signals.recv(64):
            if number in (signal.SIGTERM, signal.SIGINT):
                self._leave()


def _to(api_server: Child, name: str) -> Callable[[str], None]:
    """Return what tells an API server how a change of a model has ended."""
    return lambda error: api_server.control.send(ModelChanged(name, error))


def _noted(number: int, frame: FrameType | None) -> None:
    """Do nothing: the wake-up socket reports the signal."""
    del number, frame


@contextmanager
def _private_folder() -> Iterator[Path]:
    """Make a folder with a short name that only this user can access."""
    parent = tempfile.gettempdir()
    with tempfile.TemporaryDirectory(
        prefix="izwi-",
        dir=parent if len(parent) <= _MAX_FOLDER_CHARS else "/tmp",
        ignore_cleanup_errors=True,
    ) as name:
        yield Path(name)


def serve_in_processes(serve_options: ServeOptions, host: str, port: int) -> int:
    """Serve until a signal asks to stop; return the exit code.

    Raises:
        ModelNotFound: A source is no checkpoint.
        InvalidRequest: Two models have the same name.
        StartFailed: A process could not start.
    """
    try:
        listen_sockets = open_listen_sockets(host, port)
    except OSError as error:
        logger.error("cannot listen on %s, port %d: %s", host or "all addresses", port, error)
        return ADDRESS_TAKEN
    with messages().status("looking for the models"):
        found = [
            named(source, offline=serve_options.runtime.offline) for source in serve_options.sources
        ]
    models = dict(found)
    if len(models) < len(found):
        names = [name for name, _ in found]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidRequest(
            f"--model: two models are called {twice!r}; give one another name: NAME={twice}"
        )
    check_adapters(serve_options.adapters, models)
    serve_options.replicas.check_models(models, may_come=serve_options.settings.manage_models)
    return Supervisor(
        serve_options,
        models,
        listen_sockets,
        url_of(host, listen_sockets, serve_options.settings.tls),
    ).run()
