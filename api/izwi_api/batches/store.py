"""Files and batches on disk: an index in SQLite, which all API servers share, and contents.

The index survives a crash of the process and of the machine. Contents are files whose names are
ids that were drawn here; a caller's file name is only a text in the index.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from izwi.errors import BatchNotFound, FileNotStored, InvalidRequest, TooLarge

KEPT_S = 30 * 86_400
# Of one key.
MAX_FILES, MAX_BYTES, MAX_OPEN_BATCHES = 10_000, 2 << 30, 100

OPEN = ("validating", "in_progress", "finalizing", "cancelling")
_BUSY_S = 10.0
_COPIED_BYTES = 1 << 20
# Contents without an entry are removed when they are so old: an upload may be in progress.
_ABANDONED_S = 3600.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS files (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, owner TEXT NOT NULL,
    purpose TEXT NOT NULL, bytes INTEGER NOT NULL, expires_at INTEGER NOT NULL, fields BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS batches (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, owner TEXT NOT NULL,
    status TEXT NOT NULL, fields BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS events (
    id TEXT PRIMARY KEY, body BLOB NOT NULL, tries INTEGER NOT NULL, due_at REAL NOT NULL
);
"""


class StoredFile(msgspec.Struct, frozen=True):
    """A file of one key. Times are seconds since 1970."""

    id: str
    owner: str
    purpose: str
    filename: str
    bytes: int
    created_at: int
    expires_at: int

    def shown(self) -> dict[str, Any]:
        """Return it as OpenAI shows it."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        del fields["owner"]
        return fields | {"object": "file", "status": "processed", "status_details": None}


class Batch(msgspec.Struct):
    """A batch of one key.

    Attributes:
        model: That of its first line; a server that does not serve it leaves the batch alone.
        results: Ids of the files of outputs and of errors, which are listed when it has ended.
        times: When it reached each status, as "completed_at".
        has_output: Whether any line succeeded; the same for errors.
        audio_output: "files": the audio of each line is a file of its own.
    """

    id: str
    owner: str
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int
    model: str | None = None
    status: str = "validating"
    metadata: dict[str, str] | None = None
    results: tuple[str, str] = ("", "")
    has_output: bool = False
    has_errors: bool = False
    total: int = 0
    completed: int = 0
    failed: int = 0
    times: dict[str, int] = {}
    errors: list[dict[str, Any]] = []
    audio_output: str = "base64"

    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
        return self.status in OPEN

    def shown(self) -> dict[str, Any]:
        """Return it as OpenAI shows it."""
        names = ("in_progress", "finalizing", "completed", "failed", "expired")
        times = {f"{name}_at": None for name in (*names, "cancelling", "cancelled")}
        errors = {"object": "list", "data": self.errors} if self.errors else None
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "model": self.model,
            "errors": errors,
            "input_file_id": self.input_file_id,
            "completion_window": self.completion_window,
            "status": self.status,
            "output_file_id": self.results[0] if self.has_output and not self.is_open else None,
            "error_file_id": self.results[1] if self.has_errors and not self.is_open else None,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            **times,
            **self.times,
            "request_counts": {
                "total": self.total,
                "completed": self.completed,
                "failed": self.failed,
            },
            "metadata": self.metadata,
            "audio_output": self.audio_output,
        }


class AudioFile(msgspec.Struct, frozen=True):
    """The audio of one line, to be stored as a file.

    Attributes:
        id: The same for each run of the line, so that a second one replaces what a crash left.
        filename: What the caller sees.
        content: The audio.
    """

    id: str
    filename: str
    content: bytes


class BatchStore:
    """The files and batches of a server. Every method blocks on the disk.

    Args:
        folder: Where they are; created when needed.
        clock: Seconds since 1970.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time):
        self.folder, self._clock = folder, clock
        self._is_made = False

    @property
    def exists(self) -> bool:
        """Whether anything was ever stored."""
        return self._is_made or (self.folder / "index.sqlite").exists()

    def now_s(self) -> int:
        """Return the time, in whole seconds since 1970."""
        return int(self._clock())

    def path(self, file_id: str) -> Path:
        """Return where the content of a file is; the id is one of ours."""
        return self.folder / "files" / file_id

    # -- files -------------------------------------------------------------------------------
    def add_file(
        self, owner: str, purpose: str, filename: str, content: BinaryIO, kept_s: int = KEPT_S
    ) -> StoredFile:
        """Store a file.

        Raises:
            TooLarge: The key has too many files, or too many bytes of them.
            OSError: The disk is full.
        """
        name, now = new_file_id(), self.now_s()
        with self._transaction() as db:  # before anything is written
            self._check_room(db, owner, 0)
        path = self.path(name)
        try:
            size = _write(path, content)
            file = StoredFile(name, owner, purpose, filename, size, now, now + kept_s)
            with self._transaction() as db:
                self._check_room(db, owner, size)
                _insert_file(db, file)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return file

    def _check_room(self, db: sqlite3.Connection, owner: str, size: int) -> None:
        where = "SELECT COUNT(*), COALESCE(SUM(bytes), 0) FROM files WHERE owner = ?"
        count, used = db.execute(where, (owner,)).fetchone()
        if count >= MAX_FILES or used + size > MAX_BYTES:
            raise TooLarge(
                f"this key may store {MAX_FILES} files of together {MAX_BYTES} bytes; delete some",
                param="file",
            )

    def file(self, owner: str, file_id: str) -> StoredFile:
        """Return a file. Raises FileNotStored."""
        with self._transaction() as db:
            where = "id = ? AND owner = ? AND expires_at > ?"
            values = (file_id, owner, self.now_s())
            row = db.execute(f"SELECT fields FROM files WHERE {where}", values).fetchone()
        if row is None:
            raise _no_file(file_id)
        return msgspec.json.decode(row[0], type=StoredFile)

    def read(self, owner: str, file_id: str, limit_bytes: int) -> bytes:
        """Return the content of a file. Raises FileNotStored and TooLarge."""
        file = self.file(owner, file_id)
        if file.bytes > limit_bytes:
            raise TooLarge(f"the file is larger than {limit_bytes} bytes", param="file")
        return self.path(file.id).read_bytes()

    def files(self, owner: str, page: Page, purpose: str | None) -> tuple[list[StoredFile], bool]:
        """Return a page of files, and whether more follow. Raises FileNotStored."""
        where, values = "owner = ? AND expires_at > ?", [owner, self.now_s()]
        if purpose is not None:
            where, values = f"{where} AND purpose = ?", [*values, purpose]
        with self._transaction() as db:
            found = _page(db, "files", where, values, page)
        if found is None:
            raise _no_file(page.after or "")
        files = [msgspec.json.decode(row, type=StoredFile) for row in found]
        return files[: page.limit], len(files) > page.limit

    def put_audio(self, owner: str, audio: AudioFile) -> None:
        """Store the audio of a line, in place of that of an earlier run. Raises OSError."""
        path, now = self.path(audio.id), self.now_s()
        draft = path.with_name(new_file_id())  # no reader sees a part
        try:
            _write(draft, BytesIO(audio.content))
            draft.replace(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        times, size = (now, now + KEPT_S), len(audio.content)
        file = StoredFile(audio.id, owner, "batch_output", audio.filename, size, *times)
        with self._transaction() as db:
            db.execute("DELETE FROM files WHERE id = ?", (audio.id,))
            _insert_file(db, file)

    def delete_file(self, owner: str, file_id: str) -> None:
        """Delete a file.

        Raises:
            FileNotStored: There is none.
            InvalidRequest: A batch reads it.
        """
        file = self.file(owner, file_id)
        with self._transaction() as db:
            if any(batch.input_file_id == file.id for batch in _open_batches(db)):
                raise InvalidRequest("a batch reads this file: cancel it first", param="file_id")
            db.execute("DELETE FROM files WHERE id = ?", (file.id,))
        self.path(file.id).unlink(missing_ok=True)

    # -- batches -----------------------------------------------------------------------------
    def add_batch(self, batch: Batch) -> None:
        """Store a new batch. Raises TooLarge if its key has too many that have not ended."""
        with self._transaction() as db:
            if sum(one.owner == batch.owner for one in _open_batches(db)) >= MAX_OPEN_BATCHES:
                raise TooLarge(f"this key has {MAX_OPEN_BATCHES} batches that have not ended")
            values = (batch.id, batch.owner, batch.status, msgspec.json.encode(batch))
            db.execute(
                "INSERT INTO batches (id, owner, status, fields) VALUES (?, ?, ?, ?)", values
            )

    def batch(self, owner: str | None, batch_id: str) -> Batch:
        """Return a batch, of any owner if it is None. Raises BatchNotFound."""
        with self._transaction() as db:
            return _batch(db, owner, batch_id)

    def batches(self, owner: str, page: Page) -> tuple[list[Batch], bool]:
        """Return a page of batches, and whether more follow. Raises BatchNotFound."""
        with self._transaction() as db:
            found = _page(db, "batches", "owner = ?", [owner], page)
        if found is None:
            raise _no_batch(page.after or "")
        batches = [msgspec.json.decode(row, type=Batch) for row in found]
        return batches[: page.limit], len(batches) > page.limit

    def open_batches(self) -> list[Batch]:
        """Return all batches that have not ended, the oldest first."""
        with self._transaction() as db:
            return _open_batches(db)

    def change(self, owner: str | None, batch_id: str, change: Callable[[Batch], None]) -> Batch:
        """Change a batch, and return it; no other process changes it meanwhile.

        Raises:
            BatchNotFound: There is none.
        """
        with self._transaction() as db:
            batch = _batch(db, owner, batch_id)
            change(batch)
            _save(db, batch)
        return batch

    def end(self, batch: Batch, *, with_event: bool) -> None:
        """Store the end of a batch with its result files, and the event that says so, at once."""
        with self._transaction() as db:
            for name, exists, part in zip(
                batch.results,
                (batch.has_output, batch.has_errors),
                ("output", "error"),
                strict=True,
            ):
                if not exists:
                    continue
                now, size = self.now_s(), self.path(name).stat().st_size
                filename = f"{batch.id}_{part}.jsonl"
                times = (now, now + KEPT_S)
                file = StoredFile(name, batch.owner, "batch_output", filename, size, *times)
                db.execute("DELETE FROM files WHERE id = ?", (name,))
                _insert_file(db, file)
            _save(db, batch)
            if with_event:
                name = f"evt_{secrets.token_hex(16)}"
                row = (name, _event_of(name, batch, self.now_s()), 0, self._clock())
                db.execute("INSERT INTO events VALUES (?, ?, ?, ?)", row)

    # -- events ------------------------------------------------------------------------------
    def claim_event(self, for_s: float) -> tuple[str, bytes, int] | None:
        """Return an event that is due, which no other process gets for some seconds; None: none is.

        Returns:
            Its id, its body, and how often it was claimed, with this time.
        """
        with self._transaction() as db:
            now = self._clock()
            query = "SELECT id, body, tries FROM events WHERE due_at <= ? ORDER BY due_at LIMIT 1"
            row = db.execute(query, (now,)).fetchone()
            if row is None:
                return None
            name, body, tries = row
            values = (tries + 1, now + for_s, name)
            db.execute("UPDATE events SET tries = ?, due_at = ? WHERE id = ?", values)
        return name, body, tries + 1

    def postpone_event(self, event_id: str, after_s: float) -> None:
        """Let an event be due again later."""
        with self._transaction() as db:
            values = (self._clock() + after_s, event_id)
            db.execute("UPDATE events SET due_at = ? WHERE id = ?", values)

    def forget_event(self, event_id: str) -> None:
        """Send an event no more."""
        with self._transaction() as db:
            db.execute("DELETE FROM events WHERE id = ?", (event_id,))

    # -- the disk ----------------------------------------------------------------------------
    def remove_expired(self) -> None:
        """Delete expired files and old batches, and contents that belong to nothing."""
        now = self._clock()
        with self._transaction() as db:
            reads = {batch.input_file_id for batch in _open_batches(db)}
            gone = [
                name
                for (name,) in db.execute("SELECT id FROM files WHERE expires_at <= ?", (now,))
                if name not in reads
            ]
            db.executemany("DELETE FROM files WHERE id = ?", [(name,) for name in gone])
            known = {name for (name,) in db.execute("SELECT id FROM files")}
            for batch in _open_batches(db):
                known.update(batch.results)
        for name in gone:
            self.path(name).unlink(missing_ok=True)
        for path in (self.folder / "files").iterdir():
            if path.name not in known and now - path.stat().st_mtime > _ABANDONED_S:
                path.unlink(missing_ok=True)

    @contextmanager
    def _transaction(self) -> Generator[sqlite3.Connection]:
        path = self.folder / "index.sqlite"
        if not self._is_made:
            (self.folder / "files").mkdir(parents=True, exist_ok=True, mode=0o700)
            (self.folder / "runs").mkdir(exist_ok=True, mode=0o700)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        with closing(sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)) as db:
            db.execute("PRAGMA synchronous = FULL")
            db.execute("BEGIN IMMEDIATE")
            try:
                if not self._is_made:
                    for statement in _SCHEMA.split(";"):
                        db.execute(statement)
                    self._is_made = True
                yield db
            except BaseException:
                db.rollback()
                raise
            db.commit()


