"""The live sessions of a server: their maximum number, and how all of them end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from izwi.errors import Overloaded, RateLimited
from izwi_api.sessions.errors import NORMAL, SessionOver
from izwi_api.sessions.slots import Slots

# Seconds in which a session usually ends.
_RETRY_AFTER_S = 30
# Longest time for closing the connections of sessions that were stopped.
_CLOSE_S = 5.0
# Seconds between checks for sessions that another API server was asked to end.
_LOOK_S = 0.5


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
        self._running: dict[Endable, asyncio.Event] = {}
        self._names: dict[str, tuple[str | None, Endable]] = {}
        self._calls = shared / "calls" if shared is not None else None
        self._tasks: set[asyncio.Task[None]] = set()

    @contextmanager
    def slot(self, key_name: str | None, key_limit: int | None) -> Iterator[None]:
        """Reserve a slot for a session until the block ends.

        Args:
            key_name: The session's key; None if no key is required.
            key_limit: Maximum for that key; None for the server's limit of keys.

        Raises:
            RateLimited: The key has its maximum number of sessions.
            Overloaded: The server has its maximum number of sessions.
        """
        limit = self._counts.a_key if key_limit is None else key_limit
        of_key, slot = None, None
        if key_name is not None and limit is not None:
            of_key = self._of_key(key_name)
            slot = of_key.take(limit)
            if slot is None:
                raise RateLimited(
                    f"this key may have {limit} live sessions at once; close one",
                    retry_after_s=_RETRY_AFTER_S,
                )
        try:
            server_slot = self._server.take(self._counts.a_server)
            if server_slot is None:
                raise Overloaded(
                    f"the server has its maximum of {self._counts.a_server} live "
                    "sessions; try again later",
                    retry_after_s=_RETRY_AFTER_S,
                )
            try:
                yield
            finally:
                self._server.release(server_slot)
        finally:
            if of_key is not None and slot is not None:
                of_key.release(slot)

    @contextmanager
    def running(self, session: Endable) -> Iterator[None]:
        """Let `end_all` end a session, until the block ends."""
        ended = self._running[session] = asyncio.Event()
        try:
            yield
        finally:
            del self._running[session]
            ended.set()

    def keep(self, work: Coroutine[Any, Any, None]) -> None:
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
        waits = [ended.wait() for ended in self._running.values()]
        for session in list(self._running):
            session.end(over)
        await asyncio.gather(*waits)

    async def close(self) -> None:
        """Stop the sessions that belong to no request, and release all slots."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:  # they close their connections
            await asyncio.wait(self._tasks, timeout=_CLOSE_S)
        for slots in (self._server, *self._keys.values()):
            slots.close()

    def _of_key(self, name: str) -> Slots:
        if name not in self._keys:
            # some file systems do not distinguish "Ann" and "ann"
            self._keys[name] = Slots(self._keys_folder / _digest(name))
        return self._keys[name]


def _digest(key_name: str | None) -> str:
    return sha256((key_name or "").encode()).hexdigest()[:24]


def _hung_up() -> SessionOver:
    return SessionOver("the call was ended", "call_ended", NORMAL, is_told=False)


async def _end_without(file: Path, session: Endable) -> None:
    """End a session when its file is deleted."""
    is_there = True
    while is_there:
        await asyncio.sleep(_LOOK_S)
        is_there = await asyncio.to_thread(file.exists)
    session.end(_hung_up())
