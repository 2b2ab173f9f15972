"""The source of a response: an answer in progress, from a cascade or a speech-to-speech model."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol, Self

from izwi.request.request import Reason
from izwi_api.services.chat.answer import AnswerDelta
from izwi_api.services.chat.cascade import AudioPiece


class AnswerCost(Protocol):
    """Token counts of an answer so far, and why it ended."""

    @property
    def num_prompt_tokens(self) -> int:
        """Return the number of prompt tokens."""
        ...

    @property
    def num_tokens(self) -> int:
        """Return the number of generated text tokens."""
        ...

    @property
    def reason(self) -> Reason | None:
        """Return why it ended, or None while it is in progress."""
        ...


class LiveAnswer(Protocol):
    """An answer that is being generated, by a cascade or by a speech-to-speech model.

    Leaving its context aborts it.
    """

    async def __aenter__(self) -> Self:
        """Return itself."""
        ...

    async def __aexit__(self, *_: object) -> None:
        """Abort what still runs."""
        ...

    @property
    def answer(self) -> AnswerCost:
        """Return its token counts so far."""
        ...

    @property
    def sample_rate(self) -> int | None:
        """Return the sample rate of the audio, in Hz; None for text only."""
        ...

    @property
    def num_frames(self) -> int:
        """Return the number of audio frames generated so far."""
        ...

    def pieces(self) -> AsyncGenerator[AnswerDelta | AudioPiece]:
        """Yield text and audio as they are generated. Raises IzwiError."""
        ...

    def pause(self) -> None:
        """Pause the models."""
        ...

    def resume(self) -> None:
        """Resume the models."""
        ...

    def abort(self) -> None:
        """Abort the generation."""
        ...
