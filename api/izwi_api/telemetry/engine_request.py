"""One request to the engine, as the API server that submitted it saw it. Keeps no content."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from izwi.errors import IzwiError
from izwi.inputs.chat import ChatInput
from izwi.inputs.conversation import ConversationInput, size_of
from izwi.inputs.speech import AlignmentInput, SpeechInput, TranscriptionInput
from izwi.model.capability import Capability
from izwi.request.request import Chunk, Reason, Request, SamplingParams
from izwi.request.timing import Timing
from izwi_api.telemetry.conventions import Operation

_OPERATIONS: dict[type, Operation] = {
    SpeechInput: Operation.SPEECH,
    TranscriptionInput: Operation.TRANSCRIPTION,
    AlignmentInput: Operation.ALIGNMENT,
    ChatInput: Operation.CHAT,
    ConversationInput: Operation.CHAT,
}
_OPERATIONS_OF_MODELS = {
    Capability.SPEAK: Operation.SPEECH,
    Capability.TRANSCRIBE: Operation.TRANSCRIPTION,
    Capability.ALIGN: Operation.ALIGNMENT,
    Capability.CHAT: Operation.CHAT,
    Capability.CONVERSE: Operation.CHAT,
}

# Sample rate of audio that models hear.
_HEARD_RATE = 16_000


class Phase(NamedTuple):
    """A stretch of a request's time, on the clock of the API server."""

    name: str
    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        """How long it was."""
        return self.end_s - self.start_s


class Wish(NamedTuple):
    """What a request asked for, without its content; `heard_s`: seconds of audio in it."""

    model: str
    operation: Operation
    sampling: SamplingParams
    seed: int
    max_entries: int
    num_prompt: int
    voice: str | None
    language: str | None
    is_streamed: bool
    heard_s: float


def wish_of(request: Request, capability: Capability) -> Wish:
    """Return what a request asks for.

    Args:
        request: The request.
        capability: The main purpose of its model, for requests that do not say theirs.
    """
    ask = request.ask
    operation = _OPERATIONS.get(type(ask)) or _OPERATIONS_OF_MODELS[capability]
    if request.encode_only:
        operation = Operation.ENCODING
    voice = getattr(ask, "voice", None)
    return Wish(
        *(request.model, operation, request.sampling, request.seed, request.max_entries),
        num_prompt=request.prompt.num_positions,
        voice=voice if isinstance(voice, str) else None,
        language=getattr(ask, "language", None),
        is_streamed=request.streams,
        heard_s=_heard_s(ask),
    )


def _heard_s(ask: object) -> float:
    """Return the seconds of audio that a model hears."""
    if isinstance(ask, TranscriptionInput | AlignmentInput):
        return len(ask.samples) / _HEARD_RATE
    if isinstance(ask, ConversationInput):
        return size_of(ask)[1] / _HEARD_RATE
    return 0.0


@dataclass(slots=True, eq=False)
class EngineRequest:
    """A request to the engine, from its submission to its last chunk.

    All times are on the API server's clock.

    Attributes:
        key: See `Call.key`.
        first_s: When the first output arrived.
        first_audio_s: When the first audio arrived.
        last_audio_s: When the latest audio arrived.
        ended_s: When the last chunk arrived, or the caller left.
        timing: The engine's times; of the first chunk until the last has arrived.
        reason: Why it ended.
        error: Code of its error, or an empty text.
        num_entries: Tokens and frames.
        audio_s: Seconds of audio.
        underrun_s: Seconds for which a listener who plays the audio as it arrives heard nothing.
        chunk_gaps_s: Seconds between chunks of audio.
    """

    wish: Wish
    submitted_s: float
    key: str = ""
    first_s: float | None = None
    first_audio_s: float | None = None
    last_audio_s: float = 0.0
    ended_s: float | None = None
    timing: Timing | None = None
    reason: Reason | None = None
    error: str = ""
    num_entries: int = 0
    audio_s: float = 0.0
    underrun_s: float = 0.0
    chunk_gaps_s: list[float] = field(default_factory=list)

    def add_chunk(self, chunk: Chunk, sample_rate: int | None, now_s: float) -> None:
        """Note a chunk that has arrived, of a model with this sample rate."""
        if chunk.timing is not None:
            self._take_timing(chunk.timing)
        if len(chunk.entries):
            self.num_entries += len(chunk.entries)
            self.first_s = now_s if self.first_s is None else self.first_s
        if chunk.pcm is not None and sample_rate:
            self._take_audio(len(chunk.pcm) / sample_rate, now_s)
        if chunk.reason is not None:
            self.end(now_s, chunk.reason)
            if chunk.error is not None:
                failed = chunk.error
                self.error = failed.code if isinstance(failed, IzwiError) else "internal_error"

    def end(self, now_s: float, reason: Reason = Reason.ABORTED) -> None:
        """Note that it has ended."""
        if self.ended_s is None:
            self.ended_s, self.reason = now_s, reason

    def phases(self) -> list[Phase]:
        """Return its phases, which follow each other from the submission to the end.

        The engine's clock starts when a request reaches the engine; the way there and back counts
        to the last phase.
        """
        end_s = self.ended_s if self.ended_s is not None else self.submitted_s
        timing = self.timing or Timing()
        last_s = None if timing.is_resumed else timing.last_entry_s
        found, start_s = [], self.submitted_s
        for name, mark_s in (
            ("queue", timing.admitted_s),
            ("prefill", timing.first_entry_s),
            ("codec", timing.first_audio_s),
            ("decode", last_s),
        ):
            if mark_s is None:
                continue
            until_s = min(max(self.submitted_s + mark_s, start_s), end_s)
            found.append(Phase(name, start_s, until_s))
            start_s = until_s
        # what was not reached: the request ended in that phase
        rest = "last_chunk" if last_s is not None else self._unfinished(timing)
        found.append(Phase(rest, start_s, end_s))
        return found

    def _unfinished(self, timing: Timing) -> str:
        if timing.first_entry_s is not None:
            return "decode"
        return "queue" if timing.admitted_s is None else "prefill"

    def _take_timing(self, timing: Timing) -> None:
        known = self.timing
        if timing.is_resumed and known is not None:  # the times of the engine that began it stay
            before = [event for event in known.events if event not in timing.events]
            known.events = sorted(before + timing.events, key=lambda event: event[1])
            known.is_resumed, timing = True, known
        self.timing = timing

    def _take_audio(self, seconds: float, now_s: float) -> None:
        if self.first_audio_s is None:
            self.first_audio_s = now_s
        else:
            self.chunk_gaps_s.append(now_s - self.last_audio_s)
            played_until_s = self.first_audio_s + self.audio_s + self.underrun_s
            self.underrun_s += max(0.0, now_s - played_until_s)
        self.last_audio_s = now_s
        self.audio_s += seconds
