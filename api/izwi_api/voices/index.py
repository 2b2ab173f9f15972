"""The index of stored voices and consents: one SQLite file for many processes.

It makes names unique and look-ups fast. Its content is also in the folders, so a missing index is
rebuilt from them, and folders of an older izwi are converted.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
import time
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from izwi.errors import IzwiError, Overloaded, StorageFull
from izwi_api.voices.disk import no_room
from izwi_api.voices.files import replace_durably, sweep, sync_folder, throw_away
from izwi_api.voices.manifest import FORMAT, MAX_BYTES, read_manifest

logger = logging.getLogger(__name__)

INDEX_NAME = "index.sqlite3"
# A writer holds the index for some milliseconds; dozens may queue.
_BUSY_S = 20.0
_PAUSE_S = 0.01

# Columns are the manifest's keys.
COLUMNS = {
    "voices": (
        *("id", "name", "created_at", "text", "prompt", "consent"),
        *("sample", "sample_bytes"),
    ),
    "consents": ("id", "name", "language", "created_at", "recording", "recording_bytes"),
}
MANIFESTS = {"voices": "voice.json", "consents": "consent.json"}
_SCHEMA = """
CREATE TABLE voices (
    id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, created_at INTEGER NOT NULL,
    text TEXT, prompt TEXT, consent TEXT,
    sample TEXT NOT NULL, sample_bytes INTEGER NOT NULL
);
CREATE TABLE consents (
    id TEXT PRIMARY KEY, name TEXT NOT NULL, language TEXT NOT NULL,
    created_at INTEGER NOT NULL, recording TEXT NOT NULL, recording_bytes INTEGER NOT NULL
);
"""
# As SQLite describes the columns of these tables.
_TABLE_INFO = "SELECT name, type, [notnull], pk FROM pragma_table_info(?) ORDER BY cid"

Fields = dict[str, Any]


class NameTaken(Exception):
    """A row with that name exists."""


class VoiceIndex:
    """The index of one folder of voices. Every call opens the file, so threads share nothing.

    Methods raise Overloaded if the index is locked for too long, StorageFull if the disk is full,
    and IzwiError if the file is damaged or was written by a newer izwi.
    """

    def __init__(self, root: Path):
        self._root = root
        self._path = root / INDEX_NAME
        self._lock = threading.Lock()
        self._is_settled = False

    def find(self, query: str, *values: object) -> list[Fields]:
        """Return the rows of a query; none if the folder does not exist."""
        if not self._root.is_dir():
            return []
        self._settle()
        with self._open() as db:
            return [dict(row) for row in db.execute(query, values)]

    @contextmanager
    def change(self) -> Generator[sqlite3.Connection]:
        """Yield a connection in an exclusive transaction; an error rolls it back."""
        self._root.mkdir(parents=True, exist_ok=True)
        self._settle()
        with self._open() as db, _transaction(db):
            yield db

    def publish(self, table: str, folder: Path, fields: Fields) -> None:
        """Rename a complete folder into place and add its row, both or none.

        Raises:
            NameTaken: Another row has the name.
            OSError: The folder cannot be renamed.
        """
        place = self._root / fields["id"]
        try:
            with self.change() as db:
                self._forget_lost(db, fields["name"])
                _insert(db, table, fields)
                folder.rename(place)
                sync_folder(self._root)
        except BaseException:
            if place.exists():
                throw_away(place)
            raise

    def forget(self, table: str, row_id: str) -> None:
        """Delete the row of a deleted folder.

        On a full disk the row remains until there is room. Without its folder it is not found, and
        its name is free.
        """
        with suppress(StorageFull), self.change() as db:
            db.execute(f"DELETE FROM {table} WHERE id = ?", (row_id,))

    def _forget_lost(self, db: sqlite3.Connection, name: str) -> None:
        """Free the name of a voice whose deletion was interrupted."""
        for row in db.execute("SELECT id FROM voices WHERE name = ?", (name,)).fetchall():
            if not (self._root / row["id"]).is_dir():
                db.execute("DELETE FROM voices WHERE id = ?", (row["id"],))

    @contextmanager
    def _open(self) -> Generator[sqlite3.Connection]:
        try:
            with closing(_connect(self._path)) as db:
                db.row_factory = sqlite3.Row
                # A committed change survives a crash of the machine.
                db.execute("PRAGMA synchronous = FULL")
                yield db
        except sqlite3.IntegrityError as error:
            raise NameTaken("the name is taken") from error
        except sqlite3.Error as error:
            raise _reported(error, self._path) from error

    def _settle(self) -> None:
        """Create the index if it is missing, and add folders without a row; once per object."""
        with self._lock:
            # A damaged file may have been moved away, or the folder emptied.
            if self._is_settled and self._path.exists():
                return
            self._prepare()
            sweep(self._root)
            try:
                self._take_in()
            except StorageFull as error:  # existing rows can be read
                logger.warning("folders of voices are not indexed yet: %s", error)
                return
            self._is_settled = True

    def _prepare(self) -> None:
        until_s = time.monotonic() + _BUSY_S
        while True:
            try:
                with closing(_connect(self._path)) as db:
                    _make_tables(db)
                return
            except sqlite3.OperationalError as error:
                # Changing the journal mode does not wait for other connections, so we do.
                is_busy = error.sqlite_errorcode in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
                if not is_busy or time.monotonic() > until_s:
                    raise _reported(error, self._path) from error
                time.sleep(_PAUSE_S)
            except sqlite3.Error as error:
                raise _reported(error, self._path) from error

    def _take_in(self) -> None:
        with self._open() as db:
            known = _ids(db)
        present = {path.name for path in self._root.iterdir() if _has_manifest(path)}
        if known == present:
            return
        with self._open() as db, _transaction(db):
            # Now no process is between renaming a folder and writing its row.
            for lost in sorted(known):
                if not (self._root / lost).is_dir():
                    db.execute("DELETE FROM voices WHERE id = ?", (lost,))
                    db.execute("DELETE FROM consents WHERE id = ?", (lost,))
            for name in sorted(present - _ids(db)):
                self._adopt(db, self._root / name)

    def _adopt(self, db: sqlite3.Connection, folder: Path) -> None:
        """Add the row of a folder, and rename the folder to its id.

        One that cannot be used remains where it is, and the log names it.
        """
        for table, manifest in MANIFESTS.items():
            try:
                if not (folder / manifest).is_file():
                    continue
                fields = _read_fields(folder, table)
                place = folder.with_name(fields["id"])
                if place != folder and place.exists():
                    raise ValueError(f"{place.name} is there already")
                if place != folder:
                    replace_durably(folder / manifest, manifest_bytes(fields))
                _insert(db, table, fields)
                folder.rename(place)
            except (OSError, ValueError, sqlite3.IntegrityError) as error:
                logger.warning("%s is not indexed: %s", folder, error)
            return


def _connect(path: Path) -> sqlite3.Connection:
    """Open an index so that it can be read, even on a full disk. Raises sqlite3.Error."""
    # Transactions are explicit.
    db = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)
    try:
        _version(db)
        return db
    except sqlite3.OperationalError as error:
        db.close()
        if error.sqlite_errorcode != sqlite3.SQLITE_IOERR_SHMSIZE:
            raise
    except BaseException:
        db.close()
        raise
    # There is no room for the shared-memory file that connections need to coordinate. A single
    # connection does without it; it locks the index until it is closed, for some milliseconds.
    alone = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)
    alone.execute("PRAGMA locking_mode = EXCLUSIVE")
    return alone


def _version(db: sqlite3.Connection) -> int:
    (version,) = db.execute("PRAGMA user_version").fetchone()
    return int(version)


def _insert(db: sqlite3.Connection, table: str, fields: Fields) -> None:
    columns = COLUMNS[table]
    marks = ", ".join(f":{column}" for column in columns)
    db.execute(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", fields)


def manifest_bytes(fields: Fields) -> bytes:
    """Return the content of a folder's manifest: the row, and the number of the format."""
    text = json.dumps({"format": FORMAT} | fields, ensure_ascii=False, indent=1)
    return text.encode("utf-8") + b"\n"


