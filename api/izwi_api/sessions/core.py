"""The core of a live session: one reader, one writer, one clock, and one way to end.

    client ──▶ wire ──▶ read ──▶ Service.handle_message
    client ◀── wire ◀── write ◀── outbox ◀── put, send
                        watch ──▶ limits, Service.tick

A protocol is a `Service`; the transport of its messages is a `Wire`. Knows neither HTTP nor models.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from izwi_api.sessions.errors import INTERNAL, NORMAL, POLICY, ClientLeft, SessionOver
from izwi_api.sessions.limits import SessionLimits

logger = logging.getLogger(__name__)

Message = str | bytes
# A client that reads nothing is disconnected without a reason.
FAREWELL_S = 2.0


class Wire(Protocol):
    """Carries messages between a session and its client."""

    async def receive(self) -> Message:
        """Return the next message. Raises ClientLeft."""
        ...

    async def send(self, message: Message) -> None:
        """Send a message; wait while the client reads nothing. Raises ClientLeft."""
        ...

    async def close(self, code: int, reason: str) -> None:
        """Close the connection. Raises ClientLeft."""
        ...


class Outbox(Protocol):
    """Where a service puts its messages: its session, or what writes them into one."""

    @property
    def num_unread(self) -> int:
        """Number of messages that wait to be sent."""
        ...

    def put(self, message: Message) -> None:
        """Queue a message."""
        ...

    async def send(self, message: Message) -> None:
        """Queue a message, and wait until it is sent."""
        ...


class Service(Protocol):
    """A protocol's part of a session."""

    @property
    def is_busy(self) -> bool:
        """Whether the server is working for the client."""
        ...

    def start_session(self) -> None:
        """Send the first messages."""
        ...

    def background_tasks(self) -> Sequence[Coroutine[Any, Any, None]]:
        """Return the tasks beside reading and writing; the session ends when the first one ends."""
        ...

    async def handle_message(self, message: Message) -> None:
        """Handle a message. Its errors are reported; SessionOver ends the session."""
        ...

    def report(self, error: Exception) -> None:
        """Report a bad message, or why the session ends."""
        ...

    def tick(self, now_s: float) -> None:
        """Check time limits. Raises SessionOver."""
        ...

    def close(self) -> None:
        """Abort what still runs."""
        ...


