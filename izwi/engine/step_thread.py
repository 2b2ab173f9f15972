"""The step thread: takes commands from any thread, steps the engine, and passes on the output."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import zip_longest
from typing import Protocol, TypeVar

from izwi.engine.stepped import Stepped
from izwi.engine_client.output_stream import failure
from izwi.errors import EngineStopped, IzwiError
from izwi.host import allocator
from izwi.request.log import Log
from izwi.request.request import Chunk, Request

Seen = TypeVar("Seen")
logger = logging.getLogger(__name__)

# Seconds after which a step is tried again while everything waits for readers or input.
_REST_S = 0.02
# Shorter waits are skipped.
_LEAST_SPARE_S = 2e-4


class Observer(Protocol):
    """An observer of the engine, called by the step thread; must be quick, and must not raise."""

    def submitted(self, request: Request) -> None:
        """Handle a request that the engine has accepted."""
        ...

    def written(self, request_id: str, text_ids: Sequence[int]) -> None:
        """Handle text ids that were written to a request."""
        ...

    def chunk(self, chunk: Chunk) -> None:
        """Handle a chunk of the engine's output; called for all requests, in order."""
        ...


class ChunkSink(Protocol):
    """Receives the engine's output on the step thread; must be quick and must not raise."""

    def deliver(self, chunks: list[Chunk]) -> None:
        """Take the output of a step, in order; the last chunk of a request has a reason."""
        ...

    def stepped(self) -> None:
        """Called after commands and, if there was work, a step."""
        ...

    def ended(self, broken: BaseException | None) -> None:
        """Called when the thread ends; no command is run and no chunk is sent after that.

        Args:
            broken: The error that the engine could not recover from; None if it was stopped, after
                every request got its last chunk.
        """
        ...


