"""Input and output of alignment models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from izwi.arrays import Samples
from izwi.inputs.speech import AlignmentInput
from izwi.model.frontend import Frontend
from izwi.request.request import Request


class AlignedWord(Struct, frozen=True):
    """When a word is said.

    Attributes:
        word: Its letters and digits alone.
        start_s: When it begins, in seconds from the start of the audio.
        end_s: When it ends.
        start: Where it begins in the text, in characters.
        stop: Where it ends there.
    """

    word: str
    start_s: float
    end_s: float
    start: int
    stop: int


class AlignmentFrontend(Frontend, Protocol):
    """A model whose entries are times, drawn at the marks of its prompt."""

    @property
    def languages(self) -> tuple[str, ...]:
        """Names of the languages that it was made for."""
        ...

    def split_audio(self, samples: Samples) -> list[tuple[int, int]]:
        """Cut 16 kHz samples into pieces [start, stop) that it takes in one go.

        It reads them near the cuts alone, so an hour takes no more memory than a minute.
        """
        ...

    def prepare_alignment(self, request_id: str, model: str, ask: AlignmentInput) -> Request:
        """Validate, compute features and tokenise. Raises InvalidRequest and its kind."""
        ...

    def read_alignment(self, request: Request, classes: Sequence[int]) -> list[AlignedWord]:
        """Say when each word is said.

        Args:
            request: As `prepare_alignment` made it.
            classes: The ids of all its entries.
        """
        ...
