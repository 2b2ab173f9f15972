"""Store contents by id for an hour, in bounded space, shared by all processes of a server.

The store is an SQLite file with a write-ahead log in the server's own folder, which is deleted with
the server. A killed process does not damage it. If an item cannot be stored, for example on a full
disk, the answer that it belongs to still succeeds.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

_T = TypeVar("_T")

logger = logging.getLogger(__name__)

KEPT_S = 3600.0
MAX_BYTES = 64 << 20

# A write locks the file for milliseconds.
_BUSY_S = 5.0
_PAUSE_S = 0.01
# Triggers maintain the totals, so that eviction need not read all sizes.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS items (
    kind TEXT NOT NULL, id TEXT NOT NULL, owner TEXT NOT NULL, model TEXT NOT NULL,
    content BLOB NOT NULL, expires_at REAL NOT NULL, PRIMARY KEY (kind, id)
);
CREATE INDEX IF NOT EXISTS by_age ON items (kind, expires_at);
CREATE INDEX IF NOT EXISTS by_owner ON items (kind, owner, expires_at);
CREATE TABLE IF NOT EXISTS totals (
    kind TEXT NOT NULL, owner TEXT NOT NULL, bytes INTEGER NOT NULL, PRIMARY KEY (kind, owner)
);
CREATE TRIGGER IF NOT EXISTS added AFTER INSERT ON items BEGIN
    INSERT OR IGNORE INTO totals VALUES (new.kind, new.owner, 0);
    UPDATE totals SET bytes = bytes + length(new.content)
        WHERE kind = new.kind AND owner = new.owner;
END;
CREATE TRIGGER IF NOT EXISTS removed AFTER DELETE ON items BEGIN
    UPDATE totals SET bytes = bytes - length(old.content)
        WHERE kind = old.kind AND owner = old.owner;
    DELETE FROM totals WHERE kind = old.kind AND owner = old.owner AND bytes <= 0;
END;
"""


class Item(NamedTuple):
    """A stored content.

    Attributes:
        owner: Name of the caller's API key, or empty.
        model: The model that made it.
    """

    owner: str
    model: str
    content: bytes


class Range(NamedTuple):
    """Which items of a kind to list, in the order in which they were stored.

    Attributes:
        after: Start after the item with this id; None starts at the beginning.
        limit: Maximum number of items.
        newest_first: List from the newest to the oldest.
        model: List only items that this model made; None lists all.
    """

    after: str | None = None
    limit: int = 100
    newest_first: bool = False
    model: str | None = None


