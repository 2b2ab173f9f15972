"""Streamed input: text that is spoken while it is written, and audio transcribed as it arrives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from izwi.inputs.speech import SpeechInput
from izwi.request.request import Request


@dataclass(frozen=True, slots=True, eq=False)
class TextPart:
    """The effect of newly written text on one piece.

    Attributes:
        piece: Index of the piece; parts come in the order of pieces.
        request_id: Id of its request.
        request: Request to submit before writing; only in the first part of a piece.
        ids: Text ids to write to it, in order.
        closed: The piece is complete.
        num_characters: Of the piece, if its request has all of its text; 0 if that is written.
    """

    piece: int
    request_id: str
    request: Request | None
    ids: tuple[int, ...]
    closed: bool
    num_characters: int = 0


class TextStream(Protocol):
    """Text on its way into a model. Its parts depend on the text, not on how it is cut."""

    def write(self, text: str) -> Sequence[TextPart]:
        """Add text; return the parts that are now settled."""
        ...

    def close(self) -> Sequence[TextPart]:
        """Return the rest. Raises InvalidRequest if the whole text contains nothing to speak."""
        ...


@runtime_checkable
class WritableFrontend(Protocol):
    """A speech model that accepts text while it speaks."""

    def text_stream(self, request_id: str, model: str, ask: SpeechInput) -> TextStream:
        """Open a stream; check all but the text. Raises InvalidRequest and subclasses."""
        ...


class DecodingStep(Protocol):
    """One decoding of a stream's audio."""

    @property
    def is_final(self) -> bool:
        """Whether a segment ends with this step."""
        ...


@dataclass(frozen=True, slots=True)
class PartialTranscript:
    """The transcript of a segment so far.

    Attributes:
        segment: Index of the segment.
        start_s: Start in the stream, seconds.
        end_s: End of the audio transcribed so far, seconds.
        is_final: The segment is complete.
        language: Language; "" if unknown.
        text: The whole text.
        stable: The beginning that no longer changes; all of the text if it is final.
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
        """Number of samples that can still be used before the next step; more only wait."""
        ...

    def write(self, samples: npt.NDArray[np.float32]) -> None:
        """Add the next samples, (n,) float32 mono at 16 kHz."""
        ...

    def close(self) -> None:
        """Mark the end of the audio."""
        ...

    def is_due(self, more: int = 0) -> bool:
        """Return whether there would be a new step after writing `more` samples."""
        ...

    def next_step(self) -> Any:
        """Return the next decoding, or None; it may take milliseconds."""
        ...

    def add_tokens(self, step: Any, token_ids: Sequence[int]) -> PartialTranscript:
        """Add the ids that the model emitted for the last step; return the transcript."""
        ...


@runtime_checkable
class StreamingTranscriptionFrontend(Protocol):
    """A transcription model that transcribes audio while it arrives."""

    def open_stream(
        self, *, language: str | None = None, context: str = "", chunk_s: float | None = None
    ) -> TranscriptionStream:
        """Begin a stream; a partial text comes every `chunk_s` seconds of audio."""
        ...

    def prepare_stream_step(self, request_id: str, model: str, stream: Any, step: Any) -> Request:
        """Prepare the request of one step."""
        ...
