"""The live sessions of a server: their maximum number, and how all of them end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from izwi.errors import Overloaded, RateLimited
from izwi_api.sessions.errors import NORMAL, POLICY, SessionOver
from izwi_api.sessions.slots import Slots

# Seconds in which a session usually ends.
_RETRY_AFTER_S = 30
# Longest time for closing the connections of sessions that were stopped.
_CLOSE_S = 5.0
# Seconds between checks for sessions that another API server was asked to end.
_LOOK_S = 0.5
# Seconds between checks whether the keys of the sessions may still have them.
_REVIEW_S = 0.5


@dataclass(frozen=True, slots=True)
class SessionCounts:
    """Maximum numbers of simultaneous sessions.

    Attributes:
        a_server: Of all its API servers together.
        a_key: Of a key, on all servers of this machine; None for no limit but its own.
    """

    a_server: int = 256
    a_key: int | None = None


class Endable(Protocol):
    """A session that can be ended from outside."""

    def end(self, over: SessionOver) -> None:
        """End it, in the next turn of its event loop."""
        ...


class Holder(Protocol):
    """The caller who holds a session."""

    @property
    def key_name(self) -> str | None:
        """The caller's key; None if no key is required."""
        ...

    @property
    def max_sessions(self) -> int | None:
        """Maximum number of sessions of that key; None for the server's limit of keys."""
        ...

    def keeps_access(self) -> bool:
        """Whether the key is still valid. Limits that have changed apply from now on."""
        ...


@dataclass(slots=True, eq=False)
class Seat:
    """The place of one session among those of its key.

    Attributes:
        number: Slot of the key; None if the key had no limit when the session began.
    """

    holder: Holder
    number: int | None = None