class StoredItems:
    """Items of the last hour. A full store evicts the oldest items of the owner that has most.

    So an owner with many items never evicts those of owners with fewer.

    Args:
        path: The file, created with the first item; None keeps items in this process's memory.
        max_bytes: Maximum size of all contents of one kind.
        kept_s: Lifetime of an item in seconds.
        clock: Returns seconds since 1970, the same in all processes.
    """

    def __init__(
        self,
        path: Path | None = None,
        *,
        max_bytes: int = MAX_BYTES,
        kept_s: float = KEPT_S,
        clock: Callable[[], float] = time.time,
    ):
        self.kept_s = kept_s
        self._path, self._max_bytes, self._clock = path, max_bytes, clock
        self._lock = threading.Lock()
        self._opened: sqlite3.Connection | None = None

    async def put(self, kind: str, name: str, item: Item) -> float:
        """Store an item under a new id.

        Returns:
            Its time of expiry in seconds since 1970; now, if it could not be stored.
        """
        return await asyncio.to_thread(self._put, kind, name, item)

    async def get(self, kind: str, name: str) -> Item | None:
        """Return an item, or None if it does not exist or has expired."""
        return await asyncio.to_thread(self._get, kind, name)

    async def change(
        self, kind: str, name: str, owner: str, changed: Callable[[bytes], bytes]
    ) -> bytes | None:
        """Replace the content of an owner's item; its time of expiry stays the same.

        Args:
            kind: Kind of the item.
            name: Id of the item.
            owner: The item's owner.
            changed: Returns the new content for the old one.

        Returns:
            The new content; None if there is no such item, or no room for the new content.
        """
        return await asyncio.to_thread(self._change, kind, name, owner, changed)

    async def remove(self, kind: str, name: str, owner: str) -> bool:
        """Delete an owner's item; return whether it existed."""
        return await asyncio.to_thread(self._remove, kind, name, owner)

    async def page(self, kind: str, owner: str, wanted: Range) -> list[tuple[str, bytes]] | None:
        """Return ids and contents of an owner's items; None if `wanted.after` does not exist.

        Args:
            kind: Kind of the items.
            owner: The items' owner.
            wanted: The page to return.
        """
        return await asyncio.to_thread(self._page, kind, owner, wanted)

    def num_bytes(self, kind: str) -> int:
        """Return the size of all contents of a kind."""
        with self._transaction() as db:
            return self._total(db, kind)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._opened is not None:
                self._opened.close()
                self._opened = None

    def _put(self, kind: str, name: str, item: Item) -> float:
        now = self._clock()
        try:
            with self._transaction() as db:
                self._expire(db, kind, now)
                if self._make_room(db, kind, item):
                    values = (kind, name, *item, now + self.kept_s)
                    db.execute("INSERT INTO items VALUES (?, ?, ?, ?, ?, ?)", values)
                    return now + self.kept_s
        except (sqlite3.Error, OSError) as error:
            logger.warning("an answer cannot be kept: %s", error)
        return now

    def _get(self, kind: str, name: str) -> Item | None:
        def find(db: sqlite3.Connection) -> Item | None:
            row = db.execute(
                "SELECT owner, model, content FROM items WHERE kind = ? AND id = ?", (kind, name)
            ).fetchone()
            return None if row is None else Item(*row)

        return self._try(kind, find)

    def _change(
        self, kind: str, name: str, owner: str, changed: Callable[[bytes], bytes]
    ) -> bytes | None:
        def change(db: sqlite3.Connection) -> bytes | None:
            row = _find(db, "rowid, model, content, expires_at", kind, name, owner)
            if row is None:
                return None
            place, model, content, expires_at = row
            item = Item(owner, model, changed(content))
            db.execute("SAVEPOINT change")
            db.execute("DELETE FROM items WHERE rowid = ?", (place,))
            if not self._make_room(db, kind, item):
                db.execute("ROLLBACK TO change")
                return None
            columns = "rowid, kind, id, owner, model, content, expires_at"
            values = (place, kind, name, *item, expires_at)
            db.execute(f"INSERT INTO items ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)", values)
            return item.content

        return self._try(kind, change)

    def _remove(self, kind: str, name: str, owner: str) -> bool:
        def remove(db: sqlite3.Connection) -> bool:
            statement = "DELETE FROM items WHERE kind = ? AND id = ? AND owner = ?"
            return db.execute(statement, (kind, name, owner)).rowcount > 0

        return bool(self._try(kind, remove))

    def _page(self, kind: str, owner: str, wanted: Range) -> list[tuple[str, bytes]] | None:
        def read(db: sqlite3.Connection) -> list[tuple[str, bytes]] | None:
            order, behind = ("DESC", "<") if wanted.newest_first else ("ASC", ">")
            where = "kind = ? AND owner = ?"
            values: list[Any] = [kind, owner]
            if wanted.after is not None:
                row = _find(db, "expires_at, rowid", kind, wanted.after, owner)
                if row is None:
                    return None
                where += f" AND (expires_at, rowid) {behind} (?, ?)"
                values += row
            if wanted.model is not None:
                where += " AND model = ?"
                values.append(wanted.model)
            chosen = f"SELECT id, content FROM items WHERE {where}"
            chosen += f" ORDER BY expires_at {order}, rowid {order} LIMIT ?"
            return db.execute(chosen, (*values, wanted.limit)).fetchall()

        return self._try(kind, read)

    def _try(self, kind: str, work: Callable[[sqlite3.Connection], _T]) -> _T | None:
        """Delete expired items, then run `work`; return None if the file cannot be used."""
        try:
            with self._transaction() as db:
                self._expire(db, kind, self._clock())
                return work(db)
        except UnicodeEncodeError:  # half a character is part of no id
            return None
        except (sqlite3.Error, OSError) as error:
            logger.warning("kept answers cannot be read: %s", error)
            return None

    @staticmethod
    def _expire(db: sqlite3.Connection, kind: str, now: float) -> None:
        db.execute("DELETE FROM items WHERE kind = ? AND expires_at <= ?", (kind, now))

    def _make_room(self, db: sqlite3.Connection, kind: str, item: Item) -> bool:
        """Delete the oldest items of the owner that has most, until the new item fits.

        Returns:
            Whether it fits; if not, nothing is deleted.
        """
        size = len(item.content)
        most = "SELECT owner, bytes FROM totals WHERE kind = ? ORDER BY bytes DESC LIMIT 1"
        own = "SELECT bytes FROM totals WHERE kind = ? AND owner = ?"
        oldest = (
            "DELETE FROM items WHERE rowid IN (SELECT rowid FROM items "
            "WHERE kind = ? AND owner = ? ORDER BY expires_at, rowid LIMIT 1)"
        )
        db.execute("SAVEPOINT room")
        while self._total(db, kind) + size > self._max_bytes:
            row = db.execute(own, (kind, item.owner)).fetchone()
            own_bytes = row[0] if row else 0
            loser = (item.owner, own_bytes)
            if (found := db.execute(most, (kind,)).fetchone()) and found[1] > own_bytes + size:
                loser = found
            if not loser[1]:  # it would evict items of owners with fewer
                db.execute("ROLLBACK TO room")
                return False
            db.execute(oldest, (kind, loser[0]))
        return True

    @staticmethod
    def _total(db: sqlite3.Connection, kind: str) -> int:
        row = db.execute("SELECT SUM(bytes) FROM totals WHERE kind = ?", (kind,)).fetchone()
        return int(row[0] or 0)

    @contextmanager
    def _transaction(self) -> Generator[sqlite3.Connection]:
        with self._lock:
            if self._opened is None:
                self._opened = self._open()
            db = self._opened
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
            except BaseException:
                db.rollback()
                raise
            db.commit()

    def _open(self) -> sqlite3.Connection:
        if self._path is not None:  # private: contents of conversations
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))
        db = sqlite3.connect(
            ":memory:" if self._path is None else self._path,
            timeout=_BUSY_S,
            isolation_level=None,
            check_same_thread=False,  # the lock admits one thread at a time
        )
        try:
            # the file need not survive a crash of the machine, and deleted items must be
            # overwritten
            _begin_log(db)
            db.execute("PRAGMA synchronous = OFF")
            db.executescript(f"PRAGMA secure_delete = ON; BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
        except BaseException:
            db.close()
            raise
        weakref.finalize(self, db.close)
        return db


def _find(
    db: sqlite3.Connection, columns: str, kind: str, name: str, owner: str
) -> tuple[Any, ...] | None:
    """Return columns of an owner's item, or None if it does not exist."""
    where = "kind = ? AND id = ? AND owner = ?"
    found = db.execute(f"SELECT {columns} FROM items WHERE {where}", (kind, name, owner))
    row: tuple[Any, ...] | None = found.fetchone()
    return row


def _begin_log(db: sqlite3.Connection) -> None:
    """Switch to a write-ahead log; retry, as SQLite does not wait while another process switches.

    Raises:
        sqlite3.OperationalError: The other process takes too long.
    """
    until_s = time.monotonic() + _BUSY_S
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError:
            if time.monotonic() > until_s:
                raise
            time.sleep(_PAUSE_S)
        else:
            return