class Page(msgspec.Struct, frozen=True):
    """A page of a list: what follows an id, at most so many, in which order."""

    after: str | None
    limit: int
    newest_first: bool = True


def new_file_id() -> str:
    """Return a new id of a file."""
    return f"file-{secrets.token_hex(16)}"


def audio_file_id(batch_id: str, number: int) -> str:
    """Return the id of the file with the audio of a line; batches have ids that nobody guesses."""
    return f"file-{hashlib.sha256(f'{batch_id}:{number}'.encode()).hexdigest()[:32]}"


def new_batch_id() -> str:
    """Return a new id of a batch."""
    return f"batch_{secrets.token_hex(16)}"


def _write(path: Path, content: BinaryIO) -> int:
    """Copy a content to the disk, and return its size."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with os.fdopen(os.open(path, flags, 0o600), "wb") as out:
        while piece := content.read(_COPIED_BYTES):
            out.write(piece)
        out.flush()
        os.fsync(out.fileno())
        return out.tell()


def _insert_file(db: sqlite3.Connection, file: StoredFile) -> None:
    columns = "id, owner, purpose, bytes, expires_at, fields"
    row = (file.id, file.owner, file.purpose, file.bytes, file.expires_at)
    db.execute(
        f"INSERT INTO files ({columns}) VALUES (?, ?, ?, ?, ?, ?)",
        (*row, msgspec.json.encode(file)),
    )


def _event_of(name: str, batch: Batch, now_s: int) -> bytes:
    """Return the end of a batch as OpenAI tells it."""
    return msgspec.json.encode(
        {
            "id": name,
            "object": "event",
            "created_at": now_s,
            "type": f"batch.{batch.status}",
            "data": {"id": batch.id},
        }
    )


def _batch(db: sqlite3.Connection, owner: str | None, batch_id: str) -> Batch:
    row = db.execute("SELECT owner, fields FROM batches WHERE id = ?", (batch_id,)).fetchone()
    if row is None or (owner is not None and row[0] != owner):
        raise _no_batch(batch_id)
    return msgspec.json.decode(row[1], type=Batch)


def _save(db: sqlite3.Connection, batch: Batch) -> None:
    values = (batch.status, msgspec.json.encode(batch), batch.id)
    db.execute("UPDATE batches SET status = ?, fields = ? WHERE id = ?", values)


def _open_batches(db: sqlite3.Connection) -> list[Batch]:
    marks = ", ".join("?" * len(OPEN))
    query = f"SELECT fields FROM batches WHERE status IN ({marks}) ORDER BY number"
    return [msgspec.json.decode(row, type=Batch) for (row,) in db.execute(query, OPEN)]


def _page(
    db: sqlite3.Connection, table: str, where: str, values: list[Any], page: Page
) -> list[bytes] | None:
    order, behind = ("DESC", "<") if page.newest_first else ("ASC", ">")
    if page.after is not None:
        query = f"SELECT number FROM {table} WHERE id = ? AND owner = ?"
        row = db.execute(query, (page.after, values[0])).fetchone()
        if row is None:
            return None
        where, values = f"{where} AND number {behind} ?", [*values, row[0]]
    query = f"SELECT fields FROM {table} WHERE {where} ORDER BY number {order} LIMIT ?"
    return [row for (row,) in db.execute(query, (*values, page.limit + 1))]


def _no_file(file_id: str) -> FileNotStored:
    return FileNotStored(f"there is no file {file_id[:64]!r}", param="file_id")


def _no_batch(batch_id: str) -> BatchNotFound:
    return BatchNotFound(f"there is no batch {batch_id[:64]!r}", param="batch_id")
