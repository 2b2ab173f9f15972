"""Record requests and their output. `izwi.recording.replay` checks that they are reproduced.

A request is its log: preparing the same input again and running it in any batch gives the same
entries. `izwi.recording.line` describes the lines.
"""

from __future__ import annotations

import hashlib
import logging
import os
import queue
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from izwi.audio.pcm import to_s16le
from izwi.backends.protocol import Backend
from izwi.inputs.chat import ChatInput
from izwi.inputs.conversation import ConversationInput
from izwi.inputs.speech import SpeechInput, TranscriptionInput
from izwi.model.frontend import (
    ChatFrontend,
    ConversationFrontend,
    SpeechFrontend,
    TranscriptionFrontend,
)
from izwi.recording.line import (
    VERSION,
    ChatLine,
    ConversationLine,
    Line,
    Prepared,
    SpeechLine,
    TranscriptionLine,
)
from izwi.request.request import Chunk, Reason, Request
from izwi.request.serialization import encode_line

logger = logging.getLogger(__name__)

# Submissions and chunks that may wait for a slow disk; beyond that, recording stops.
_MAX_PENDING = 16_384
_CLOSE_S = 10.0


class Models(Protocol):
    """Served models by name, as in `izwi.checkpoints.registry.Registry`."""

    def speech(self, name: str) -> SpeechFrontend:
        """Return a model that speaks. Raises ModelNotFound and InvalidRequest."""
        ...

    def transcription(self, name: str) -> TranscriptionFrontend:
        """Return a model that transcribes. Raises ModelNotFound and InvalidRequest."""
        ...

    def chat(self, name: str) -> ChatFrontend:
        """Return a model that answers in text. Raises ModelNotFound and InvalidRequest."""
        ...

    def conversation(self, name: str) -> ConversationFrontend:
        """Return a speech-to-speech model. Raises ModelNotFound and InvalidRequest."""
        ...

    def fingerprint(self, name: str) -> str:
        """Return a short text that changes with the checkpoint behind a name."""
        ...


def platform_of(backend: Backend, weights: str = "auto", attention: str = "auto") -> str:
    """Return what determines the last bits: device, dtype, and library with its kernels."""
    name = backend.dtype_name
    name += "" if weights == "auto" else f" with {weights} weights"
    name += "" if attention == "auto" else f" with attention by {attention}"
    return f"{backend.device_name} {name}, {backend.library}"


@dataclass(slots=True)
class _OpenRecord:
    """A request in flight and its output so far."""

    request: Request
    entries: list[tuple[int, ...]] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    num_samples: int = 0
    pcm_hash: Any = field(default_factory=hashlib.sha256)

    def add_chunk(self, chunk: Chunk) -> None:
        self.entries += entries_of(chunk)
        if chunk.pcm is not None and chunk.pcm.size:
            self.num_samples += chunk.pcm.size
            self.pcm_hash.update(to_s16le(chunk.pcm))


class _Written(NamedTuple):
    """Text ids written to a request."""

    request_id: str
    text_ids: tuple[int, ...]


