"""Streamed input: text that is synthesised while it is written, audio transcribed as it arrives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from izwi.inputs import SpeechInput
from izwi.request import Request


@dataclass(frozen=True, slots=True, eq=False)
class TextPart:
    """What newly written text means for one piece.

    Attributes:
        piece: Its number; the parts of a piece come before those of the next.
        request_id: Of its request.
        request: To submit first, on the first part of a piece.
        ids: Text ids to write to it, in order.
        closed: Nothing follows for this piece.
    """

    piece: int
    request_id: str
    request: Request | None
    ids: tuple[int, ...]
    closed: bool


class TextStream(Protocol):
    """Text on its way into a model. What it gives depends on the text, not on how it was cut."""

    def write(self, text: str) -> Sequence[TextPart]:
        """Take more text and return what is settled by it."""
        ...

    def close(self) -> Sequence[TextPart]:
        """Return the rest. Raises InvalidRequest if there was nothing to say in all of it."""
        ...


@runtime_checkable
class WritableModel(Protocol):
    """A speech model that takes its text while it speaks."""

    def text_stream(self, request_id: str, model: str, ask: SpeechInput) -> TextStream:
        """Check all but the text, which is not looked at. Raises InvalidRequest and its kind."""
        ...


class DecodingStep(Protocol):
    """One decoding that a stream asks for."""

    @property
    def is_final(self) -> bool:
        """Whether a segment ends with it."""
        ...


@dataclass(frozen=True, slots=True)
class PartialTranscript:
    """What a segment says so far.

    Attributes:
        segment: Number of segments before it.
        start_s: Where it begins in the stream.
        end_s: How far it was heard.
        is_final: It is complete.
        language: "" while it is unknown.
        text: All of it.
        stable: Its beginning that will not change; all of it if it is final.
    """

    segment: int
    start_s: float
    end_s: float
    is_final: bool
    language: str
    text: str
    stable: str


class TranscriptionStream(Protocol):
    """Audio that is still arriving, in the model's form. One call at a time, from any thread."""

    @property
    def room(self) -> int:
        """Samples that it takes before its next step; more would only be held."""
        ...

    def write(self, samples: npt.NDArray[np.float32]) -> None:
        """Take the next samples, mono at 16 kHz."""
        ...

    def close(self) -> None:
        """Say that no more comes."""
        ...

    def is_due(self, more: int = 0) -> bool:
        """Whether there would be a new step if `more` samples were written."""
        ...

    def next_step(self) -> Any:
        """What to decode now, or None; it may take milliseconds."""
        ...

    def take(self, step: Any, token_ids: Sequence[int]) -> PartialTranscript:
        """Take what the model emitted for the last step."""
        ...


@runtime_checkable
class StreamingTranscriptionModel(Protocol):
    """A transcription model that transcribes audio while it arrives."""

    def open_stream(
        self, *, language: str | None = None, context: str = "", chunk_s: float | None = None
    ) -> TranscriptionStream:
        """Begin a stream; a partial text comes every `chunk_s` seconds of audio."""
        ...

    def prepare_stream_step(self, request_id: str, model: str, stream: Any, step: Any) -> Request:
        """Tokenise one step."""
        ...
