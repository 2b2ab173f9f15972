"""Responses that are read while they arrive, and their results."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Self, TypeVar

import numpy as np

from izwi.arrays import Int64

Item = TypeVar("Item")
Result = TypeVar("Result")


def tasks_of(model: Mapping[str, object]) -> list[str]:
    """Return the capabilities in GET /v1/models; older servers report only one."""
    able = model.get("capabilities")
    return [str(task) for task in (able if isinstance(able, list) else [model.get("task")])]


@dataclass(frozen=True, slots=True)
class Word:
    """A word with its start and end, in seconds."""

    word: str
    start_s: float
    end_s: float


@dataclass(slots=True)
class SpeechDetails:
    """Further results of a speech request; complete when its audio is.

    Attributes:
        words: The words with their times, if requested.
        codes: (frames, codebooks) int64, if requested.
        ignored: Options that the model cannot follow.
    """

    words: list[Word] = field(default_factory=list)
    codes: Int64 = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    ignored: list[str] = field(default_factory=list)

    def read_headers(self, headers: Mapping[str, str]) -> None:
        """Read the headers of a response."""
        self.ignored = _ignored(headers)


def _ignored(headers: Mapping[str, str]) -> list[str]:
    return [name for name in headers.get("x-izwi-ignored", "").split(", ") if name]


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment of a transcript.

    Attributes:
        start_s: Seconds from the beginning of the audio.
        end_s: The same.
        token_ids: The model's tokens.
        speaker: Who speaks, if speakers were told apart; else empty.
    """

    start_s: float
    end_s: float
    text: str
    token_ids: tuple[int, ...]
    speaker: str = ""


@dataclass(slots=True)
class Transcript:
    """A transcript; complete when its stream has ended, growing before that.

    Attributes:
        language: The first recognized language, or empty.
        words: The words with their times, if requested.
        ignored: Options that the model cannot follow.
    """

    text: str = ""
    language: str = ""
    duration_s: float = 0.0
    segments: list[Segment] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)

    def read_headers(self, headers: Mapping[str, str]) -> None:
        """Read the headers of a response."""
        self.ignored = _ignored(headers)

    @property
    def token_ids(self) -> list[int]:
        """The model's tokens."""
        return [token for segment in self.segments for token in segment.token_ids]


class TranscriptUpdate(NamedTuple):
    """New text of a transcript.

    Attributes:
        text: The text, perhaps empty.
        share: How much of the audio is transcribed, from 0 to 1.
    """

    text: str
    share: float


class ChatDelta(NamedTuple):
    """New text of an answer: thoughts and content."""

    reasoning: str = ""
    content: str = ""


@dataclass(slots=True)
class ToolCall:
    """A function call in an answer.

    Attributes:
        id: Identifies the call when its result is sent back.
        arguments: JSON; incomplete while the answer is written.
    """

    id: str
    name: str
    arguments: str = ""


@dataclass(slots=True)
class Answer:
    """A chat model's answer; complete when its stream has ended.

    Attributes:
        tool_calls: The function calls.
        finish_reason: "stop", "length" or "tool_calls"; None while it is written.
        num_prompt_tokens: Tokens of the conversation.
        num_tokens: Tokens of the answer, including thoughts.
    """

    content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    finish_reason: str | None = None
    num_prompt_tokens: int = 0
    num_tokens: int = 0


class ResponseStream(Generic[Item, Result]):
    """A response, item by item. To stop it early, close it, or use `async with`.

    Attributes:
        result: The result so far.
    """

    def __init__(self, items: AsyncGenerator[Item], result: Result):
        self._items, self.result = items, result

    def __aiter__(self) -> Self:
        """Return itself."""
        return self

    async def __anext__(self) -> Item:
        """Wait for the next item. Raises IzwiError."""
        return await anext(self._items)

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the stream."""
        await self.aclose()

    async def aclose(self) -> None:
        """Stop the request."""
        await self._items.aclose()

    async def whole(self) -> Result:
        """Read to the end, and return the result. Raises IzwiError."""
        async with self:
            async for _ in self:
                pass
        return self.result
