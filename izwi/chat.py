"""Input and output of chat models. Knows no tokens."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

from msgspec import Struct


class Role(StrEnum):
    """Who says a message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class ToolCall(Struct, frozen=True):
    """A function that an assistant calls.

    Attributes:
        call_id: By which the answer of the function refers to the call.
        name: Of the function.
        arguments: JSON, as the model wrote it: it need not be valid.
    """

    call_id: str
    name: str
    arguments: str


class ChatMessage(Struct, frozen=True, omit_defaults=True):
    """One turn of a conversation.

    Attributes:
        reasoning: What an assistant thought before it said this; None where that is not known.
        tool_calls: What an assistant calls.
        call_id: Of the call that this is the answer of, for the role `tool`.
        name: Of the speaker or the function, if given.
    """

    role: Role
    content: str
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    call_id: str | None = None
    name: str | None = None


class ToolChoice(StrEnum):
    """Whether functions are called."""

    AUTO = "auto"
    NONE = "none"
    REQUIRED = "required"


class ChatInput(Struct, frozen=True, omit_defaults=True, tag="chat"):
    """What an API server asks of a chat model. None takes the checkpoint's default.

    Attributes:
        messages: The conversation so far; the answer is the assistant's next turn.
        thinking: Whether it thinks before it answers. Where it can do both, it does not by itself:
            a listener would wait.
        tools: JSON: a list of functions as OpenAI describes them; empty for none.
        tool_choice: Whether one of them is called.
        tool_name: The one function that must be called.
        parallel_tool_calls: Whether an answer may have more than one call.
        min_p, repetition_penalty, presence_penalty, frequency_penalty, logit_bias: As in
            `izwi.request.SamplingParams`.
        text: In place of messages: text that is gone on with; control tokens in it count.
        token_ids: In place of messages: ids that are gone on with.
        response_schema: JSON: the schema that the answer follows; empty for any text.
        regex: In place of a schema: what the whole answer matches.
        ebnf: In place of a schema: the grammar of the answer.
        grammar_param: Field of the caller's request that has the schema, the regex or the EBNF;
            errors name it.
        logprobs: As in `izwi.request.Request`.
        top_logprobs: As in `izwi.request.Request`.
    """

    messages: tuple[ChatMessage, ...]
    thinking: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0
    max_new_tokens: int | None = None
    tools: str = ""
    tool_choice: ToolChoice = ToolChoice.AUTO
    tool_name: str | None = None
    parallel_tool_calls: bool = True
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: bool = False
    top_logprobs: int = 0
    response_schema: str = ""
    regex: str = ""
    ebnf: str = ""
    grammar_param: str = "response_format"
    text: str = ""
    token_ids: tuple[int, ...] = ()


def num_characters(ask: ChatInput) -> int:
    """Characters of a conversation and its tools: what the prompt is made of."""
    return (
        len(ask.tools)
        + len(ask.text)
        + sum(
            len(message.content)
            + len(message.reasoning or "")
            + sum(len(call.name) + len(call.arguments) for call in message.tool_calls)
            for message in ask.messages
        )
    )


class CallText(NamedTuple):
    """Text that a call of a function grows by.

    Attributes:
        place: Which call of the answer, from 0.
        name: Of the function, the first time; else empty.
        arguments: What the JSON of its arguments grows by.
    """

    place: int
    name: str = ""
    arguments: str = ""


class AnswerText(NamedTuple):
    """Text that an answer grows by: what is thought, what is said, and what is called."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[CallText, ...] = ()


class AnswerReader(Protocol):
    """Reads an answer while it is written."""

    @property
    def num_reasoning_tokens(self) -> int:
        """Tokens that were thought so far, with those around the thought."""
        ...

    @property
    def num_calls(self) -> int:
        """Calls of functions that are complete."""
        ...

    @property
    def ended(self) -> bool:
        """Whether nothing that follows is read: all calls that were asked for are complete."""
        ...

    def spell(self, token_id: int) -> bytes:
        """Return the bytes of one token; control tokens have their name."""
        ...

    def read(self, token_ids: Sequence[int]) -> AnswerText:
        """Return what these tokens add. Half a character waits for its other half."""
        ...

    def close(self) -> AnswerText:
        """Return what is left, as no token follows."""
        ...
