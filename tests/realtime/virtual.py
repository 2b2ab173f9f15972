"""Live sessions in virtual time: minutes of conversation run as fast as the models compute.

Nothing waits. Where every task sleeps, the clock jumps to the first that wakes; what threads do
elsewhere is done at once, in the loop; and the engine takes a fixed virtual time for each step. So
a conversation is the same in every run, however fast the machine is.
"""

from __future__ import annotations

import asyncio
import itertools
import selectors
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Sequence
from unittest import mock

from izwi.engine.engine import Engine
from izwi.engine_client.output_stream import Stream, aborted, failure
from izwi.engine_client.protocol import Answers
from izwi.errors import EngineStopped
from izwi.request.request import Chunk, Request
from izwi_api.serve.resumable_request import ResumableRequest

STEP_S = 0.02


class _JumpingSelector(selectors.SelectSelector):
    """Advances the clock instead of waiting."""

    now_s = 1000.0

    def select(self, timeout=None):
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("every task waits for something that nobody will do")
        if not ready and timeout:
            self.now_s += timeout
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only while all of its tasks sleep."""

    def __init__(self):
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self):
        return self._jumping.now_s

    def run_in_executor(self, executor, func, *args):
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done


def run_virtually(work: Awaitable, limit_s: float = 3600.0):
    """Run a coroutine in virtual time, at most so many seconds of it."""

    async def limited():
        async with asyncio.timeout(limit_s):
            return await work

    with (
        asyncio.Runner(loop_factory=VirtualTimeLoop) as runner,
        mock.patch.object(time, "monotonic", _clock_of(runner.get_loop())),
    ):
        return runner.run(limited())


def _clock_of(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """Return a clock with the loop's time in this thread, and the real time in others.

    A server of other tests that runs in a thread would otherwise set its timers by virtual time.
    """
    here, real_s = threading.get_ident(), time.monotonic
    return lambda: loop.time() if threading.get_ident() == here else real_s()


class SteppedEngine:
    """An `EngineClient` that steps an engine in the event loop, and can lose it.

    Args:
        make: Makes an engine, given its clock.
    """

    max_backlog = 64

    def __init__(self, make: Callable[[Callable[[], float]], Engine], step_s: float = STEP_S):
        self._make, self._step_s = make, step_s
        self._requests: dict[str, ResumableRequest] = {}
        self._numbers = itertools.count()
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.paused: list[str] = []  # every request that was ever paused
        self.engine: Engine | None = make(self._loop.time)
        self.stepping = asyncio.create_task(self._step())

    @property
    def alive(self):
        return self.engine is not None

    @property
    def load(self):
        return {} if self.engine is None else self.engine.load

    @property
    def live(self):
        """Ids of requests in flight."""
        return list(self._requests)

    def start(self): ...

    async def stop(self):
        self.stepping.cancel()
        for request_id in list(self._requests):
            self._deliver([failure(request_id, EngineStopped("the engine has stopped"))])

    def die(self):
        """Lose the engine, with all that it holds."""
        self.engine = None

    def come_back(self):
        """Start another engine, which goes on with the logs of what was in flight."""
        self.engine = self._make(self._loop.time)
        for request in self._requests.values():
            self.engine.submit(request.request, request.log(self._loop.time()))
        self._wake.set()

    def submit(self, request: Request):
        return self.submit_all([request])[0]

    def submit_all(self, requests: Sequence[Request]):
        waits = all(request.continues or request.awaits_engine for request in requests)
        if self.engine is None and not waits:
            raise EngineStopped("the engine has stopped")  # as `RemoteEngine` does
        streams = [Stream(request.request_id, self, self._loop) for request in requests]
        for request, stream in zip(requests, streams, strict=True):
            if self.engine is not None:
                self.engine.submit(request)
            kept = ResumableRequest(request, weakref.ref(stream))
            self._requests[request.request_id] = kept
        self._wake.set()
        return Answers(streams)

    def write(self, request_id, text_ids, closed):
        if (request := self._requests.get(request_id)) is not None and not request.closed:
            request.written += text_ids
            request.closed = closed
        self._send_command(lambda engine: engine.write(request_id, text_ids, closed))

    def pause(self, request_id):
        self._set_paused(request_id, True)
        self._send_command(lambda engine: engine.pause(request_id))

    def resume(self, request_id):
        self._set_paused(request_id, False)
        self._send_command(lambda engine: engine.resume(request_id))

    def abort(self, request_id):
        if self.engine is None:
            self._deliver([aborted(request_id)])
        else:
            self._deliver(self.engine.abort(request_id))

    def set_backpressure(self, request_id, backpressured):
        self._send_command(lambda engine: engine.set_backpressure(request_id, backpressured))

    def _send_command(self, command):
        if self.engine is not None:
            command(self.engine)
            self._wake.set()

    def _set_paused(self, request_id, paused):
        if (request := self._requests.get(request_id)) is not None:
            request.set_paused(paused, self._loop.time())
            if paused:
                self.paused.append(request_id)

    async def _step(self):
        while True:
            self._wake.clear()
            while self.engine is not None and self.engine.has_work:
                chunks = self.engine.step()
                self._deliver(chunks)
                await asyncio.sleep(self._step_s)
                if not chunks and self.engine is not None and self.engine.is_idle:
                    break
            await self._wake.wait()

    def _deliver(self, chunks: Sequence[Chunk]):
        for chunk in chunks:
            request = self._requests.get(chunk.request_id)
            if chunk.reason is not None:
                self._requests.pop(chunk.request_id, None)
            if request is not None:
                request.give(chunk, self._loop.time())
