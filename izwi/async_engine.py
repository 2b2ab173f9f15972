"""The engine for asyncio callers: one thread steps it, any number of tasks read streams."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future

import numpy as np

from izwi import allocator
from izwi.engine import Engine
from izwi.errors import EngineStopped, IzwiError
from izwi.model import Model
from izwi.request import Chunk, Reason, Request
from izwi.trace import Observer

logger = logging.getLogger(__name__)

# After so long without work the memory of what has run is given back.
_IDLE_S = 2.0
# Where everything waits for readers or writers, a step is tried again after so long.
_REST_S = 0.02


class Stream(AsyncIterator[Chunk]):
    """The chunks of one request, in order; the last one carries a reason."""

    def __init__(self, request_id: str, engine: AsyncEngine, loop: asyncio.AbstractEventLoop):
        self.request_id = request_id
        self._engine = engine
        self._loop = loop
        self._queue: asyncio.Queue[Chunk] = asyncio.Queue()
        self._ended = False
        self._held = False
        self.told = False  # whether a chunk was delivered; the stepping thread's alone

    async def __anext__(self) -> Chunk:
        if self._ended and self._queue.empty():
            raise StopAsyncIteration
        chunk = await self._queue.get()
        if self._held and self._queue.qsize() <= self._engine.max_backlog // 2:
            self._held = False
            self._engine.hold(self.request_id, False)
        if chunk.reason is not None:
            self._ended = True
        return chunk

    def abort(self) -> None:
        """Leave: the engine ends the request before its next step. Nothing if it has ended."""
        if not self._ended:
            self._engine.abort(self.request_id)

    def deliver(self, chunk: Chunk) -> None:
        """Hand a chunk over from the stepping thread; a reader too far behind is held."""
        try:
            self._loop.call_soon_threadsafe(self._put, chunk)
        except RuntimeError:  # the reader's event loop is closed: there is nobody to tell
            self._ended = True
            if chunk.reason is None:
                self._engine.abort(self.request_id)

    def _put(self, chunk: Chunk) -> None:
        self._queue.put_nowait(chunk)
        if not self._held and self._queue.qsize() >= self._engine.max_backlog:
            self._held = True
            self._engine.hold(self.request_id, True)


class AsyncEngine:
    """Owns the thread that steps. All methods are safe to call from any event loop."""

    def __init__(self, engine: Engine):
        self._engine = engine
        self._wake = threading.Condition()
        self._commands: deque[Callable[[], None]] = deque()
        self._streams: dict[str, Stream] = {}
        self._observer: Observer | None = None
        self._untold: list[Chunk] = []  # of the last step; nobody waits for a first sound in them
        self._changes: list[tuple[str, Future[None]]] = []  # models that come or go, and who waits
        self._stopping = False
        self._closed = False  # no command will be looked at any more
        self._thread = threading.Thread(target=self._run, name="izwi-engine", daemon=True)

    @property
    def max_backlog(self) -> int:
        """Chunks that a reader may leave unread before its request is held."""
        return self._engine.config.max_backlog

    @property
    def alive(self) -> bool:
        """Whether the thread steps."""
        return self._thread.is_alive() and not self._stopping

    @property
    def load(self) -> dict[str, dict[str, float]]:
        """Sequences and pages of each model, and what happened to them."""
        return self._engine.load

    def observe(self, observer: Observer) -> None:
        """Tell an observer of every request and chunk; before `start`."""
        self._observer = observer

    def start(self) -> None:
        """Start stepping."""
        self._thread.start()

    async def stop(self) -> None:
        """Stop after the step under way; live requests end with EngineStopped."""
        self._tell(self._halt)
        await asyncio.to_thread(self._thread.join)

    def submit(self, request: Request) -> Stream:
        """Queue a request and return its stream; see `submit_all`."""
        return self.submit_all([request])[0]

    def submit_all(self, requests: Sequence[Request]) -> list[Stream]:
        """Queue requests so that they enter the same step, and return their streams in order.

        All are queued or none: if the queue refuses one, every stream ends with that error.

        Raises:
            EngineStopped: The engine does not run.
        """
        loop = asyncio.get_running_loop()
        streams = [Stream(request.request_id, self, loop) for request in requests]
        if not self.alive or not self._tell(lambda: self._submit(requests, streams)):
            raise EngineStopped("the engine has stopped")
        return streams

    def abort(self, request_id: str) -> None:
        """End a request before the next step."""
        self._tell(lambda: self._dispatch(self._engine.abort(request_id)))

    def pause(self, request_id: str) -> None:
        """Stop a request where it is before the next step."""
        self._tell(lambda: self._engine.pause(request_id))

    def resume(self, request_id: str) -> None:
        """Let a paused request go on with the next sample or token."""
        self._tell(lambda: self._engine.resume(request_id))

    def write(self, request_id: str, text_ids: Sequence[int], closed: bool) -> None:
        """Write text to a request with open input; see `Engine.write`."""
        self._tell(lambda: self._engine.write(request_id, text_ids, closed))

    def hold(self, request_id: str, held: bool) -> None:
        """Stop or go on emitting for a request."""
        self._tell(lambda: self._engine.hold(request_id, held))

    async def add(self, name: str, model: Model) -> None:
        """Serve one more model from the next step on; see `Engine.add`.

        Raises:
            InvalidRequest: The name is taken, or every share of the memory is.
            EngineStopped: The engine does not run.
        """
        await self._change(name, lambda: self._engine.add(name, model))

    async def remove(self, name: str) -> None:
        """Take no new requests of a model, and wait until those that run have ended.

        Its memory is free then. Who stops waiting stops nothing.

        Raises:
            ModelNotFound: No such model is served.
            EngineStopped: The engine does not run.
        """
        await self._change(name, lambda: self._engine.remove(name))

    async def _change(self, name: str, change: Callable[[], None]) -> None:
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

        if not self.alive or not self._tell(command):
            raise EngineStopped("the engine has stopped")
        await asyncio.wrap_future(done)

    def _settle_changes(self) -> None:
        """Tell who waits for it that a model has come or gone."""
        for change in list(self._changes):
            name, done = change
            if name not in self._engine.leaving:
                self._changes.remove(change)
                done.set_result(None)

    def _tell(self, command: Callable[[], None]) -> bool:
        """Leave a command for the thread; False if it looks at none any more."""
        with self._wake:
            if not self._closed:
                self._commands.append(command)
                self._wake.notify()
            return not self._closed

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
            busy = self._engine.has_work
            commands = self._next_commands(_REST_S if busy else None if rested else _IDLE_S)
            rested = not commands and not busy
            if rested:
                allocator.trim()
                continue
            for command in commands:
                self._guarded(command)
            if not self._stopping:
                self._guarded(self._step)
            self._settle_changes()

    def _step(self) -> None:
        """Run a step. Readers get what they do not wait for while a device runs the next one."""
        untold, self._untold = self._untold, []
        try:
            self._engine.begin()
        finally:
            self._dispatch(untold)
        chunks = self._engine.end()
        if not self._engine.has_work or self._engine.rests:
            self._dispatch(chunks)
            return
        first: list[Chunk] = []
        for chunk in chunks:
            stream = self._streams.get(chunk.request_id)
            (self._untold if stream is not None and stream.told else first).append(chunk)
        self._dispatch(first)

    def _next_commands(self, timeout_s: float | None) -> deque[Callable[[], None]]:
        """Wait for work, and take the commands that are there; none after the timeout."""
        engine = self._engine
        with self._wake:
            self._wake.wait_for(
                lambda: self._commands or (engine.has_work and not engine.rests), timeout_s
            )
            commands, self._commands = self._commands, deque()
        return commands

    def _guarded(self, work: Callable[[], None]) -> None:
        """Do something; if it fails, tell everybody and go on.

        What fails here is a bug outside any one row, and nobody may hang because of it.
        """
        try:
            work()
        except Exception as error:
            logger.exception("the engine failed outside any one request")
            for request_id in list(self._streams):
                self._engine.abort(request_id)
            self._fail_all(error)

    def _submit(self, requests: Sequence[Request], streams: Sequence[Stream]) -> None:
        for stream in streams:
            self._streams[stream.request_id] = stream
        try:
            for request in requests:
                self._engine.submit(request)
                if self._observer:
                    self._observer.submitted(request)
        except IzwiError as error:
            for request in requests:
                self._engine.abort(request.request_id)
            self._dispatch([_failure(request.request_id, error) for request in requests])

    def _dispatch(self, chunks: list[Chunk]) -> None:
        for chunk in chunks:
            if self._observer:
                self._observer.chunk(chunk)
            stream = self._streams.get(chunk.request_id)
            if chunk.reason is not None:
                self._streams.pop(chunk.request_id, None)
            if stream is not None:
                stream.told = True
                stream.deliver(chunk)

    def _fail_all(self, error: Exception) -> None:
        untold, self._untold = self._untold, []
        self._dispatch(untold)
        self._dispatch([_failure(request_id, error) for request_id in list(self._streams)])

    def _halt(self) -> None:
        self._stopping = True


def _failure(request_id: str, error: BaseException) -> Chunk:
    empty = np.zeros((0, 0), dtype=np.int64)
    return Chunk(request_id, empty, reason=Reason.ERROR, error=error)
