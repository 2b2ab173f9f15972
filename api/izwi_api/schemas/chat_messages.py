"""Messages and tools of a conversation, in OpenAI's format. An unknown key is an error."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
    model_validator,
)

from izwi.inputs.chat import NO_PARAMETERS, ChatMessage, Role, ToolCall

MAX_TOOLS = 128
_MAX_CALLS = 128
_NAME = r"^[a-zA-Z0-9_.-]{1,64}$"

_ROLES = {
    "system": Role.SYSTEM,
    "developer": Role.SYSTEM,
    "user": Role.USER,
    "assistant": Role.ASSISTANT,
    "tool": Role.TOOL,
}
_PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
    "additionalProperties": False,
}
_CONTENT = {"anyOf": [{"type": "string"}, {"type": "array", "items": _PART}, {"type": "null"}]}


def _plain_text(value: object) -> object:
    """Join text parts into one text, one line each."""
    if value is None:
        return ""
    if not isinstance(value, list):
        return value
    texts = []
    for part in value:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "refusal" and part.keys() == {"type", "refusal"}:
            part, kind = {"type": "text", "text": part["refusal"]}, "text"
        if isinstance(kind, str) and kind != "text":
            raise ValueError(f"parts of the type {kind[:32]!r} are not supported; only text is")
        if kind != "text" or part.keys() != {"type", "text"} or not isinstance(part["text"], str):
            raise ValueError("a part must be an object of the type 'text' with a text")
        texts.append(part["text"])
    return "\n".join(texts)


class Strict(BaseModel):
    """A body that rejects unknown keys and does not convert types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Function(Strict):
    """A function that a model may call."""

    name: str = Field(pattern=_NAME)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict):
    """A tool; only functions are supported."""

    type: Literal["function"]
    function: Function


class FunctionName(Strict):
    """The name of a function."""

    name: str


class NamedTool(Strict):
    """The function that must be called."""

    type: Literal["function"]
    function: FunctionName


class AllowedTools(Strict):
    """Some of the request's functions, and whether one of them must be called."""

    mode: Literal["auto", "required"]
    tools: list[NamedTool] = Field(min_length=1, max_length=MAX_TOOLS)


class AllowedToolsChoice(Strict):
    """Only some of the request's functions are available."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


ToolChoiceWord = Literal["none", "auto", "required"]


def tool_choice_discriminator(forms: str) -> Discriminator:
    """Return what tells the forms of a `tool_choice` apart: its tags are word, and the types.

    Args:
        forms: The forms that are objects, for the error about anything else.
    """
    return Discriminator(
        _choice_tag,
        custom_error_type="tool_choice",
        custom_error_message=f"it must be 'none', 'auto', 'required', {forms}",
    )


def _choice_tag(value: object) -> str | None:
    if isinstance(value, str):
        return "word" if value in get_args(ToolChoiceWord) else None
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return kind if kind in ("function", "allowed_tools") else None


ToolChoiceValue = Annotated[
    Annotated[ToolChoiceWord, Tag("word")]
    | Annotated[NamedTool, Tag("function")]
    | Annotated[AllowedToolsChoice, Tag("allowed_tools")],
    tool_choice_discriminator(
        '{"type": "function", "function": {"name": NAME}} or {"type": "allowed_tools", '
        '"allowed_tools": {"mode": "auto" or "required", "tools": [...]}}'
    ),
]


class CalledFunction(Strict):
    """A called function, with its arguments as the JSON that the model wrote."""

    name: str = Field(pattern=_NAME)
    arguments: str


class CalledTool(Strict):
    """A call in an assistant's message."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None  # present in streams


class Message(Strict):
    """One message. A response's message can be sent back unchanged."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str, BeforeValidator(_plain_text), WithJsonSchema(_CONTENT)] = ""
    reasoning_content: str | None = None
    name: str | None = None
    refusal: str | None = None
    audio: None = None
    annotations: Annotated[list[object], Field(max_length=0)] | None = None
    function_call: None = None
    tool_calls: Annotated[list[CalledTool], Field(max_length=_MAX_CALLS)] | None = None
    tool_call_id: str | None = None

    @model_validator(mode="after")
    def _fits_its_role(self) -> Message:
        if self.tool_calls and self.role != "assistant":
            raise ValueError("tool_calls belong to messages of the role 'assistant'")
        if self.refusal is not None and self.role != "assistant":
            raise ValueError("refusal belongs to messages of the role 'assistant'")
        if (self.tool_call_id is not None) != (self.role == "tool"):
            raise ValueError("tool_call_id belongs to messages of the role 'tool', which need it")
        return self

    def unpack(self) -> ChatMessage:
        """Return the message in the model's format."""
        calls = tuple(
            ToolCall(call.id, call.function.name, call.function.arguments)
            for call in self.tool_calls or ()
        )
        return ChatMessage(
            _ROLES[self.role],
            self.content or self.refusal or "",
            self.reasoning_content,
            calls,
            self.tool_call_id,
            self.name if self.role == "tool" else None,
        )


def tools_json(tools: list[Tool] | None) -> str:
    """Return tools as JSON for chat templates; empty if there are none."""
    if not tools:
        return ""
    dumped = [tool.model_dump(exclude_none=True) for tool in tools]
    for tool in dumped:
        tool["function"].setdefault("parameters", NO_PARAMETERS)
    return json.dumps(dumped, ensure_ascii=False)