class Session:
    """One client's connection, with any protocol."""

    def __init__(self, wire: Wire, limits: SessionLimits):
        self._wire, self._limits = wire, limits
        self._outbox: deque[Message] = deque()
        self._num_bytes = 0  # of the waiting messages
        self._num_put = self._num_written = 0
        self._changed, self._moved = asyncio.Event(), asyncio.Event()
        self._is_parting = False
        self._over: SessionOver | None = None
        self._ended = asyncio.Event()
        self._begun_s = self._active_s = self._read_s = time.monotonic()

    # -- for the protocol ------------------------------------------------------------------------
    @property
    def num_unread(self) -> int:
        """Number of messages that wait to be sent."""
        return self._num_put - self._num_written

    def put(self, message: Message) -> None:
        """Queue a message."""
        if not self.num_unread:
            self._read_s = time.monotonic()
        self._outbox.append(message)
        self._num_bytes += len(message)
        self._num_put += 1
        self._changed.set()

    async def send(self, message: Message) -> None:
        """Queue a message, and wait until it is sent."""
        self.put(message)
        number = self._num_put
        while self._num_written < number:
            self._moved.clear()
            await self._moved.wait()

    async def until_space(self) -> None:
        """Wait while the client is far behind with reading."""
        while self._is_full():
            self._moved.clear()
            await self._moved.wait()

    def end(self, over: SessionOver) -> None:
        """End the session from outside, in the next turn of its event loop."""
        self._over = self._over or over
        self._ended.set()

    # -- running ---------------------------------------------------------------------------------
    async def run(self, service: Service) -> None:
        """Serve until the client disconnects, the protocol ends, or a limit is reached."""
        writing = asyncio.create_task(self._write())
        try:
            try:
                service.start_session()
                error = await self._serve(service, writing)
            finally:
                service.close()
            if not isinstance(error, ClientLeft):
                await self._part(service, error, writing)
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    async def _serve(self, service: Service, writing: asyncio.Task[None]) -> Exception | None:
        """Run all tasks until one of them ends; return the reason."""
        background_tasks = (
            self._read(service),
            self._watch(service),
            self._until_ended(),
            _outcome(writing),
            *service.background_tasks(),
        )
        try:
            async with asyncio.TaskGroup() as group:
                for work in background_tasks:
                    group.create_task(_ending(work))
        except ExceptionGroup as raised:
            return min(raised.exceptions, key=_rank)
        return None

    async def _until_ended(self) -> None:
        await self._ended.wait()
        assert self._over is not None
        raise self._over

    async def _part(
        self, service: Service, error: Exception | None, writing: asyncio.Task[None]
    ) -> None:
        """Send waiting messages and the reason, and close the connection."""
        over = error
        if not isinstance(error, _Done | SessionOver):
            logger.error("a session failed", exc_info=error)
            over = SessionOver("internal error", "internal_error", INTERNAL)
        code, reason = NORMAL, ""
        if isinstance(over, SessionOver):
            code, reason = over.close_code, over.code
            if over.is_told:
                service.report(over)
        if writing.done():
            return
        self._is_parting = True
        self._changed.set()

        async def farewell() -> None:
            await writing
            await self._wire.close(code, reason)

        # Not `asyncio.timeout`: after a task group of Python 3.11.2 its timeouts are cancellations.
        with contextlib.suppress(ClientLeft, TimeoutError):
            await asyncio.wait_for(farewell(), FAREWELL_S)

    async def _read(self, service: Service) -> None:
        """Read messages; a bad one is reported and changes nothing."""
        num_bad = 0
        while True:
            message = await self._wire.receive()
            self._active_s = time.monotonic()
            try:
                await service.handle_message(message)
                num_bad = 0
            except SessionOver:
                raise
            except Exception as error:
                num_bad += 1
                service.report(error)
                if num_bad >= self._limits.bad_messages:
                    raise SessionOver("too many bad messages", "too_many_errors", POLICY) from error
            await self.until_space()

    async def _write(self) -> None:
        """Send queued messages until the session ends. Raises ClientLeft."""
        while True:
            while self._outbox:
                message = self._outbox.popleft()
                await self._wire.send(message)
                self._num_bytes -= len(message)
                self._num_written += 1
                self._active_s = self._read_s = time.monotonic()
                self._moved.set()
            if self._is_parting:
                return
            self._changed.clear()
            await self._changed.wait()

    async def _watch(self, service: Service) -> None:
        limits = self._limits
        while True:
            now_s = time.monotonic()
            service.tick(now_s)
            if service.is_busy and not self.num_unread:
                self._active_s = now_s
            if now_s - self._begun_s >= limits.total_s:
                raise SessionOver("the session has reached its limit", "session_expired", NORMAL)
            if now_s - self._active_s >= limits.idle_s:
                raise SessionOver(
                    "nothing was written or read for too long", "idle_timeout", limits.idle_code
                )
            if self.num_unread and now_s - self._read_s >= limits.unread_s:
                raise SessionOver("the client does not read its events", "unread_output", POLICY)
            await asyncio.sleep(limits.tick_s)

    def _is_full(self) -> bool:
        limits = self._limits
        return self.num_unread >= limits.pending_messages or self._num_bytes >= limits.pending_bytes


async def _outcome(future: asyncio.Future[None]) -> None:
    """Wait for a future that continues if this task is cancelled."""
    await asyncio.wait([future])
    future.result()


class _Done(Exception):
    """A task of the session has ended normally."""


async def _ending(work: Coroutine[Any, Any, None]) -> None:
    await work
    raise _Done


def _rank(error: Exception) -> int:
    """Rank reasons for an end: if the client has disconnected, no other matters."""
    if isinstance(error, ClientLeft):
        return 0
    if isinstance(error, SessionOver):
        return 1
    return 3 if isinstance(error, _Done) else 2