class RequestRecorder:
    """Recorder of ended requests. An `Observer` that costs the loop one queue put per call.

    Its own thread packs and writes. A failure, such as a full or slow disk, ends the recording with
    one line in the log, and does not affect serving.

    Attributes:
        num_lines: Number of requests written.
    """

    def __init__(self, path: Path, models: Models, platform: str):
        """Create the file, or open it to append.

        Raises:
            OSError: The file cannot be written.
        """
        self._path, self._models, self._platform = path, models, platform
        self._pending: queue.Queue[Request | _Written | Chunk | None] = queue.Queue(_MAX_PENDING)
        self._open: dict[str, _OpenRecord] = {}
        self._stopped = False
        self.num_lines = 0
        self._file = _open_to_append(path)
        self._thread = threading.Thread(target=self._run, name="izwi-trace", daemon=True)
        self._thread.start()

    @property
    def recording(self) -> bool:
        """Whether requests are still recorded."""
        return not self._stopped

    def submitted(self, request: Request) -> None:
        """Record a request from now on, if it can be rebuilt from its input.

        Alignments are not recorded, because no entry depends on earlier ones. Neither are requests
        whose text is written while they run, unless their input has the first ids of the turn, or
        those with adapters, which a replay would not find.
        """
        kinds = SpeechInput | TranscriptionInput | ChatInput | ConversationInput
        ask = request.ask
        if request.adapter is not None:
            return
        if request.open_input and not (isinstance(ask, SpeechInput) and ask.turn_ids):
            return
        if isinstance(ask, kinds):
            self._enqueue(request)

    def written(self, request_id: str, text_ids: Sequence[int]) -> None:
        """Add text ids to a request."""
        self._enqueue(_Written(request_id, tuple(text_ids)))

    def chunk(self, chunk: Chunk) -> None:
        """Add output to a request; its last chunk writes the line."""
        self._enqueue(chunk)

    def close(self) -> None:
        """Write ended requests, and close the file. Call it when the engine has stopped."""
        with suppress(queue.Full):
            self._pending.put(None, timeout=_CLOSE_S)
        self._thread.join(_CLOSE_S)
        self._stopped = True

    def _enqueue(self, item: Request | _Written | Chunk) -> None:
        if self._stopped:
            return
        try:
            self._pending.put_nowait(item)
        except queue.Full:  # what is in the queue is whole, so it is still written
            self._stop("the disk is too slow")

    def _stop(self, why: object) -> None:
        self._stopped = True
        logger.error("recording to %s has stopped: %s", self._path, why)

    def _run(self) -> None:
        failed = False
        with self._file:
            while (item := self._pending.get()) is not None:
                if failed:  # what was in flight is let go
                    continue
                try:
                    self._process_item(item)
                except Exception as error:  # a trace is never worth a request
                    failed = True
                    self._open.clear()
                    self._stop(error)

    def _process_item(self, item: Request | _Written | Chunk) -> None:
        if isinstance(item, Request):
            self._open[item.request_id] = _OpenRecord(item)
            return
        record = self._open.get(item.request_id)
        if record is None:
            return
        if isinstance(item, _Written):
            record.written += item.text_ids
            return
        record.add_chunk(item)
        if item.reason is not None:
            del self._open[item.request_id]
            if item.reason is not Reason.ERROR:
                self._write(encode_line(self._line(record, item.reason)))

    def _line(self, record: _OpenRecord, reason: Reason) -> Line:
        request, ask = record.request, record.request.ask
        known: dict[str, Any] = {
            "version": VERSION,
            "model": request.model,
            "fingerprint": self._models.fingerprint(request.model),
            "platform": self._platform,
            "request": Prepared.from_request(request),
            "entries": tuple(record.entries),
            "reason": reason,
        }
        if isinstance(ask, TranscriptionInput):
            text = transcribed(self._models, request.model, record.entries, ask.language)
            return TranscriptionLine(ask=ask, text=text, **known)
        if isinstance(ask, ChatInput):
            return ChatLine(ask=ask, text=answered(self._models, request, record.entries), **known)
        digest = record.pcm_hash.hexdigest() if record.num_samples else ""
        known |= {"num_samples": record.num_samples, "pcm_sha256": digest}
        if isinstance(ask, ConversationInput):
            text = answered(self._models, request, record.entries)
            return ConversationLine(ask=ask, text=text, **known)
        assert isinstance(ask, SpeechInput)
        return SpeechLine(ask=ask, written=tuple(record.written), **known)

    def _write(self, line: bytes) -> None:
        whole, num_written = self._file.tell(), 0
        try:
            while num_written < len(line):  # a disk that is nearly full takes a part
                num_written += self._file.write(line[num_written:])
            self.num_lines += 1
        except OSError:
            with suppress(OSError):
                self._file.truncate(whole)
            raise


def _open_to_append(path: Path) -> FileIO:
    """Open a file for its owner only, and cut off an incomplete last line of a killed writer."""
    if path.is_file():  # a pipe has no lines to cut
        with path.open("r+b") as file:
            file.truncate(sum(len(line) for line in file if line.endswith(b"\n")))
    return FileIO(path, "a", opener=lambda name, flags: os.open(name, flags, 0o600))


def entries_of(chunk: Chunk) -> list[tuple[int, ...]]:
    """Return the entries of a chunk, each with the ids of its track only."""
    rows = chunk.entries.tolist()
    if chunk.tracks is None:
        return [tuple(row) for row in rows]
    return [tuple(index for index in row if index >= 0) for row in rows]


def _tokens(entries: list[tuple[int, ...]]) -> list[int]:
    """Return the text tokens: entries of one id."""
    return [entry[0] for entry in entries if len(entry) == 1]


def transcribed(
    models: Models, name: str, entries: list[tuple[int, ...]], language: str | None
) -> str:
    """Return the text of a transcription's entries."""
    return models.transcription(name).read(_tokens(entries), language).text


def answered(models: Models, request: Request, entries: list[tuple[int, ...]]) -> str:
    """Return the text of an answer's entries."""
    spoken = isinstance(request.ask, ConversationInput)
    model = (models.conversation if spoken else models.chat)(request.model)
    reader = model.open_answer(request)
    said = reader.read(_tokens(entries))
    return said.content + reader.close().content