@contextmanager
def _transaction(db: sqlite3.Connection) -> Generator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            db.execute("ROLLBACK")
        raise


def _make_tables(db: sqlite3.Connection) -> None:
    """Create or update the tables. Raises IzwiError if the file is of a newer izwi."""
    version = _version(db)
    if version > FORMAT:
        raise IzwiError("the voices were written by a newer izwi")
    if version == FORMAT and _has_our_columns(db):
        return
    db.execute("PRAGMA journal_mode = WAL")  # readers and a writer do not block each other
    with _transaction(db):
        if _version(db) == FORMAT:  # another process may have been faster
            if _has_our_columns(db):
                return
            logger.warning("the index of the voices is damaged and is made again from the folders")
            for table in COLUMNS:
                db.execute(f"DROP TABLE IF EXISTS {table}")
        for statement in filter(str.strip, _SCHEMA.split(";")):
            db.execute(statement)
        db.execute(f"PRAGMA user_version = {FORMAT}")


def _has_our_columns(db: sqlite3.Connection) -> bool:
    """Whether the tables are those of the schema; a file that was changed by hand has others."""
    return {table: _columns(db, table) for table in COLUMNS} == _our_columns()


@cache
def _our_columns() -> dict[str, list[tuple[object, ...]]]:
    with closing(sqlite3.Connection(":memory:")) as db:
        db.executescript(_SCHEMA)
        return {table: _columns(db, table) for table in COLUMNS}


def _columns(db: sqlite3.Connection, table: str) -> list[tuple[object, ...]]:
    return [tuple(row) for row in db.execute(_TABLE_INFO, (table,))]


def _ids(db: sqlite3.Connection) -> set[str]:
    rows = db.execute("SELECT id FROM voices UNION ALL SELECT id FROM consents")
    return {row[0] for row in rows}


def _has_manifest(path: Path) -> bool:
    if path.name.startswith("."):
        return False
    try:
        return any((path / manifest).is_file() for manifest in MANIFESTS.values())
    except OSError:  # a folder that cannot be read is named when it is not indexed
        return True


def _read_fields(folder: Path, table: str) -> Fields:
    """Return the row of a folder.

    Raises:
        ValueError, OSError: Its manifest cannot be used.
    """
    with (folder / MANIFESTS[table]).open("rb") as file:
        fields = read_manifest(file.read(MAX_BYTES + 1), table)
    key = "sample" if table == "voices" else "recording"
    fields[f"{key}_bytes"] = (folder / fields[key]).stat().st_size
    return {column: fields[column] for column in COLUMNS[table]}


def _reported(error: sqlite3.Error, path: Path) -> IzwiError:
    code = getattr(error, "sqlite_errorcode", None)
    if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE):
        return no_room()
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return Overloaded("the index of the voices is busy", retry_after_s=1)
    return IzwiError(
        f"the index of the voices cannot be used ({error}); if it is damaged, move {path} away "
        "and it is made again from the folders beside it"
    )
