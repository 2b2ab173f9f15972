"""The one thread that steps the engine: it takes commands from anywhere, and tells what it did."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import zip_longest
from typing import Protocol

from izwi import allocator
from izwi.engine import Engine
from izwi.errors import EngineStopped, IzwiError
from izwi.log import Log
from izwi.request import Chunk, Request
from izwi.stream import failure
from izwi.trace import Observer

logger = logging.getLogger(__name__)

# Where everything waits for readers or writers, a step is tried again after so long.
_REST_S = 0.02
# Less time than this is not worth going to sleep for.
_LEAST_SPARE_S = 2e-4


class Listener(Protocol):
    """Hears what the engine does, on its thread; must be quick, and must not raise."""

    def take(self, chunks: list[Chunk]) -> None:
        """Take what left the engine, in order; the last chunk of a request has a reason."""
        ...

    def stepped(self) -> None:
        """Hear that commands were done, and a step if there was anything to run."""
        ...


class SteppingThread:
    """Owns the engine. All methods but `start` are safe to call from any thread.

    Args:
        engine: Nobody else may touch it, its figures aside.
        listener: Hears of everything.
    """

    def __init__(self, engine: Engine, listener: Listener):
        self._engine, self._listener = engine, listener
        self._wake = threading.Condition()
        self._commands: deque[Callable[[], None]] = deque()
        self._live: set[str] = set()  # ids of requests that have not ended
        self._observer: Observer | None = None
        self._changes: list[tuple[str, Future[None]]] = []  # models that come or go, and who waits
        self._since_s: float | None = None  # when what runs now began
        self._stopping = False
        self._closed = False  # no command will be looked at any more
        self._thread = threading.Thread(target=self._run, name="izwi-engine", daemon=True)

    @property
    def alive(self) -> bool:
        """Whether the thread steps."""
        return self._thread.is_alive() and not self._stopping

    @property
    def busy_s(self) -> float:
        """For how long the thread has been at one step or one command; 0 between them."""
        since_s = self._since_s
        return 0.0 if since_s is None else time.monotonic() - since_s

    def observe(self, observer: Observer) -> None:
        """Tell an observer of every request and chunk; before `start`."""
        self._observer = observer

    def start(self) -> None:
        """Start stepping."""
        self._thread.start()

    def stop(self) -> None:
        """Stop after the step under way, and wait for it; live requests end with EngineStopped."""
        self.tell(self._halt)
        self._thread.join()

    def submit(self, requests: Sequence[Request]) -> bool:
        """Queue requests so that they enter the same step, all or none; False if it has stopped.

        What the queue refuses is told as the last chunk of each.
        """
        return self.alive and self.tell(lambda: self.take_in(requests))

    def abort(self, request_id: str) -> None:
        """End a request before the next step."""
        self.tell(lambda: self.end(request_id))

    def pause(self, request_id: str) -> None:
        """Stop a request where it is before the next step."""
        self.tell(lambda: self._engine.pause(request_id))

    def resume(self, request_id: str) -> None:
        """Let a paused request go on with the next sample or token."""
        self.tell(lambda: self._engine.resume(request_id))

    def write(self, request_id: str, text_ids: Sequence[int], closed: bool) -> None:
        """Write text to a request with open input; see `Engine.write`."""
        self.tell(lambda: self._engine.write(request_id, text_ids, closed))

    def hold(self, request_id: str, held: bool) -> None:
        """Stop or go on emitting for a request."""
        self.tell(lambda: self._engine.hold(request_id, held))

    def change(self, name: str, change: Callable[[], None]) -> Future[None]:
        """Do something to the model of a name, and wait until it is not leaving any more.

        Raises:
            EngineStopped: The engine does not run.
        """
        done: Future[None] = Future()

        def command() -> None:
            if not done.set_running_or_notify_cancel():
                return
            try:
                change()
            except Exception as error:
                done.set_exception(error)
            else:
                self._changes.append((name, done))

        if not self.alive or not self.tell(command):
            raise EngineStopped("the engine has stopped")
        return done

    def tell(self, command: Callable[[], None]) -> bool:
        """Leave a command for the thread; False if it looks at none any more."""
        with self._wake:
            if not self._closed:
                self._commands.append(command)
                self._wake.notify()
            return not self._closed

    def take_in(self, requests: Sequence[Request], logs: Sequence[Log] = ()) -> None:
        """As `submit`, for a command: it runs on the thread itself.

        Args:
            requests: To queue.
            logs: Where another engine has begun them: one each. They are in no trace.
        """
        self._live.update(request.request_id for request in requests)
        try:
            for request, log in zip_longest(requests, logs):
                self._engine.submit(request, log)
                if self._observer and log is None:
                    self._observer.submitted(request)
        except IzwiError as error:
            for request in requests:
                self._engine.abort(request.request_id)
            self._dispatch([failure(request.request_id, error) for request in requests])

    def end(self, request_id: str) -> None:
        """As `abort`, for a command."""
        self._dispatch(self._engine.abort(request_id))

    def _settle_changes(self) -> None:
        """Tell who waits for it that a model has come or gone."""
        for change in list(self._changes):
            name, done = change
            if name not in self._engine.leaving:
                self._changes.remove(change)
                done.set_result(None)

    def _run(self) -> None:
        with self._engine.own_stream():
            self._step_until_told()
        with self._wake:
            self._closed = True
        for command in self._commands:  # what came in while the last step ran
            self._guarded(command)
        self._fail_all(EngineStopped("the engine has stopped"))
        for _, done in self._changes:
            done.set_exception(EngineStopped("the engine has stopped"))

    def _step_until_told(self) -> None:
        rested = False
        while not self._stopping:
            busy, spare_s = self._engine.has_work, self._engine.spare_s
            # newcomers can still join the next step while a device is busy with the last
            is_early = spare_s > _LEAST_SPARE_S
            if is_early:
                timeout_s: float | None = spare_s
            elif busy:
                timeout_s = _REST_S
            else:
                timeout_s = None if rested else allocator.IDLE_S
            commands = self._next_commands(timeout_s, is_early)
            rested = not commands and not busy
            if rested:
                allocator.trim()
                continue
            for command in commands:
                self._guarded(command)
            if not self._stopping and self._engine.spare_s <= _LEAST_SPARE_S:
                self._guarded(self._step)
            self._settle_changes()
            self._listener.stepped()

    def _step(self) -> None:
        self._dispatch(self._engine.step())

    def _next_commands(self, timeout_s: float | None, is_early: bool) -> deque[Callable[[], None]]:
        """Wait for work, and take the commands that are there; none after the timeout.

        Args:
            timeout_s: None waits for ever.
            is_early: A step that could run is no reason to wait no longer.
        """
        engine = self._engine
        with self._wake:
            self._wake.wait_for(
                lambda: self._commands or (not is_early and engine.has_work and not engine.rests),
                timeout_s,
            )
            commands, self._commands = self._commands, deque()
        return commands

    def _guarded(self, work: Callable[[], None]) -> None:
        """Do something; if it fails, tell everybody and go on.

        What fails here is a bug outside any one row, and nobody may hang because of it.
        """
        self._since_s = time.monotonic()
        try:
            work()
        except Exception as error:
            logger.exception("the engine failed outside any one request")
            for request_id in list(self._live):
                self._engine.abort(request_id)
            self._fail_all(error)
        finally:
            self._since_s = None

    def _dispatch(self, chunks: list[Chunk]) -> None:
        for chunk in chunks:
            if self._observer:
                self._observer.chunk(chunk)
            if chunk.reason is not None:
                self._live.discard(chunk.request_id)
        if chunks:
            self._listener.take(chunks)

    def _fail_all(self, error: Exception) -> None:
        self._dispatch([failure(request_id, error) for request_id in list(self._live)])

    def _halt(self) -> None:
        self._stopping = True
