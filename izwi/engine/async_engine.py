"""The engine for asyncio callers: one thread steps it, any number of tasks read streams."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

from izwi.checkpoints.adapter_folder import is_adapter
from izwi.engine.step_thread import Observer, SteppingThread
from izwi.engine.stepped import Stepped
from izwi.engine_client.output_stream import Stream, failure
from izwi.engine_client.protocol import Answer, Answers
from izwi.errors import EngineStopped, InvalidRequest
from izwi.model.protocol import Model
from izwi.request.request import Chunk, Request


class AsyncEngine:
    """An engine in this process. Implements `EngineClient`, and the source of its answers.

    All methods are safe to call from any event loop.
    """

    def __init__(self, engine: Stepped):
        self._engine = engine
        self._streams: dict[str, Stream] = {}
        self._adding = threading.Lock()  # any thread may submit
        self._thread = SteppingThread(engine, self)

    @property
    def max_backlog(self) -> int:
        """Unread chunks at which backpressure stops the request."""
        return self._engine.config.max_backlog

    @property
    def alive(self) -> bool:
        """Whether the thread steps."""
        return self._thread.alive

    @property
    def load(self) -> dict[str, dict[str, float]]:
        """Figures of each model; see `izwi.metrics.FIGURES`."""
        return self._engine.load

    def observe(self, observer: Observer) -> None:
        """Report every request and chunk to an observer; call it before `start`."""
        self._thread.observe(observer)

    def start(self) -> None:
        """Start stepping."""
        self._thread.start()

    async def stop(self) -> None:
        """Stop after the step in flight; live requests end with EngineStopped."""
        await asyncio.to_thread(self._thread.stop)

    def submit(self, request: Request) -> Answer:
        """Queue a request and return its answer; see `submit_all`."""
        return self.submit_all([request])[0]

    def submit_all(self, requests: Sequence[Request]) -> Answers[Answer]:
        """Queue requests so that they enter the same step, and return their answers in order.

        All are queued or none. If the queue refuses one, or an id is already in use, every answer
        ends with that error.

        Raises:
            EngineStopped: The engine is not running.
        """
        loop = asyncio.get_running_loop()
        streams = [Stream(request.request_id, self, loop) for request in requests]
        ids = [stream.request_id for stream in streams]
        with self._adding:
            taken = [name for n, name in enumerate(ids) if name in self._streams or name in ids[:n]]
            if not taken:
                self._streams.update(zip(ids, streams, strict=True))
        if taken:
            refused = InvalidRequest(f"request {taken[0]!r} is running already")
            for stream in streams:
                stream.put(failure(stream.request_id, refused))
            return Answers(streams)
        if not self._thread.submit(requests):
            for request_id in ids:
                self._streams.pop(request_id, None)
            raise EngineStopped("the engine has stopped")
        return Answers(streams)

    def abort(self, request_id: str) -> None:
        """End a request before its next step."""
        self._thread.abort(request_id)

    def pause(self, request_id: str) -> None:
        """Pause a request before its next step."""
        self._thread.pause(request_id)

    def resume(self, request_id: str) -> None:
        """Resume a paused request with the next sample or token."""
        self._thread.resume(request_id)

    def write(self, request_id: str, text_ids: Sequence[int], closed: bool) -> None:
        """Write text to a request with open input; see `Engine.write`."""
        self._thread.write(request_id, text_ids, closed)

    def set_backpressure(self, request_id: str, backpressured: bool) -> None:
        """Turn backpressure on or off for a request."""
        self._thread.set_backpressure(request_id, backpressured)

    async def add(self, name: str, model: Model | None, folder: Path) -> None:
        """Serve another model from the next step on; see `Engine.add`.

        Raises:
            InvalidRequest: The name is taken, no share of the memory is left, or this process
                loads no models.
            EngineStopped: The engine is not running.
        """
        if is_adapter(folder):
            return  # read with the first request
        if model is None:
            raise InvalidRequest("this process loads no models", param="model")
        done = self._thread.change(name, lambda: self._engine.add(name, model))
        await asyncio.wrap_future(done)

    async def remove(self, name: str) -> None:
        """Accept no new requests for a model, and wait until the running ones have ended.

        Its memory is free then. Cancelling the wait does not cancel the removal.

        Raises:
            ModelNotFound: No such model is served.
            EngineStopped: The engine is not running.
        """
        done = self._thread.change(name, lambda: self._engine.remove(name))
        await asyncio.wrap_future(done)

    def deliver(self, chunks: list[Chunk]) -> None:
        """Pass chunks to their streams; called on the step thread."""
        for chunk in chunks:
            stream = self._streams.get(chunk.request_id)
            if chunk.reason is not None:
                self._streams.pop(chunk.request_id, None)
            if stream is not None:
                stream.deliver(chunk)

    def stepped(self) -> None:
        """Do nothing: figures are read on demand."""

    def ended(self, broken: BaseException | None) -> None:
        """End every remaining stream, because the step thread has ended; called on that thread."""
        error = EngineStopped("the engine has failed" if broken else "the engine has stopped")
        with self._adding:
            streams, self._streams = self._streams, {}
        for request_id, stream in streams.items():
            stream.deliver(failure(request_id, error))
