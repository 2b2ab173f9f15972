"""The supervisor: starts the server's processes, restarts those that die or hang, stops them."""

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

from izwi.checkpoints.registry import named
from izwi.errors import InvalidRequest, StartFailed
from izwi_api.console import messages
from izwi_api.serve.announcement import announce
from izwi_api.serve.child import Backoff, Child
from izwi_api.serve.control import (
    BEAT_S,
    ApiServerGone,
    ApiServerSpec,
    Control,
    EngineGone,
    EngineSpec,
    EngineUp,
    Failed,
    Message,
    Ready,
)
from izwi_api.serve.listen_sockets import open_listen_sockets, url_of
from izwi_api.serve.options import ADDRESS_TAKEN, ServeOptions

logger = logging.getLogger(__name__)

PROGRAMS = ("izwi_api.serve.engine_process", "izwi_api.serve.api_server_process")

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
        self._serve_options, self._models = serve_options, models
        self._listen_sockets, self._url = listen_sockets, url
        self._folder = Path()
        self._selector = selectors.DefaultSelector()
        self._engine: Child | None = None
        self._api_servers: set[Child] = set()
        self._address = ""  # of the engine if it is ready, else empty
        self._numbers = count()
        self._timers: list[_Timer] = []
        self._backoffs: dict[int | None, Backoff] = {}
        self._is_leaving = self._has_announced = False
        self._failure: StartFailed | None = None
        self._code = 0

    def run(self) -> int:
        """Serve until a signal asks to stop; return the exit code.

        Raises:
            StartFailed: A process could not start.
        """
        with _private_folder() as self._folder, self._signals():
            try:
                self._look()
                self._start_engine()
                for slot in range(self._serve_options.num_api_servers):
                    self._start_api_server(slot)
                while self._engine or self._api_servers or not self._is_leaving:
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
    def _start_engine(self) -> None:
        name = f"engine-{next(self._numbers)}"
        serve_options = self._serve_options
        address = f"ipc://{self._folder / name}"
        spec = EngineSpec(
            self._folder,
            address,
            self._models,
            serve_options.runtime,
            serve_options.config,
            serve_options.record,
        )
        self._engine = self._start(name, None, self._engine_program, spec)

    def _start_api_server(self, slot: int) -> None:
        name = f"api-server-{next(self._numbers)}"
        serve_options = self._serve_options
        metrics = self._folder / "metrics" if serve_options.num_api_servers > 1 else None
        if metrics is not None:
            metrics.mkdir(parents=True, exist_ok=True)
        spec = ApiServerSpec(
            name,
            self._folder,
            tuple(listener.fileno() for listener in self._listen_sockets),
            self._models,
            serve_options.settings,
            serve_options.drain_s,
            sends_asks=serve_options.record is not None,
            metrics=metrics,
            kept=self._folder / "kept.sqlite3",
        )
        api_server = self._start(
            name, slot, self._api_server_program, spec, spec.listen_sockets, metrics
        )
        self._api_servers.add(api_server)

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
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", program],
                stdin=theirs.fileno(),
                pass_fds=descriptors,
                env=environ,
                # Ctrl+C in the terminal is handled by this process, which tells the others
                start_new_session=True,
            )
        child = Child(name, slot, process, Control(ours))
        child.control.send(spec)
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
            self._notify_api_servers(EngineUp(self._address))
        elif self._address:
            child.control.send(EngineUp(self._address))
        if self._address and any(api_server.is_ready for api_server in self._api_servers):
            if not self._has_announced:
                logger.info("Uvicorn running on %s (Press CTRL+C to quit)", self._url)
                announce(self._url)
            self._has_announced = True

    def _look(self) -> None:
        """Kill processes that have stopped responding."""
        self._later(BEAT_S, self._look)
        limit_s, now_s = self._serve_options.settings.hung_after_s, time.monotonic()
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
        if child is self._engine:
            self._engine, self._address = None, ""
            self._notify_api_servers(EngineGone())
        else:
            self._forget_api_server(child)
        if self._is_leaving:
            if not self._api_servers:
                self._end_engine()
            return
        if not self._has_announced:
            self._fail(f"{child.name} ended with status {status} before it was ready", 1)
            return
        worked_s = time.monotonic() - child.ready_s if child.is_ready else 0.0
        wait_s = self._backoffs.setdefault(child.slot, Backoff()).after(worked_s)
        logger.error("%s ended with status %d; next in %.2f s", child.name, status, wait_s)
        self._later(wait_s, lambda: self._replace(child.slot))

    def _forget_api_server(self, api_server: Child) -> None:
        self._api_servers.discard(api_server)
        if self._engine is not None and self._engine.is_ready:
            self._engine.control.send(ApiServerGone(api_server.name))
        if self._serve_options.num_api_servers > 1:
            mark_process_dead(api_server.process.pid, str(self._folder / "metrics"))  # type: ignore[no-untyped-call]

    def _replace(self, slot: int | None) -> None:
        if self._is_leaving:
            return
        if slot is None:
            self._start_engine()
        else:
            self._start_api_server(slot)

    def _notify_api_servers(self, message: Message) -> None:
        for api_server in self._api_servers:
            if api_server.is_ready:
                api_server.control.send(message)

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
            self._end_engine()

    def _end_engine(self) -> None:
        if self._engine is None:
            return
        if self._engine.is_ready:
            self._engine.control.finish()
        else:  # it reads no messages while it loads
            self._engine.process.terminate()
        self._later(_GRACE_S, self._kill)

    def _kill(self) -> None:
        for child in self._children():
            logger.error("%s does not end: killed", child.name)
            child.process.kill()
            self._code = 1

    def _children(self) -> list[Child]:
        return [*self._api_servers, *([self._engine] if self._engine is not None else [])]

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
    return Supervisor(
        serve_options,
        models,
        listen_sockets,
        url_of(host, listen_sockets, serve_options.settings.tls),
    ).run()