class SteppingThread:
    """Owns the engine. All methods except `start` are safe to call from any thread.

    Args:
        engine: Used by this thread only, except for its figures.
        sink: Receives the output.
    """

    def __init__(self, engine: Stepped, sink: ChunkSink):
        self._engine, self._sink = engine, sink
        self._wake = threading.Condition()
        self._commands: deque[Callable[[], None]] = deque()
        self._live: set[str] = set()  # ids of requests that have not ended
        # commands for requests whose adapters are being read
        self._deferred: dict[str, list[Callable[[], None]]] = {}
        self._reader: ThreadPoolExecutor | None = None  # of adapters
        self._observer: Observer | None = None
        self._changes: list[tuple[str, Future[None]]] = []  # models that change
        self._asked: set[Future[None]] = set()  # of all unfinished changes
        self._since_s: float | None = None  # when the current step or command began
        self._stopping = False
        self._closed = False  # no more commands are run
        self._thread = threading.Thread(target=self._run, name="izwi-engine", daemon=True)

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive() and not self._stopping and not self._closed

    @property
    def busy_s(self) -> float:
        """Seconds since the current step or command began; 0 between them."""
        since_s = self._since_s
        return 0.0 if since_s is None else time.monotonic() - since_s

    def observe(self, observer: Observer) -> None:
        """Set an observer, called for every request and chunk. Call it before `start`."""
        self._observer = observer

    def start(self) -> None:
        """Start stepping."""
        self._thread.start()

    def stop(self) -> None:
        """Stop after the step in flight, and wait for it; live requests end with EngineStopped."""
        self.enqueue(self._halt)
        self._thread.join()

    def submit(self, requests: Sequence[Request]) -> bool:
        """Queue requests so that they enter the same step, all or none; False if it has stopped.

        A refusal by the queue is the last chunk of each.
        """
        return self.alive and self.enqueue(lambda: self.take_in(requests))

    def abort(self, request_id: str) -> None:
        """End a request before the next step."""
        self.enqueue(lambda: self.end(request_id))

    def pause(self, request_id: str) -> None:
        """Pause a request before the next step."""
        self._enqueue_for(request_id, lambda: self._engine.pause(request_id))

    def resume(self, request_id: str) -> None:
        """Resume a paused request with the next sample or token."""
        self._enqueue_for(request_id, lambda: self._engine.resume(request_id))

    def write(self, request_id: str, text_ids: Sequence[int], closed: bool) -> None:
        """Write text to a request with open input; see `Engine.write`."""
        self.enqueue(lambda: self.write_to(request_id, text_ids, closed))

    def set_backpressure(self, request_id: str, backpressured: bool) -> None:
        """Turn backpressure on or off for a request."""
        self._enqueue_for(
            request_id, lambda: self._engine.set_backpressure(request_id, backpressured)
        )

    def change(self, name: str, change: Callable[[], None]) -> Future[None]:
        """Add or remove a model on the thread; the future completes when that has taken effect.

        Raises:
            EngineStopped: The engine is not running.
        """
        done: Future[None] = Future()
        self._asked.add(done)
        done.add_done_callback(self._asked.discard)

        def command() -> None:
            if not done.set_running_or_notify_cancel():
                return
            try:
                change()
            except Exception as error:
                done.set_exception(error)
            else:
                self._changes.append((name, done))

        if not self.alive or not self.enqueue(command):
            self._asked.discard(done)
            raise EngineStopped("the engine has stopped")
        return done

    def _enqueue_for(self, request_id: str, command: Callable[[], None]) -> None:
        def run() -> None:
            if not self.deferred(request_id, command):
                command()

        self.enqueue(run)

    def enqueue(self, command: Callable[[], None]) -> bool:
        """Queue a command; False if the thread accepts no more."""
        with self._wake:
            if not self._closed:
                self._commands.append(command)
                self._wake.notify()
            return not self._closed

    def take_in(self, requests: Sequence[Request], logs: Sequence[Log] = ()) -> None:
        """Do the same as `submit`, in a command.

        Adapters are read by another thread first, which others' steps do not wait for. Until then
        commands for these requests are `deferred`.

        Args:
            requests: The requests.
            logs: The log of each if another engine has begun them. These are not recorded.
        """
        reads = self._engine.unread_adapters(requests)
        if not reads:
            self._take_in(requests, logs)
            return
        self._deferred.update({request.request_id: [] for request in requests})

        def read() -> None:
            try:
                for one in reads:
                    one()
            finally:  # what failed is read again, and fails there
                self.enqueue(lambda: self._take_in_deferred(requests, logs))

        # one after the other: they wait for the same disk
        if self._reader is None:
            self._reader = ThreadPoolExecutor(1, thread_name_prefix="izwi-adapters")
        self._reader.submit(read)

    def deferred(self, request_id: str, command: Callable[[], None]) -> bool:
        """Return whether a command for a request has to wait for it, and will be run behind it."""
        waiting = self._deferred.get(request_id)
        if waiting is not None:
            waiting.append(command)
        return waiting is not None

    def _take_in_deferred(self, requests: Sequence[Request], logs: Sequence[Log]) -> None:
        ids = [request.request_id for request in requests]
        waiting = [self._deferred.pop(request_id, None) for request_id in ids]
        if None in waiting:  # they have failed with all others
            return
        self._take_in(requests, logs)
        for commands in waiting:
            for command in commands or ():
                command()

    def _take_in(self, requests: Sequence[Request], logs: Sequence[Log]) -> None:
        ids = [request.request_id for request in requests]
        new = [request_id for request_id in dict.fromkeys(ids) if request_id not in self._live]
        taken: list[str] = []
        self._live.update(new)
        try:
            for request, log in zip_longest(requests, logs):
                self._engine.submit(request, log)
                taken.append(request.request_id)
                if self._observer and log is None:
                    self._observed(self._observer.submitted, request)
        except IzwiError as error:
            # but not the running requests whose ids were submitted again
            for request_id in taken:
                self._engine.abort(request_id)
            self._dispatch([failure(request_id, error) for request_id in new])

    def end(self, request_id: str) -> None:
        """Do the same as `abort`, in a command."""
        if self.deferred(request_id, lambda: self.end(request_id)):
            return
        self._dispatch(self._engine.abort(request_id))

    def write_to(self, request_id: str, text_ids: Sequence[int], closed: bool) -> None:
        """Do the same as `write`, in a command."""
        if self.deferred(request_id, lambda: self.write_to(request_id, text_ids, closed)):
            return
        observer = self._observer
        if self._engine.write(request_id, text_ids, closed) and observer:
            self._observed(lambda ids: observer.written(request_id, ids), text_ids)

    def _settle_changes(self) -> None:
        """Complete the futures of models that were added or removed."""
        for change in list(self._changes):
            name, done = change
            if name not in self._engine.leaving:
                self._changes.remove(change)
                done.set_result(None)

    def _run(self) -> None:
        broken: BaseException | None = None
        try:
            with self._engine.own_stream():
                self._step_until_notified()
            self._close()
            for command in self._commands:  # those that arrived during the last step
                self._guarded(command)
            self._fail_all(EngineStopped("the engine has stopped"))
        except BaseException as error:  # the end must be reported, whatever it was
            logger.critical("the engine failed for good and takes no more requests", exc_info=True)
            broken = error
        finally:
            self._close()
            for done in list(self._asked):
                if not done.done():
                    done.set_exception(EngineStopped("the engine has stopped"))
            self._sink.ended(broken)

    def _close(self) -> None:
        """Accept no more commands."""
        with self._wake:
            self._closed = True

    def _step_until_notified(self) -> None:
        rested = False
        while not self._stopping:
            busy, spare_s = self._engine.has_work, self._engine.spare_s
            # new requests can still join the next step while a device is busy with the last
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
            if is_early and not commands and self._engine.spare_s > _LEAST_SPARE_S:
                continue  # the device has not finished
            for command in commands:
                self._guarded(command)
            if not self._stopping and self._engine.spare_s <= _LEAST_SPARE_S:
                self._guarded(self._step)
            self._settle_changes()
            self._sink.stepped()

    def _step(self) -> None:
        self._dispatch(self._engine.step())

    def _next_commands(self, timeout_s: float | None, is_early: bool) -> deque[Callable[[], None]]:
        """Wait for work, and take the queued commands; none after the timeout.

        Args:
            timeout_s: None waits forever.
            is_early: Wait even if a step could run.
        """
        engine = self._engine
        with self._wake:
            self._wake.wait_for(
                lambda: self._commands or (not is_early and engine.has_work and not engine.is_idle),
                timeout_s,
            )
            commands, self._commands = self._commands, deque()
        return commands

    def _guarded(self, work: Callable[[], None]) -> None:
        """Call a function; if it fails, fail every request and continue.

        Such a failure is a bug outside any single row, and no request may hang because of it. If
        failing the requests fails as well, the thread ends.
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
                self._observed(self._observer.chunk, chunk)
            if chunk.reason is not None:
                self._live.discard(chunk.request_id)
        if chunks:
            self._sink.deliver(chunks)

    def _observed(self, tell: Callable[[Seen], None], what: Seen) -> None:
        """Call the observer; after a failure (a full disk, for example) it is not called again."""
        try:
            tell(what)
        except Exception:
            logger.exception("the observer failed: nothing is recorded any more")
            self._observer = None

    def _fail_all(self, error: Exception) -> None:
        ids = [*self._live, *self._deferred]
        self._deferred.clear()
        self._dispatch([failure(request_id, error) for request_id in ids])

    def _halt(self) -> None:
        self._stopping = True
