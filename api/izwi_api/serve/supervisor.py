"""The parent of the server's processes: starts them, watches them, and ends them."""

from __future__ import annotations

import heapq
import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import FrameType

from prometheus_client.multiprocess import mark_process_dead

from izwi.registry import named
from izwi_api.cli.options import messages
from izwi_api.serve.child import Backoff, Child
from izwi_api.serve.control import (
    BEAT_S,
    Control,
    DoorGone,
    DoorSpec,
    EngineGone,
    EngineSpec,
    EngineUp,
    Failed,
    Message,
    Ready,
)
from izwi_api.serve.listeners import open_listeners, url_of
from izwi_api.serve.plan import ADDRESS_TAKEN, Plan, StartFailed

logger = logging.getLogger(__name__)

PROGRAMS = ("izwi_api.serve.engine_process", "izwi_api.serve.door_process")

# After what was asked for nicely.
_GRACE_S = 10.0
_SECOND_GRACE_S = 3.0
# Names of sockets may have 104 bytes on macOS; ours need 32.
_MAX_FOLDER_CHARS = 70


@dataclass(order=True, slots=True)
class _Timer:
    due_s: float
    number: int
    action: Callable[[], None] = field(compare=False)


class Supervisor:
    """Runs a plan. Lives on the main thread.

    Args:
        plan: What is to be served, by one door at least.
        models: Folders by the name under which they are served.
        listeners: Sockets that listen; the doors accept from them.
        url: What they are called in the log.
        programs: Modules of the engine's process and of a door's.
    """

    def __init__(
        self,
        plan: Plan,
        models: Mapping[str, Path],
        listeners: Sequence[socket.socket],
        url: str,
        programs: tuple[str, str] = PROGRAMS,
    ):
        self._engine_program, self._door_program = programs
        self._plan, self._models = plan, models
        self._listeners, self._url = listeners, url
        self._folder = Path()
        self._selector = selectors.DefaultSelector()
        self._engine: Child | None = None
        self._doors: set[Child] = set()
        self._address = ""  # of the engine that is ready, else empty
        self._numbers = count()
        self._timers: list[_Timer] = []
        self._backoffs: dict[int | None, Backoff] = {}
        self._is_leaving = self._has_announced = False
        self._failure: StartFailed | None = None
        self._code = 0

    def run(self) -> int:
        """Serve until a signal asks to leave; the exit code.

        Raises:
            StartFailed: A process could not begin.
        """
        with _private_folder() as self._folder, self._signals():
            try:
                self._look()
                self._start_engine()
                for slot in range(self._plan.num_doors):
                    self._start_door(slot)
                while self._engine or self._doors or not self._is_leaving:
                    self._turn()
            finally:
                for child in self._children():
                    child.process.kill()
                    child.process.wait()
        if self._failure is not None:
            raise self._failure
        return self._code

    # -- starting ------------------------------------------------------------------------------
    def _start_engine(self) -> None:
        name = f"engine-{next(self._numbers)}"
        plan = self._plan
        address = f"ipc://{self._folder / name}"
        spec = EngineSpec(
            self._folder, address, self._models, plan.where, plan.config, plan.record_trace
        )
        self._engine = self._start(name, None, self._engine_program, spec)

    def _start_door(self, slot: int) -> None:
        name = f"door-{next(self._numbers)}"
        plan = self._plan
        metrics = self._folder / "metrics" if plan.num_doors > 1 else None
        if metrics is not None:
            metrics.mkdir(parents=True, exist_ok=True)
        spec = DoorSpec(
            name,
            self._folder,
            tuple(listener.fileno() for listener in self._listeners),
            self._models,
            plan.settings,
            plan.drain_s,
            sends_asks=plan.record_trace is not None,
            metrics=metrics,
        )
        door = self._start(name, slot, self._door_program, spec, spec.listeners, metrics)
        self._doors.add(door)

    def _start(
        self,
        name: str,
        slot: int | None,
        program: str,
        spec: EngineSpec | DoorSpec,
        descriptors: Sequence[int] = (),
        metrics: Path | None = None,
    ) -> Child:
        environ = dict(os.environ)
        if metrics is not None:
            environ["PROMETHEUS_MULTIPROC_DIR"] = str(metrics)
        self._folder.mkdir(mode=0o700, exist_ok=True)  # who tidies up /tmp may have taken it
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", program],
                stdin=theirs.fileno(),
                pass_fds=descriptors,
                env=environ,
                # Ctrl+C in the terminal is for this process, which passes it on
                start_new_session=True,
            )
        child = Child(name, slot, process, Control(ours))
        child.control.send(spec)
        self._selector.register(child.control, selectors.EVENT_READ, lambda: self._hear(child))
        logger.info("%s: process %d", name, process.pid)
        return child

    # -- watching ------------------------------------------------------------------------------
    def _turn(self) -> None:
        """Wait for the next thing to happen, and do what it asks for."""
        wait_s = max(0.0, self._timers[0].due_s - time.monotonic()) if self._timers else None
        for key, _ in self._selector.select(wait_s):
            key.data()
        while self._timers and self._timers[0].due_s <= time.monotonic():
            heapq.heappop(self._timers).action()

    def _hear(self, child: Child) -> None:
        try:
            messages = child.control.receive()
        except EOFError:
            self._bury(child)
            return
        child.heard_s = time.monotonic()
        for message in messages:
            if isinstance(message, Failed) and not self._has_announced:
                self._fail(message.message, message.code)
            elif isinstance(message, Failed):
                logger.error("%s: %s", child.name, message.message)
            elif isinstance(message, Ready):
                self._welcome(child)

    def _welcome(self, child: Child) -> None:
        child.is_ready, child.ready_s = True, time.monotonic()
        if child is self._engine:
            self._address = f"ipc://{self._folder / child.name}"
            self._tell_doors(EngineUp(self._address))
        elif self._address:
            child.control.send(EngineUp(self._address))
        if self._address and any(door.is_ready for door in self._doors):
            if not self._has_announced:
                logger.info("Uvicorn running on %s (Press CTRL+C to quit)", self._url)
            self._has_announced = True

    def _look(self) -> None:
        """End who works no more without having died, as if it had."""
        self._later(BEAT_S, self._look)
        limit_s, now_s = self._plan.settings.hung_after_s, time.monotonic()
        for child in self._children():
            if child.is_ready and not self._is_leaving and now_s - child.heard_s > limit_s:
                logger.error("%s has hung for %.0f s: killed", child.name, now_s - child.heard_s)
                child.heard_s = now_s  # it is buried when its end is heard
                child.process.kill()

    def _bury(self, child: Child) -> None:
        """Tell the others that a process has ended, and start the next one in its place."""
        self._selector.unregister(child.control)
        child.control.close()
        try:
            status = child.process.wait(_SECOND_GRACE_S)
        except subprocess.TimeoutExpired:
            child.process.kill()
            status = child.process.wait()
        if child is self._engine:
            self._engine, self._address = None, ""
            self._tell_doors(EngineGone())
        else:
            self._forget_door(child)
        if self._is_leaving:
            if not self._doors:
                self._end_engine()
            return
        if not self._has_announced:
            self._fail(f"{child.name} ended with status {status} before it was ready", 1)
            return
        worked_s = time.monotonic() - child.ready_s if child.is_ready else 0.0
        wait_s = self._backoffs.setdefault(child.slot, Backoff()).after(worked_s)
        logger.error("%s ended with status %d; next in %.2f s", child.name, status, wait_s)
        self._later(wait_s, lambda: self._replace(child.slot))

    def _forget_door(self, door: Child) -> None:
        self._doors.discard(door)
        if self._engine is not None and self._engine.is_ready:
            self._engine.control.send(DoorGone(door.name))
        if self._plan.num_doors > 1:
            mark_process_dead(door.process.pid, str(self._folder / "metrics"))  # type: ignore[no-untyped-call]

    def _replace(self, slot: int | None) -> None:
        if self._is_leaving:
            return
        if slot is None:
            self._start_engine()
        else:
            self._start_door(slot)

    def _tell_doors(self, message: Message) -> None:
        for door in self._doors:
            if door.is_ready:
                door.control.send(message)

    # -- ending --------------------------------------------------------------------------------
    def _fail(self, message: str, code: int) -> None:
        if self._failure is None:
            self._failure = StartFailed(message, code)
            self._leave()

    def _leave(self) -> None:
        """Let the doors finish what runs; asked twice, let all end now."""
        for door in self._doors:
            door.process.terminate()
        if self._is_leaving:
            self._later(_SECOND_GRACE_S, self._kill)
            return
        self._is_leaving = True
        for listener in self._listeners:
            listener.close()  # else clients would wait for a door after the last has left
        self._later(self._plan.drain_s + _GRACE_S, self._kill)
        if not self._doors:
            self._end_engine()

    def _end_engine(self) -> None:
        if self._engine is None:
            return
        if self._engine.is_ready:
            self._engine.control.finish()
        else:  # it hears nothing while it loads
            self._engine.process.terminate()
        self._later(_GRACE_S, self._kill)

    def _kill(self) -> None:
        for child in self._children():
            logger.error("%s does not end: killed", child.name)
            child.process.kill()
            self._code = 1

    def _children(self) -> list[Child]:
        return [*self._doors, *([self._engine] if self._engine is not None else [])]

    def _later(self, wait_s: float, action: Callable[[], None]) -> None:
        timer = _Timer(time.monotonic() + wait_s, next(self._numbers), action)
        heapq.heappush(self._timers, timer)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Let SIGTERM and SIGINT be something that `_turn` waits for."""
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


def _noted(number: int, frame: FrameType | None) -> None:
    """Nothing: the wake-up socket tells."""
    del number, frame


@contextmanager
def _private_folder() -> Iterator[Path]:
    """A folder that only this user can look into, with a short name."""
    parent = tempfile.gettempdir()
    with tempfile.TemporaryDirectory(
        prefix="izwi-",
        dir=parent if len(parent) <= _MAX_FOLDER_CHARS else "/tmp",
        ignore_cleanup_errors=True,
    ) as name:
        yield Path(name)


def serve_in_processes(plan: Plan, host: str, port: int) -> int:
    """Serve until a signal asks to leave; the exit code.

    Raises:
        ModelNotFound: A source is no checkpoint.
        StartFailed: A process could not begin.
    """
    try:
        listeners = open_listeners(host, port)
    except OSError as error:
        logger.error("cannot listen at %s, port %d: %s", host or "all addresses", port, error)
        return ADDRESS_TAKEN
    with messages().status("looking for the models"):
        models = dict(named(source, offline=plan.where.offline) for source in plan.sources)
    return Supervisor(plan, models, listeners, url_of(host, listeners)).run()
