"""Input and output of chat models. Knows no tokens."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from msgspec import Struct

from izwi.inputs.images import ChatImage

# JSON schema of a function that was given none: its arguments are an empty object.
NO_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {},
    "additionalProperties": False,
}


class Role(StrEnum):
    """The role of a message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class ToolCall(Struct, frozen=True):
    """A function call of the assistant.

    Attributes:
        call_id: Id by which the function's result refers to the call.
        name: Name of the function.
        arguments: JSON as the model wrote it; it may be invalid.
    """

    call_id: str
    name: str
    arguments: str


class ChatMessage(Struct, frozen=True, omit_defaults=True):
    """One turn of a conversation.

    Attributes:
        reasoning: The assistant's thought before this message; None if not known.
        tool_calls: Function calls of the assistant.
        call_id: For the role `tool`: id of the call that this is the result of.
        name: Name of the speaker or the function, if given.
        images: Images among the text, ordered by `ChatImage.at`; only for models that see.
    """

    role: Role
    content: str
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    call_id: str | None = None
    name: str | None = None
    images: tuple[ChatImage, ...] = ()


class ToolChoice(StrEnum):
    """Whether the model may, must or must not call functions."""

    AUTO = "auto"
    NONE = "none"
    REQUIRED = "required"


class ChatInput(Struct, frozen=True, omit_defaults=True, tag="chat"):
    """Input of a chat model. None uses the checkpoint's default.

    Attributes:
        messages: The conversation so far; the answer is the assistant's next turn.
        thinking: Whether the model thinks before it answers. By default it does not if thinking is
            optional, because a listener would wait.
        tools: JSON list of functions in OpenAI's format; empty for none.
        tool_choice: Whether one of them is called.
        tool_name: The one function that must be called.
        parallel_tool_calls: Whether an answer may have more than one call.
        min_p, repetition_penalty, presence_penalty, frequency_penalty, logit_bias: As in
            `izwi.request.request.SamplingParams`.
        text: Instead of messages: text to continue; control tokens in it are encoded as tokens.
        token_ids: Instead of messages: ids to continue.
        response_schema: JSON schema of the answer; empty for any text.
        regex: Instead of a schema: regular expression of the whole answer.
        ebnf: Instead of a schema: EBNF grammar of the answer.
        grammar_param: Field of the caller's request that has the schema, the regex or the EBNF;
            errors name it.
        logprobs: As in `izwi.request.request.Request`.
        top_logprobs: As in `izwi.request.request.Request`.
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
    """Return the number of characters in a conversation and its tools."""
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


def has_images(ask: ChatInput) -> bool:
    """Return whether a conversation has images."""
    return any(message.images for message in ask.messages)


class CallText(NamedTuple):
    """New text of a function call.

    Attributes:
        place: Index of the call in the answer.
        name: Name of the function, in the first part of the call; else empty.
        arguments: New text of the arguments' JSON.
    """

    place: int
    name: str = ""
    arguments: str = ""


class AnswerText(NamedTuple):
    """New text of an answer: thought, content and function calls."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[CallText, ...] = ()


class AnswerReader(Protocol):
    """Parser of an answer while it is generated."""

    @property
    def num_reasoning_tokens(self) -> int:
        """Number of tokens of the thought so far, including those around it."""
        ...

    @property
    def num_calls(self) -> int:
        """Number of complete function calls."""
        ...

    @property
    def ended(self) -> bool:
        """Whether the answer is over, because all requested calls are complete."""
        ...

    def spell(self, token_id: int) -> bytes:
        """Return the bytes of one token; control tokens are spelled by name."""
        ...

    def read(self, token_ids: Sequence[int]) -> AnswerText:
        """Return the text that these tokens add. An incomplete character waits for the rest."""
        ...

    def close(self) -> AnswerText:
        """Return the rest of the text at the end of the answer."""
        ...
