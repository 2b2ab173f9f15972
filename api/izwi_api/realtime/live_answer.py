"""What a response is made of: an answer on its way, whatever models make it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from izwi.request import Reason
from izwi_api.services.chat import AnswerDelta
from izwi_api.services.converse import SoundPiece


class AnswerCost(Protocol):
    """What an answer cost so far, and why it ended."""

    @property
    def num_prompt_tokens(self) -> int:
        """What the model read."""
        ...

    @property
    def num_tokens(self) -> int:
        """Text that it wrote."""
        ...

    @property
    def reason(self) -> Reason | None:
        """Why it ended; None before."""
        ...


class LiveAnswer(Protocol):
    """An answer while it is made: a cascade's, or that of a model that hears and speaks."""

    @property
    def answer(self) -> AnswerCost:
        """What it cost so far."""
        ...

    @property
    def sample_rate(self) -> int | None:
        """Of the sound, in Hz; None for text alone."""
        ...

    @property
    def num_frames(self) -> int:
        """Frames of sound that were made so far."""
        ...

    def pieces(self) -> AsyncGenerator[AnswerDelta | SoundPiece]:
        """Yield text and sound as they come. Raises IzwiError."""
        ...

    def pause(self) -> None:
        """Stop the models where they are."""
        ...

    def resume(self) -> None:
        """Go on from there."""
        ...

    def abort(self) -> None:
        """Stop what still runs."""
        ...
