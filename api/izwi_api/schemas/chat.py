"""The body of POST /v1/chat/completions, and its answers. An unknown key is an error.

Of OpenAI's keys that change an answer, those that no model here can follow are taken only with the
value that changes nothing; keys that change no answer are taken and not used.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any, Literal
from uuid import uuid4

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from izwi.chat import AnswerText, ChatInput, ChatMessage, Role
from izwi.request import Reason
from izwi_api.services.chat import Answer

_INT32_MAX, _INT64_MAX = 2**31 - 1, 2**63 - 1
_MAX_STOPS, _MAX_STOP_CHARS = 4, 256

_ROLES = {
    "system": Role.SYSTEM,
    "developer": Role.SYSTEM,
    "user": Role.USER,
    "assistant": Role.ASSISTANT,
}
_PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
    "additionalProperties": False,
}
_CONTENT = {"anyOf": [{"type": "string"}, {"type": "array", "items": _PART}, {"type": "null"}]}


def _known_role(value: object) -> object:
    if value in ("tool", "function"):
        raise ValueError(f"messages of the role {value!r} are not taken: no model here calls tools")
    return value


def _plain_text(value: object) -> object:
    """Take parts of text for the text that they are, a line each."""
    if value is None:
        return ""
    if not isinstance(value, list):
        return value
    texts = []
    for part in value:
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind != "text":
            raise ValueError(f"parts of the type {kind[:32]!r} are not taken, text alone is")
        if kind != "text" or part.keys() != {"type", "text"} or not isinstance(part["text"], str):
            raise ValueError("a part must be an object of the type 'text' with a text")
        texts.append(part["text"])
    return "\n".join(texts)


def _off(value: bool) -> bool:
    if value:
        raise ValueError("false alone is taken")
    return value


_Off = Annotated[bool, AfterValidator(_off), WithJsonSchema({"type": "boolean", "const": False})]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Message(_Strict):
    """One turn. An answer of ours, sent back as it came, is one."""

    role: Annotated[
        Literal["system", "developer", "user", "assistant"], BeforeValidator(_known_role)
    ]
    content: Annotated[str, BeforeValidator(_plain_text), WithJsonSchema(_CONTENT)] = ""
    reasoning_content: str | None = None
    name: str | None = None
    refusal: None = None
    audio: None = None
    annotations: Annotated[list[object], Field(max_length=0)] | None = None
    function_call: None = None
    tool_calls: Annotated[list[object], Field(max_length=0)] | None = None


class StreamOptions(_Strict):
    """What a stream has beside the answer."""

    include_usage: bool | None = None
    include_obfuscation: _Off | None = None


class TemplateOptions(_Strict):
    """The switch of the template, as other servers of these models spell it."""

    enable_thinking: bool | None = None


class TextFormat(_Strict):
    """The one format that there is."""

    type: Literal["text"]


_Stop = Annotated[str, Field(min_length=1, max_length=_MAX_STOP_CHARS)]
_STOP = {"type": "string", "minLength": 1, "maxLength": _MAX_STOP_CHARS}
_STOPS = {"anyOf": [_STOP, {"type": "array", "items": _STOP, "maxItems": _MAX_STOPS}]}


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


class ChatBody(_Strict):
    """What a client asks to be answered."""

    model: str
    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1, le=_INT32_MAX)
    max_tokens: int | None = Field(default=None, ge=1, le=_INT32_MAX)
    temperature: float | None = Field(default=None, ge=0.0, le=2.0)
    top_p: float | None = Field(default=None, gt=0.0, le=1.0)
    seed: int | None = Field(default=None, ge=-_INT64_MAX - 1, le=_INT64_MAX)
    stop: Annotated[
        list[_Stop],
        Field(max_length=_MAX_STOPS),
        BeforeValidator(_listed),
        WithJsonSchema(_STOPS),
    ] = []
    stream: bool = False
    stream_options: StreamOptions | None = None

    # Taken with the value that changes nothing.
    n: int = Field(default=1, ge=1, le=1)
    frequency_penalty: float = Field(default=0.0, ge=0.0, le=0.0)
    presence_penalty: float = Field(default=0.0, ge=0.0, le=0.0)
    logprobs: _Off = False
    modalities: list[Literal["text"]] | None = None
    response_format: TextFormat | None = None
    tools: list[object] | None = Field(default=None, max_length=0)
    tool_choice: Literal["none", "auto"] | None = None
    store: _Off = False

    # They change no answer here.
    parallel_tool_calls: bool | None = None
    service_tier: Literal["auto", "default"] | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    # Extensions; the SDK sends them through `extra_body`.
    top_k: int | None = Field(default=None, ge=0, le=100_000)
    enable_thinking: bool | None = None
    chat_template_kwargs: TemplateOptions | None = None

    @property
    def tells_usage(self) -> bool:
        """Whether a stream ends with its usage."""
        return bool(self.stream_options and self.stream_options.include_usage)


def chat_input(body: ChatBody, seed: int) -> ChatInput:
    """Return what a body asks of a model.

    Args:
        body: The same.
        seed: For a body without one.
    """
    thinking = body.enable_thinking
    if thinking is None and body.chat_template_kwargs is not None:
        thinking = body.chat_template_kwargs.enable_thinking
    messages = (
        ChatMessage(_ROLES[message.role], message.content, message.reasoning_content)
        for message in body.messages
    )
    return ChatInput(
        tuple(messages),
        thinking=thinking,
        temperature=body.temperature,
        top_k=body.top_k,
        top_p=body.top_p,
        seed=seed if body.seed is None else body.seed,
        max_new_tokens=body.max_completion_tokens or body.max_tokens,
    )


class Completion:
    """The answers to one body, whole or in pieces: they share an id."""

    def __init__(self, model_name: str):
        """Begin to answer in the name of a model."""
        self._head = {"id": f"chatcmpl-{uuid4().hex}", "created": int(time.time())}
        self._model = model_name

    def whole(self, answer: Answer) -> dict[str, Any]:
        """Return an answer that is complete. What was thought is there only if anything was."""
        message: dict[str, object] = {"role": "assistant", "content": answer.content}
        message |= {"refusal": None}
        if answer.num_reasoning_tokens:
            message["reasoning_content"] = answer.reasoning
        choice = {"index": 0, "message": message, "logprobs": None}
        choice["finish_reason"] = _finish_reason(answer)
        return self._object("chat.completion", [choice]) | {"usage": usage_of(answer)}

    def opening(self) -> dict[str, Any]:
        """Return the first piece: who speaks."""
        return self._piece({"role": "assistant", "content": ""})

    def piece(self, delta: AnswerText) -> dict[str, Any]:
        """Return a piece of what is thought and said."""
        fields = {"reasoning_content": delta.reasoning, "content": delta.content}
        return self._piece({name: text for name, text in fields.items() if text})

    def closing(self, answer: Answer) -> dict[str, Any]:
        """Return the last piece: why it ended."""
        return self._piece({}, _finish_reason(answer))

    def bill(self, answer: Answer) -> dict[str, Any]:
        """Return what comes after the last piece, if it is asked for: the usage."""
        return self._object("chat.completion.chunk", []) | {"usage": usage_of(answer)}

    def _piece(self, delta: Mapping[str, str], reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return self._object("chat.completion.chunk", [choice])

    def _object(self, kind: str, choices: list[Any]) -> dict[str, Any]:
        return {**self._head, "object": kind, "model": self._model, "choices": choices}


def usage_of(answer: Answer) -> dict[str, object]:
    """Return the bill in tokens."""
    read, written = answer.num_prompt_tokens, answer.num_tokens
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
        "completion_tokens_details": {"reasoning_tokens": answer.num_reasoning_tokens},
    }


def _finish_reason(answer: Answer) -> str:
    return "length" if answer.reason is Reason.LENGTH else "stop"