@dataclass(slots=True, eq=False)
class _Running:
    seat: Seat | None
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class OpenSessions:
    """The sessions of one API server. Lives on its event loop.

    Args:
        counts: The maximum numbers.
        shared: Folder that the API servers of this server share; None if there is only one.
        keys: Folder that all servers of this machine share.
    """

    def __init__(self, counts: SessionCounts, shared: Path | None, keys: Path):
        self._counts, self._keys_folder = counts, keys
        self._server = Slots(shared / "sessions" if shared is not None else None)
        self._keys: dict[str, Slots] = {}
        self._running: dict[Endable, _Running] = {}
        self._names: dict[str, tuple[str | None, Endable]] = {}
        self._calls = shared / "calls" if shared is not None else None
        self._tasks: set[asyncio.Task[None]] = set()
        self._reviewing: asyncio.Task[None] | None = None

    @contextmanager
    def slot(self, holder: Holder) -> Iterator[Seat]:
        """Reserve a slot for a session until the block ends.

        Raises:
            RateLimited: The key has its maximum number of sessions.
            Overloaded: The server has its maximum number of sessions.
        """
        seat, limit = Seat(holder), self._limit_of(holder)
        if limit is not None and not self._seat(seat, limit):
            raise RateLimited(
                f"this key may have {limit} live sessions at once; close one",
                retry_after_s=_RETRY_AFTER_S,
            )
        try:
            server_slot = self._server.acquire(self._counts.a_server)
            if server_slot is None:
                raise Overloaded(
                    f"the server has its maximum of {self._counts.a_server} live "
                    "sessions; try again later",
                    retry_after_s=_RETRY_AFTER_S,
                )
            try:
                yield seat
            finally:
                self._server.release(server_slot)
        finally:
            self._vacate(seat)

    @contextmanager
    def running(self, session: Endable, seat: Seat | None = None) -> Iterator[None]:
        """Let `end_all` and `review` end a session, until the block ends."""
        running = self._running[session] = _Running(seat)
        try:
            yield
        finally:
            del self._running[session]
            running.ended.set()

    def review(self) -> None:
        """End sessions whose key was removed, and those beyond a lower limit of their key.

        Of the sessions in this process, the earliest remain.
        """
        for session, running in list(self._running.items()):
            seat = running.seat
            if seat is None or seat.holder.key_name is None:
                continue
            if not seat.holder.keeps_access():
                session.end(_removed())
                continue
            limit = self._limit_of(seat.holder)
            if limit is not None and not self._seat(seat, limit):
                session.end(_too_many(limit))

    def start(self) -> None:
        """Do `review` at intervals, until `close`."""
        self._reviewing = asyncio.create_task(self._review_keys())

    async def _review_keys(self) -> None:
        while True:
            await asyncio.sleep(_REVIEW_S)
            self.review()

    def run_detached(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a session that belongs to no request."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @contextmanager
    def named(self, name: str, key_name: str | None, session: Endable) -> Iterator[None]:
        """Let `end_named` find a session from any API server, until the block ends.

        Args:
            name: Of the session; also used as a file name.
            key_name: The session's key.
            session: The session.
        """
        self._names[name] = (key_name, session)
        file = self._calls / name if self._calls is not None else None
        watching: asyncio.Task[None] | None = None
        if file is not None:
            file.parent.mkdir(exist_ok=True, mode=0o700)
            file.write_text(_digest(key_name))
            watching = asyncio.create_task(_end_without(file, session))
        try:
            yield
        finally:
            del self._names[name]
            if watching is not None and file is not None:
                watching.cancel()
                file.unlink(missing_ok=True)

    def end_named(self, name: str, key_name: str | None) -> bool:
        """End a session of a key by name; return whether it exists."""
        known_key, session = self._names.get(name, (None, None))
        if session is not None:
            if known_key == key_name:
                session.end(_hung_up())
            return known_key == key_name
        file = self._calls / name if self._calls is not None else None
        try:
            if file is None or file.read_text() != _digest(key_name):
                return False
            file.unlink()  # its API server notices
        except FileNotFoundError:
            return False
        return True

    async def end_all(self, over: SessionOver) -> None:
        """End all sessions, and wait until they are closed."""
        waits = [running.ended.wait() for running in self._running.values()]
        for session in list(self._running):
            session.end(over)
        await asyncio.gather(*waits)

    async def close(self) -> None:
        """Stop the sessions that belong to no request, and release all slots."""
        if self._reviewing is not None:
            self._reviewing.cancel()
        for task in self._tasks:
            task.cancel()
        if self._tasks:  # they close their connections
            await asyncio.wait(self._tasks, timeout=_CLOSE_S)
        for slots in (self._server, *self._keys.values()):
            slots.close()

    def _limit_of(self, holder: Holder) -> int | None:
        if holder.key_name is None:
            return None
        return self._counts.a_key if holder.max_sessions is None else holder.max_sessions

    def _seat(self, seat: Seat, limit: int) -> bool:
        """Take one of the key's first slots, unless the seat is one; False if all are taken."""
        if seat.number is not None and seat.number < limit:
            return True
        assert seat.holder.key_name is not None
        number = self._of_key(seat.holder.key_name).acquire(limit)
        if number is None:
            return False
        self._vacate(seat)
        seat.number = number
        return True

    def _vacate(self, seat: Seat) -> None:
        if seat.number is not None and seat.holder.key_name is not None:
            self._of_key(seat.holder.key_name).release(seat.number)
            seat.number = None

    def _of_key(self, name: str) -> Slots:
        if name not in self._keys:
            # some file systems do not distinguish "Ann" and "ann"
            self._keys[name] = Slots(self._keys_folder / _digest(name))
        return self._keys[name]


def _digest(key_name: str | None) -> str:
    return sha256((key_name or "").encode()).hexdigest()[:24]


def _removed() -> SessionOver:
    return SessionOver("the API key of this session was removed", "invalid_api_key", POLICY)


def _too_many(limit: int) -> SessionOver:
    message = f"this key may have {limit} live sessions at once now"
    return SessionOver(message, "rate_limit_exceeded", POLICY)


def _hung_up() -> SessionOver:
    return SessionOver("the call was ended", "call_ended", NORMAL, is_told=False)


async def _end_without(file: Path, session: Endable) -> None:
    """End a session when its file is deleted."""
    is_there = True
    while is_there:
        await asyncio.sleep(_LOOK_S)
        is_there = await asyncio.to_thread(file.exists)
    session.end(_hung_up())
