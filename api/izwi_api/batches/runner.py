"""Run batches: one process has the lease of each, and its lines use what others leave idle."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import secrets
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, Protocol

import msgspec
from starlette.types import ASGIApp

from izwi.audio.encode import CONTENT_TYPES
from izwi.errors import InvalidRequest
from izwi_api.batches.calls import LineAnswer, call_app
from izwi_api.batches.lines import (
    TRANSCRIPTIONS,
    Asked,
    Line,
    audio_of,
    check_lines,
    form_of,
    read_line,
)
from izwi_api.batches.results import Begun, Lease, ResultFile
from izwi_api.batches.store import AudioFile, Batch, BatchStore, audio_file_id, new_file_id
from izwi_api.http.drain import Drain
from izwi_api.http.errors import body_of, status_of
from izwi_api.routes.openapi import IGNORED
from izwi_api.settings import Settings

logger = logging.getLogger(__name__)

# Other processes add and cancel batches, so the index is read so often.
POLL_S = 1.0
_SWEEP_S = 600.0
# A line does not start while this process answers requests, but an open session or a long stream
# does not stop it for longer; in the engine it waits for all of them.
_MAX_HOLD_S, _HOLD_STEP_S = 1.0, 0.02
# After a response that says that the line may succeed later.
_FIRST_WAIT_S, _MAX_WAIT_S = 1.0, 60.0
_LATER = frozenset({429, 503})
# After a failure of the server, and after a process that died: a line is tried so often.
_MAX_TRIES = 3
_BROKEN_WAIT_S = 30.0
_MAX_NAME_CHARS = 200


class Sender(Protocol):
    """Sends events of batches."""

    async def send_due(self) -> None:
        """Send what is due. Raises OSError and sqlite3.Error."""
        ...

    def stop(self) -> None:
        """Release what it holds."""
        ...


class BatchRunner:
    """Runs the batches of a server that no other process runs.

    Args:
        app: The whole app, which is asked each line.
        store: The batches.
        settings: Limits.
        drain: Lines stop when it begins.
        serves: Whether a model is served here, by its name or alias.
        sender: Sends events, or None.
    """

    def __init__(
        self,
        app: ASGIApp,
        store: BatchStore,
        settings: Settings,
        drain: Drain,
        serves: Callable[[str], bool],
        sender: Sender | None = None,
    ):
        self._app, self._store, self._settings = app, store, settings
        self._drain, self._serves, self._sender = drain, serves, sender
        self._places = asyncio.Semaphore(settings.batch_lines)
        self._running: dict[str, asyncio.Task[None]] = {}
        self._owners: dict[str, str] = {}  # of running batches: one of each key at a time
        self._again_s: dict[str, float] = {}
        self._sending: asyncio.Task[None] | None = None
        self._loop: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._swept_s = float("-inf")

    def start(self) -> None:
        """Begin, on the event loop."""
        self._loop = asyncio.create_task(self._run(), name="batches")

    def wake(self) -> None:
        """Look at once for what has changed."""
        self._wake.set()

    async def stop(self) -> None:
        """Stop all lines; they run again when a server starts."""
        tasks = [task for task in (self._loop, self._sending) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._sender is not None:
            self._sender.stop()
        await self._stop_lines()

    async def _stop_lines(self) -> None:
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _run(self) -> None:
        while not self._drain.is_begun:
            try:
                if await asyncio.to_thread(lambda: self._store.exists):
                    await self._look()
            except Exception:
                logger.exception("batches cannot be read")
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._wake.wait()
        await self._stop_lines()

    async def _look(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._swept_s > _SWEEP_S:
            self._swept_s = now_s
            await asyncio.to_thread(self._store.remove_expired)
        if self._sender is not None and (self._sending is None or self._sending.done()):
            self._sending = asyncio.create_task(self._send_events(self._sender))
        for batch in await asyncio.to_thread(self._store.open_batches):
            if batch.id in self._running or batch.owner in self._owners.values():
                continue
            if self._again_s.get(batch.id, 0.0) > now_s:
                continue
            if batch.model is not None and not self._serves(batch.model):
                continue
            lease = Lease.claim(self._store.folder / "runs" / f"{batch.id}.lease")
            if lease is not None:
                self._running[batch.id] = asyncio.create_task(self._run_batch(batch.id, lease))
                self._owners[batch.id] = batch.owner

    async def _send_events(self, sender: Sender) -> None:
        try:
            await sender.send_due()
        except (OSError, sqlite3.Error):
            logger.exception("events of batches were not sent; they are due again later")

    async def _run_batch(self, batch_id: str, lease: Lease) -> None:
        try:
            # what another process did until it gave the lease back
            batch = await asyncio.to_thread(self._store.batch, None, batch_id)
            if batch.is_open:
                await _BatchRun(self, batch).run()
        except Exception:  # also what nothing foresaw: begun again at once, it would never end
            logger.exception("a batch was interrupted; it goes on in %g s", _BROKEN_WAIT_S)
            self._again_s[batch_id] = asyncio.get_running_loop().time() + _BROKEN_WAIT_S
        finally:
            lease.release()
            del self._running[batch_id], self._owners[batch_id]
            self.wake()

    async def ask(self, batch: Batch, asked: Asked) -> LineAnswer:
        """Run a line when there is a place, and nothing else to do here."""
        async with self._places:
            held_s = 0.0
            while self._drain.num_running and held_s < _MAX_HOLD_S:
                await asyncio.sleep(_HOLD_STEP_S)
                held_s += _HOLD_STEP_S
            kind, body = b"application/json", json.dumps(asked.body).encode()
            if batch.endpoint == TRANSCRIPTIONS:
                kind, body = await self._form(batch, asked)
            return await call_app(self._app, batch.endpoint, kind, body, batch.owner)

    async def _form(self, batch: Batch, asked: Asked) -> tuple[bytes, bytes]:
        """Return the form of a transcription. Raises InvalidRequest."""
        fields = dict(asked.body)
        source = fields.pop("file", None)
        if not isinstance(source, str):
            raise InvalidRequest("file must be the id of a file, or a data: URL", param="file")
        content = audio_of(source)
        if content is None:
            limit = self._settings.max_upload_bytes
            content = await asyncio.to_thread(self._store.read, batch.owner, source, limit)
        return await asyncio.to_thread(form_of, fields, content)

    @property
    def store(self) -> BatchStore:
        """The batches."""
        return self._store

    @property
    def sends_events(self) -> bool:
        """Whether the end of a batch is an event to send."""
        return self._sender is not None

    @property
    def max_line_bytes(self) -> int:
        """Bytes of one line."""
        return self._settings.max_json_bytes


class _Files(NamedTuple):
    """The files of a batch that runs."""

    output: ResultFile
    errors: ResultFile
    begun: Begun

    def close(self) -> None:
        for file in self:
            file.close()


class _BatchRun:
    """One batch, by the process that has its lease."""

    def __init__(self, runner: BatchRunner, batch: Batch):
        self._runner, self._store, self._batch = runner, runner.store, batch
        self._input = self._store.path(batch.input_file_id)
        self._lock = asyncio.Lock()  # of the files

    async def run(self) -> None:
        """Run it to its end. Raises OSError if the disk is full."""
        try:
            await self._run()
        except Exception:
            if not self._is_expired:
                raise
            logger.exception("a batch that cannot be run has expired")
            output, errors = map(self._store.path, self._batch.results)
            self._batch.has_output = output.is_file() and output.stat().st_size > 0
            self._batch.has_errors = errors.is_file() and errors.stat().st_size > 0
            await self._end("expired")

    @property
    def _is_expired(self) -> bool:
        return self._store.now_s() >= self._batch.expires_at

    async def _run(self) -> None:
        batch = self._batch
        checked = await asyncio.to_thread(
            check_lines, self._input, batch.endpoint, self._runner.max_line_bytes
        )
        if checked.faults:
            batch.errors = checked.faults
            await self._end("failed")
            return
        if not batch.results[0]:
            await self._change(partial(_begin, total=len(checked.lines), now=self._store.now_s()))
        files = await asyncio.to_thread(self._open_files)
        try:
            status = await self._run_lines(checked.lines, files)
            self._batch.has_output = bool(files.output.done)
            self._batch.has_errors = bool(files.errors.done)
            _take_counts(self._batch, files=files)
        finally:
            files.close()
        await self._end(status)

    def _open_files(self) -> _Files:
        output, errors = (ResultFile(self._store.path(name)) for name in self._batch.results)
        begun = Begun(self._store.folder / "runs" / f"{self._batch.id}.begun")
        return _Files(output, errors, begun)

    async def _run_lines(self, lines: Sequence[Line], files: _Files) -> str:
        """Run the lines that are not done; return the status with which the batch ends."""
        done = files.output.done | files.errors.done
        rest = ((n, line) for n, line in enumerate(lines, 1) if line.custom_id not in done)
        workers = [
            asyncio.create_task(self._work(rest, files))
            for _ in range(self._runner._settings.batch_lines)
        ]
        status = "completed"
        try:
            while unfinished := [task for task in workers if not task.done()]:
                await asyncio.wait(unfinished, timeout=POLL_S, return_when=asyncio.FIRST_EXCEPTION)
                await self._change(partial(_take_counts, files=files))
                for task in workers:
                    if task.done() and not task.cancelled() and (error := task.exception()):
                        raise error
                if self._batch.status == "cancelling":
                    status = "cancelled"
                    break
                if self._is_expired:
                    status = "expired"
                    break
        finally:
            for task in workers:
                task.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        if status == "expired":
            await asyncio.to_thread(self._expire_rest, lines, files)
        return status

    def _expire_rest(self, lines: Sequence[Line], files: _Files) -> None:
        error = {
            "code": "batch_expired",
            "message": "This request could not be executed before the completion window expired.",
        }
        done = files.output.done | files.errors.done
        for line in lines:
            if line.custom_id not in done:
                files.errors.append(line.custom_id, _result(line.custom_id, None, error))

    async def _work(self, rest: Iterator[tuple[int, Line]], files: _Files) -> None:
        for number, line in rest:
            if files.begun.count(number) >= _MAX_TRIES:
                message = "the server stopped each time that it ran this request"
                error = {"code": "server_error", "message": message}
                await self._append(files.errors, line, _result(line.custom_id, None, error))
                continue
            files.begun.begin_line(number)
            try:
                await self._run_line(number, line, files)
            finally:  # only a process that dies leaves it begun
                files.begun.give_up(number)

    async def _run_line(self, number: int, line: Line, files: _Files) -> None:
        """Run a line and append its result. Raises OSError and sqlite3.Error."""
        audio: AudioFile | None = None
        try:
            answer = await self._answer(line)
            audio = self._audio(number, line, answer)
            result = await asyncio.to_thread(_result_of, line.custom_id, answer, audio)
            into = files.output if answer.status < 400 else files.errors
        except (OSError, sqlite3.Error):
            raise  # of the disk, whose batch goes on later
        except Exception:
            logger.exception("a line of a batch cannot be run")
            error = {"code": "server_error", "message": "the server failed at this request"}
            into, result = files.errors, _result(line.custom_id, None, error)
            audio = None
        await self._append(into, line, result, audio)

    def _audio(self, number: int, line: Line, answer: LineAnswer) -> AudioFile | None:
        """Return the file that a response becomes; None if the line has its audio, or none."""
        kind = answer.headers.get("content-type", "")
        if self._batch.audio_output != "files" or not kind.startswith("audio/"):
            return None
        suffix = _SUFFIXES.get(kind, "audio")
        name = f"{line.custom_id[:_MAX_NAME_CHARS]}.{suffix}"
        return AudioFile(audio_file_id(self._batch.id, number), name, answer.body)

    async def _append(
        self, file: ResultFile, line: Line, result: bytes, audio: AudioFile | None = None
    ) -> None:
        def write() -> None:
            if audio is not None:
                self._store.put_audio(self._batch.owner, audio)
            file.append(line.custom_id, result)

        async with self._lock:
            # it is written to its end also if the batch stops meanwhile
            writing = asyncio.create_task(asyncio.to_thread(write))
            try:
                await asyncio.shield(writing)
            except asyncio.CancelledError:
                await asyncio.wait([writing])
                raise

    async def _answer(self, line: Line) -> LineAnswer:
        """Return the response to a line, after some tries if the server cannot answer now."""
        content = await asyncio.to_thread(self._read, line)
        wait_s, num_failed = _FIRST_WAIT_S, 0
        while True:
            try:
                asked = read_line(content, self._batch.endpoint)
                answer = await self._runner.ask(self._batch, asked)
            except InvalidRequest as error:
                return LineAnswer(status_of(error), _JSON, json.dumps(body_of(error)).encode())
            num_failed += answer.status >= 500 and answer.status not in _LATER
            if answer.status < 500 and answer.status not in _LATER:
                return answer
            if num_failed >= _MAX_TRIES:
                return answer
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _MAX_WAIT_S)

    def _read(self, line: Line) -> bytes:
        with self._input.open("rb") as file:
            file.seek(line.start)
            return file.read(line.num_bytes)

    async def _change(self, change: Callable[[Batch], None]) -> None:
        self._batch = await asyncio.to_thread(self._store.change, None, self._batch.id, change)

    async def _end(self, status: str) -> None:
        batch = self._batch
        batch.status = status
        batch.times = batch.times | {f"{status}_at": self._store.now_s()}
        sends = self._runner.sends_events
        await asyncio.to_thread(partial(self._store.end, batch, with_event=sends))
        for kind in ("begun", "lease"):
            (self._store.folder / "runs" / f"{batch.id}.{kind}").unlink(missing_ok=True)


_JSON = {"content-type": "application/json"}
_SUFFIXES = {kind: suffix for suffix, kind in CONTENT_TYPES.items()}


def _begin(batch: Batch, *, total: int, now: int) -> None:
    if batch.status == "validating":
        batch.status = "in_progress"
    batch.total, batch.results = total, (new_file_id(), new_file_id())
    batch.times = batch.times | {"in_progress_at": now}


def _take_counts(batch: Batch, *, files: _Files) -> None:
    batch.completed, batch.failed = len(files.output.done), len(files.errors.done)


def _result_of(custom_id: str, answer: LineAnswer, audio: AudioFile | None) -> bytes:
    """Return the line of a response, whose audio may be a file."""
    kind = answer.headers.get("content-type", "")
    body: Any
    if kind.startswith("application/json"):
        body = json.loads(answer.body)
    elif kind.startswith("text/") or kind == "application/x-subrip":
        body = {"object": "text", "content_type": kind, "text": answer.body.decode()}
    elif audio is not None:
        body = {"object": "audio", "content_type": kind, "file_id": audio.id}
    else:
        data = base64.b64encode(answer.body).decode()
        body = {"object": "audio", "content_type": kind, "data": data}
    request_id = answer.headers.get("x-request-id", "")
    response = {"status_code": answer.status, "request_id": request_id, "body": body}
    if ignored := answer.headers.get(IGNORED):
        response["ignored"] = ignored.split(", ")
    return _result(custom_id, response, None)


def _result(custom_id: str, response: dict[str, Any] | None, error: dict[str, Any] | None) -> bytes:
    name = f"batch_req_{secrets.token_hex(12)}"
    return msgspec.json.encode(
        {"id": name, "custom_id": custom_id, "response": response, "error": error}
    )
