"""Input and output of chat models. Knows no tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol


class Role(StrEnum):
    """Who says a message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn of a conversation.

    Attributes:
        reasoning: What an assistant thought before it said this; None where that is not known.
    """

    role: Role
    content: str
    reasoning: str | None = None


@dataclass(frozen=True, slots=True)
class ChatInput:
    """What an API server asks of a chat model. None takes the checkpoint's default.

    Attributes:
        messages: The conversation so far; the answer is the assistant's next turn.
        thinking: Whether it thinks before it answers. Where it can do both, it does not by itself:
            who listens would wait.
    """

    messages: tuple[ChatMessage, ...]
    thinking: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0
    max_new_tokens: int | None = None


class AnswerText(NamedTuple):
    """Text that an answer grows by: what is thought, and what is said."""

    reasoning: str = ""
    content: str = ""


class AnswerReader(Protocol):
    """Reads an answer while it is written."""

    @property
    def num_reasoning_tokens(self) -> int:
        """Tokens that were thought so far, with those around the thought."""
        ...

    def read(self, token_ids: Sequence[int]) -> AnswerText:
        """Return what these tokens add. Half a character waits for its other half."""
        ...

    def close(self) -> AnswerText:
        """Return what is left, as no token follows."""
        ...
