"""The live sessions of a server: how many there may be, and how all of them end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from izwi.errors import Overloaded, RateLimited
from izwi_api.sessions.errors import SessionOver
from izwi_api.sessions.places import Places

# Until a session has ended, usually.
_RETRY_AFTER_S = 30


@dataclass(frozen=True, slots=True)
class SessionCounts:
    """How many sessions there may be at once.

    Attributes:
        a_server: Over all its API servers.
        a_key: Of one key, over all servers of this machine; None for no limit but its own.
    """

    a_server: int = 256
    a_key: int | None = None


class Endable(Protocol):
    """A session that can be ended from outside."""

    def end(self, over: SessionOver) -> None:
        """End it, as soon as its loop runs."""
        ...


class OpenSessions:
    """The sessions of one API server. Belongs to its event loop.

    Args:
        counts: How many there may be.
        shared: Folder that the API servers of this server share; None where there is one.
        keys: Folder that all servers of this machine share.
    """

    def __init__(self, counts: SessionCounts, shared: Path | None, keys: Path):
        self._counts, self._keys_folder = counts, keys
        self._server = Places(shared / "sessions" if shared is not None else None)
        self._keys: dict[str, Places] = {}
        self._running: dict[Endable, asyncio.Event] = {}

    @contextmanager
    def place(self, key_name: str | None, key_limit: int | None) -> Iterator[None]:
        """Hold a place for a session until the block ends.

        Args:
            key_name: Whose session it is; None where no key is required.
            key_limit: What that key may have at once; None for the server's own limit of keys.

        Raises:
            RateLimited: The key has as many as it may have.
            Overloaded: The server has.
        """
        limit = self._counts.a_key if key_limit is None else key_limit
        of_key, place = None, None
        if key_name is not None and limit is not None:
            of_key = self._of_key(key_name)
            place = of_key.take(limit)
            if place is None:
                raise RateLimited(
                    f"this key may have {limit} live sessions at once; close one",
                    retry_after_s=_RETRY_AFTER_S,
                )
        try:
            server_place = self._server.take(self._counts.a_server)
            if server_place is None:
                raise Overloaded(
                    f"the server has its {self._counts.a_server} live sessions; try again later",
                    retry_after_s=_RETRY_AFTER_S,
                )
            try:
                yield
            finally:
                self._server.give_back(server_place)
        finally:
            if of_key is not None and place is not None:
                of_key.give_back(place)

    @contextmanager
    def running(self, session: Endable) -> Iterator[None]:
        """Count a session as one that `end_all` ends, until the block does."""
        ended = self._running[session] = asyncio.Event()
        try:
            yield
        finally:
            del self._running[session]
            ended.set()

    async def end_all(self, over: SessionOver) -> None:
        """End all sessions, and wait until they are closed."""
        waits = [ended.wait() for ended in self._running.values()]
        for session in list(self._running):
            session.end(over)
        await asyncio.gather(*waits)

    def close(self) -> None:
        """Give all places back."""
        for places in (self._server, *self._keys.values()):
            places.close()

    def _of_key(self, name: str) -> Places:
        if name not in self._keys:
            # some file systems take "Ann" and "ann" for one name
            file = self._keys_folder / sha256(name.encode()).hexdigest()[:24]
            self._keys[name] = Places(file)
        return self._keys[name]
