"""Replay a recording and compare: the same requests give the same entries, in any batch."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from izwi.audio.pcm import to_s16le
from izwi.errors import IzwiError, ModelNotFound
from izwi.recording.line import ChatLine, ConversationLine, Line, Prepared, SpeechLine
from izwi.recording.recorder import Models, answered, entries_of, transcribed
from izwi.request.request import Chunk, Reason, Request

if TYPE_CHECKING:
    from izwi.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class Difference:
    """A recorded value that the engine no longer reproduces.

    Attributes:
        line: Number of the line, from 1.
        what: "model", "checkpoint", "request", "error", "entries", "reason", "audio" or "text".
        message: Text of the first difference: the recorded value, and the current one.
    """

    line: int
    model: str
    what: str
    message: str


def replay(
    engine: Engine, models: Models, lines: Sequence[Line], *, alone: bool = False
) -> list[Difference]:
    """Prepare and run recorded requests again, and compare their output.

    Entries must be equal. On the platform of the recording the audio must be equal too, bit for bit
    in 16-bit samples and in any batch. The log of an aborted request is compared up to its end.

    Args:
        engine: An engine with the models; nothing else runs in it.
        models: The same models by name.
        lines: The recorded lines.
        alone: Run one after the other, not together.

    Returns:
        At most one difference for each line, in order.
    """
    runs = [_Run.from_line(number, line, models) for number, line in enumerate(lines, start=1)]
    for group in [[run] for run in runs] if alone else [runs]:
        _run_all(engine, group)
    differences = [run.difference(models) for run in runs]
    return [difference for difference in differences if difference is not None]


@dataclass(slots=True)
class _Run:
    """A line that is run again."""

    number: int
    line: Line
    request: Request | None = None
    failure: Difference | None = None
    entries: list[tuple[int, ...]] = field(default_factory=list)
    audio: bytes = b""
    reason: Reason | None = None

    @classmethod
    def from_line(cls, number: int, line: Line, models: Models) -> _Run:
        """Prepare a line; what cannot be run has a failure and no request."""
        run = cls(number, line)
        try:
            here = models.fingerprint(line.model)
            if here != line.fingerprint:
                message = (
                    f"the checkpoint's fingerprint differs: {line.fingerprint} was recorded, {here}"
                    " is loaded; record the requests again"
                )
                run.fail("checkpoint", message)
                return run
            run.request = _prepare(models, line, f"replay-{number}")
        except ModelNotFound as error:
            run.fail("model", str(error))
        except IzwiError as error:
            run.fail("request", f"it cannot be prepared any more: {error}")
        return run

    def fail(self, what: str, message: str) -> None:
        """Note why it is not the same; the first reason stays."""
        self.failure = self.failure or Difference(self.number, self.line.model, what, message)

    def add_chunk(self, chunk: Chunk) -> None:
        """Add what left the engine."""
        self.entries += entries_of(chunk)
        if chunk.pcm is not None:
            self.audio += to_s16le(chunk.pcm)
        self.reason = chunk.reason
        if chunk.reason is Reason.ERROR:
            self.fail("error", f"it fails now: {chunk.error}")

    @property
    def is_done(self) -> bool:
        """Whether the output has reached the end of the recorded one."""
        if self.reason is not None or self.line.reason is not Reason.ABORTED:
            return self.reason is not None
        enough = len(self.entries) >= len(self.line.entries)
        return enough and len(self.audio) >= 2 * _num_samples(self.line)

    def difference(self, models: Models) -> Difference | None:
        """Compare with the line."""
        if self.failure is None:
            self._compare(models)
        return self.failure

    def _compare(self, models: Models) -> None:
        line, entries = self.line, self.entries
        assert self.request is not None
        now = msgspec.structs.asdict(Prepared.from_request(self.request))
        for name, value in msgspec.structs.asdict(line.request).items():
            if now[name] != value:
                self.fail("request", f"{name}: {value} recorded, {now[name]} now")
        aborted = line.reason is Reason.ABORTED
        if aborted:
            entries = entries[: len(line.entries)]
        if tuple(entries) != line.entries:
            self.fail("entries", _first_difference(line.entries, entries))
        if not aborted and self.reason is not line.reason:
            self.fail("reason", f"{line.reason} recorded, {self.reason} now")
        if isinstance(line, SpeechLine | ConversationLine):
            self._compare_audio(line, aborted)
        if isinstance(line, SpeechLine):
            return
        if isinstance(line, ChatLine | ConversationLine):
            text = answered(models, self.request, entries)
        else:
            text = transcribed(models, line.model, entries, line.ask.language)
        if text != line.text:
            self.fail("text", f"{line.text!r} recorded, {text!r} now")

    def _compare_audio(self, line: SpeechLine | ConversationLine, aborted: bool) -> None:
        if aborted:
            self.audio = self.audio[: 2 * line.num_samples]
        if len(self.audio) != 2 * line.num_samples:
            message = f"{line.num_samples} samples recorded, {len(self.audio) // 2} now"
            self.fail("audio", message)
        elif self.audio and hashlib.sha256(self.audio).hexdigest() != line.pcm_sha256:
            message = "the entries are equal, but their audio is not"
            if line.platform:
                message += f"; recorded on {line.platform}"
            self.fail("audio", message)


def _prepare(models: Models, line: Line, request_id: str) -> Request:
    """Prepare a line's ask anew, by the model's own means.

    Raises:
        ModelNotFound: No such model is served.
        IzwiError: It can be asked no more.
    """
    if isinstance(line, SpeechLine):
        speaker = models.speech(line.model)
        return speaker.prepare_speech(request_id, line.model, line.ask)
    if isinstance(line, ChatLine):
        return models.chat(line.model).prepare_chat(request_id, line.model, line.ask)
    if isinstance(line, ConversationLine):
        model = models.conversation(line.model)
        return model.prepare_conversation(request_id, line.model, line.ask)
    listener = models.transcription(line.model)
    return listener.prepare_transcription(request_id, line.model, line.ask)


def _run_all(engine: Engine, runs: Iterable[_Run]) -> None:
    """Run requests to their ends, or as far as was recorded."""
    # of an aborted line nothing may have been made
    waiting = deque(run for run in runs if run.request is not None and not run.is_done)
    live: dict[str, _Run] = {}
    while waiting or live:
        while waiting and len(live) < engine.config.max_running:
            run = waiting.popleft()
            assert run.request is not None
            try:
                engine.submit(run.request)
            except IzwiError as error:
                run.fail("error", f"the engine refuses it: {error}")
            else:
                live[run.request.request_id] = run
                if run.request.open_input and isinstance(run.line, SpeechLine):
                    # closed, whether it was or not: no entry of the line is behind the text
                    engine.write(run.request.request_id, run.line.written, True)
        for chunk in engine.step():
            run = live[chunk.request_id]
            run.add_chunk(chunk)
            if run.is_done:
                if chunk.reason is None:
                    engine.abort(chunk.request_id)
                del live[chunk.request_id]


def _num_samples(line: Line) -> int:
    return line.num_samples if isinstance(line, SpeechLine | ConversationLine) else 0


def _first_difference(recorded: Sequence[tuple[int, ...]], now: Sequence[tuple[int, ...]]) -> str:
    for place, (was, entry) in enumerate(zip(recorded, now, strict=False)):
        for codebook, (id_was, id_now) in enumerate(zip(was, entry, strict=False)):
            if id_was != id_now:
                where = f"entry {place}" + (f", codebook {codebook}" if len(was) > 1 else "")
                return f"{where}: {id_was} recorded, {id_now} now"
    return f"{len(recorded)} entries recorded, {len(now)} now, equal as far as both go"
