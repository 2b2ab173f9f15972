"""Responses that are read while they come, and what they have come to."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Self, TypeVar

import numpy as np

from izwi.arrays import Int64

Item = TypeVar("Item")
Result = TypeVar("Result")


def tasks_of(model: Mapping[str, object]) -> list[str]:
    """Return what a model of GET /v1/models does; an older server says one thing alone."""
    able = model.get("capabilities")
    return [str(task) for task in (able if isinstance(able, list) else [model.get("task")])]


@dataclass(frozen=True, slots=True)
class Word:
    """A word and when it is said, in seconds."""

    word: str
    start_s: float
    end_s: float


@dataclass(slots=True)
class SpeechDetails:
    """What else is known of a speech; complete when its audio is.

    Attributes:
        words: The words with their times, if they were asked for.
        codes: (frames, codebooks) int64, if they were asked for.
        ignored: Options that the model cannot follow.
    """

    words: list[Word] = field(default_factory=list)
    codes: Int64 = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    ignored: list[str] = field(default_factory=list)

    def read_headers(self, headers: Mapping[str, str]) -> None:
        """Take what the headers of a response tell."""
        self.ignored = [name for name in headers.get("x-izwi-ignored", "").split(", ") if name]


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a transcript.

    Attributes:
        start_s: In seconds from the beginning of the audio.
        end_s: The same.
        token_ids: What the model emitted.
    """

    start_s: float
    end_s: float
    text: str
    token_ids: tuple[int, ...]


@dataclass(slots=True)
class Transcript:
    """What audio says; complete when its stream has ended, its text grows before that.

    Attributes:
        language: The first one heard, empty if none was.
        words: The words with their times, if they were asked for.
    """

    text: str = ""
    language: str = ""
    duration_s: float = 0.0
    segments: list[Segment] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)

    @property
    def token_ids(self) -> list[int]:
        """What the model emitted."""
        return [token for segment in self.segments for token in segment.token_ids]


class TranscriptUpdate(NamedTuple):
    """What a transcript grows by.

    Attributes:
        text: More of it, perhaps none.
        share: How much of the audio is transcribed, from 0 to 1.
    """

    text: str
    share: float


class ChatDelta(NamedTuple):
    """Text that an answer grows by: what is thought, and what is said."""

    reasoning: str = ""
    content: str = ""


@dataclass(slots=True)
class ToolCall:
    """A call of a function that an answer asks for.

    Attributes:
        id: By which its result is sent back.
        arguments: As JSON; they grow while the answer is written.
    """

    id: str
    name: str
    arguments: str = ""


@dataclass(slots=True)
class Answer:
    """An answer of a chat model; complete when its stream has ended.

    Attributes:
        tool_calls: The calls of functions that it asks for.
        finish_reason: "stop", "length" or "tool_calls"; None while it is written.
        num_prompt_tokens: In the conversation.
        num_tokens: In the answer, with what was thought.
    """

    content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    finish_reason: str | None = None
    num_prompt_tokens: int = 0
    num_tokens: int = 0


class ResponseStream(Generic[Item, Result]):
    """A response, item by item. Left early, it is stopped: close it, or use `async with`.

    Attributes:
        result: What it has come to so far.
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
        """Close it."""
        await self.aclose()

    async def aclose(self) -> None:
        """Stop what still runs."""
        await self._items.aclose()

    async def whole(self) -> Result:
        """Read it to its end, and return what it has come to. Raises IzwiError."""
        async with self:
            async for _ in self:
                pass
        return self.result
