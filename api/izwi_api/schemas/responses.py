"""The body of POST /v1/responses: text, functions, and the previous response."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_core import ErrorDetails

from izwi.errors import InvalidRequest
from izwi.inputs.chat import NO_PARAMETERS, ChatInput, ChatMessage, Role, ToolCall, ToolChoice
from izwi.inputs.images import ChatImage
from izwi_api.schemas.chat import INT32_MAX, JsonFormat, TextFormat
from izwi_api.schemas.chat_messages import (
    MAX_TOOLS,
    Strict,
    ToolChoiceWord,
    image_of,
    text_or_list,
    tool_choice_discriminator,
)
from izwi_api.schemas.stream_options import ResponseStreamOptions

_ROLES = {
    "system": Role.SYSTEM,
    "developer": Role.SYSTEM,
    "user": Role.USER,
    "assistant": Role.ASSISTANT,
}


class _Item(BaseModel):
    """A part of the input. The other keys of what a response returned are not read."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


class TextPart(_Item):
    """Text of a message, or of what a function returned."""

    type: Literal["input_text", "output_text", "text"]
    text: str


Text = Annotated[
    str | list[TextPart] | None,
    text_or_list(TextPart, "text must be a string or a list of parts"),
]


class ImagePart(_Item):
    """An image of a message of the user."""

    type: Literal["input_image"]
    image_url: str
    detail: Literal["auto", "low", "high", "original"] | None = None


Content = Annotated[
    str | list[Annotated[TextPart | ImagePart, Field(discriminator="type")]] | None,
    text_or_list(
        Annotated[TextPart | ImagePart, Field(discriminator="type")],
        "text must be a string or a list of parts",
    ),
]


class MessageItem(_Item):
    """A message. One that a response returned can be sent back unchanged."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Content = None

    @model_validator(mode="after")
    def _only_the_user_shows(self) -> MessageItem:
        if self.role != "user" and any(isinstance(p, ImagePart) for p in self.content or ()):
            raise ValueError("images belong into messages of the role 'user'")
        return self


class FunctionCallItem(_Item):
    """A call of a function; it belongs to the message before it."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class FunctionOutputItem(_Item):
    """What a function returned."""

    type: Literal["function_call_output"]
    output: Text = None
    call_id: str


class ReasoningItem(_Item):
    """Thoughts of an earlier turn, which are left out."""

    type: Literal["reasoning"]


_ITEM_TYPES = ("message", "function_call", "function_call_output", "reasoning")


def _item_type(value: object) -> str | None:
    kind = value.get("type", "message") if isinstance(value, dict) else getattr(value, "type", None)
    return kind if isinstance(kind, str) and kind in _ITEM_TYPES else None


Item = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[FunctionOutputItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")],
    Discriminator(
        _item_type, custom_error_type="item", custom_error_message="each item must be an object"
    ),
]


def _refused_by_item(value: object, read: ValidatorFunctionWrapHandler) -> object:
    """Read the input; report an item that is not valid by its index and type."""
    try:
        return read(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = next(iter(first["loc"]), None)
        if not (isinstance(value, list) and isinstance(place, int)):
            raise
        item = value[place]
        if not isinstance(item, dict):
            raise
        raise InvalidRequest(_refusal(place, item, first), param="input") from error


def _refusal(place: int, item: Mapping[str, object], error: ErrorDetails) -> str:
    kind = str(item.get("type", "message"))[:32]
    if error["type"] == "item":
        return f"input[{place}]: items of the type {kind!r} are not supported"
    return f"input[{place}] is not a valid item of the type {kind!r}: {_reason(error)}"


def _reason(error: ErrorDetails) -> str:
    field = error["loc"][-1]
    if isinstance(field, int) or field == "type":
        return "only text parts, and images of the user, are supported"
    if error["type"] == "missing" or field == "role":
        given = field if error["type"] == "missing" else error["input"]
        return f"{given!r} is missing or has an unknown value"
    if error["type"] == "string_type":
        return f"{field} must be a string"
    return error["msg"].removeprefix("Value error, ")


Input = Annotated[
    str | list[Item],
    text_or_list(Item, "it must be a string or a list of items", optional=False),
    WrapValidator(_refused_by_item),
]


class FunctionTool(Strict):
    """A function that the model may call."""

    type: Literal["function"]
    name: str = Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionChoice(Strict):
    """The function that must be called."""

    type: Literal["function"]
    name: str


class AllowedToolsChoice(Strict):
    """Only some of the request's functions are available; `mode` says if one must be called."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: list[FunctionChoice] = Field(min_length=1, max_length=MAX_TOOLS)


ToolChoiceValue = Annotated[
    Annotated[ToolChoiceWord, Tag("word")]
    | Annotated[FunctionChoice, Tag("function")]
    | Annotated[AllowedToolsChoice, Tag("allowed_tools")],
    tool_choice_discriminator(
        '{"type": "function", "name": NAME} or {"type": "allowed_tools", "mode": "auto" or '
        '"required", "tools": [...]}'
    ),
]


class SchemaFormat(Strict):
    """JSON that follows a schema."""

    type: Literal["json_schema"]
    name: str
    schema_: dict[str, Any] = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None


class TextOptions(Strict):
    """The format of the text."""

    format: TextFormat | JsonFormat | SchemaFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ResponseBody(Strict):
    """The request body."""

    model: str
    input: Input
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: int | None = Field(default=None, ge=1, le=INT32_MAX)
    temperature: float | None = Field(default=None, ge=0.0, le=2.0)
    top_p: float | None = Field(default=None, gt=0.0, le=1.0)
    tools: Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoiceValue | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None

    # Accepted and ignored.
    include: list[str] | None = None
    metadata: dict[str, str] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    reasoning: dict[str, Any] | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    truncation: Literal["auto", "disabled"] | None = None
    user: str | None = None

    # Extension.
    enable_thinking: bool | None = None


def response_input(body: ResponseBody, before: Sequence[ChatMessage], seed: int) -> ChatInput:
    """Convert a body to the model's input.

    Args:
        body: The validated request body.
        before: The conversation up to the previous response, without its instructions.
        seed: Seed of this response.

    Raises:
        InvalidRequest: Two keys contradict each other.
    """
    tools, choice, named = _available(body)
    system = [ChatMessage(Role.SYSTEM, body.instructions)] if body.instructions else []
    return ChatInput(
        (*system, *before, *messages_of(body.input)),
        thinking=body.enable_thinking,
        temperature=body.temperature,
        top_p=body.top_p,
        seed=seed,
        max_new_tokens=body.max_output_tokens,
        tools=_tools_json(tools),
        tool_choice=choice,
        tool_name=named,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        response_schema=_schema_json(body.text),
        grammar_param="text.format",
    )


def _available(
    body: ResponseBody,
) -> tuple[list[FunctionTool] | None, ToolChoice, str | None]:
    """Return the functions in the prompt, whether one is called, and which one must be called.

    Raises:
        InvalidRequest: `tool_choice` names none of `tools`.
    """
    tools, choice, named = body.tools, ToolChoice.AUTO, None
    chosen: list[str] = []
    match body.tool_choice:
        case FunctionChoice(name=name):
            chosen, choice, named = [name], ToolChoice.REQUIRED, name
        case AllowedToolsChoice(mode=mode, tools=allowed):
            chosen, choice = [tool.name for tool in allowed], ToolChoice(mode)
            tools = [tool for tool in body.tools or () if tool.name in chosen]
        case "none" | "auto" | "required" as word:
            choice = ToolChoice(word)
    names = {tool.name for tool in body.tools or ()}
    if not names.issuperset(chosen) or (choice is ToolChoice.REQUIRED and not names):
        raise InvalidRequest("tool_choice names a tool that is not in tools", param="tool_choice")
    return tools, choice, named


def messages_of(given: str | Sequence[Item]) -> tuple[ChatMessage, ...]:
    """Convert a response's input to messages; calls become part of the message before them."""
    if isinstance(given, str):
        return (ChatMessage(Role.USER, given),)
    messages: list[ChatMessage] = []
    for item in given:
        match item:
            case MessageItem(role=role, content=content):
                text, images = _content(content)
                messages.append(ChatMessage(_ROLES[role], text, images=images))
            case FunctionCallItem():
                call = ToolCall(item.call_id, item.name, item.arguments)
                if not (messages and messages[-1].role is Role.ASSISTANT):
                    messages.append(ChatMessage(Role.ASSISTANT, ""))
                last = messages.pop()
                calls = (*last.tool_calls, call)
                messages.append(ChatMessage(last.role, last.content, last.reasoning, calls))
            case FunctionOutputItem(output=output, call_id=call_id):
                messages.append(ChatMessage(Role.TOOL, _text(output), call_id=call_id))
    return tuple(messages)


def _content(
    content: str | Sequence[TextPart | ImagePart] | None,
) -> tuple[str, tuple[ChatImage, ...]]:
    """Return the text of a message, and its images at their places in it; see `Message.unpack`."""
    if content is None or isinstance(content, str):
        return content or "", ()
    text, images, after_text = "", [], False
    for part in content:
        if isinstance(part, ImagePart):
            images.append(image_of({"url": part.image_url, "detail": part.detail}, len(text)))
            after_text = False
        else:
            text += ("\n" if after_text else "") + part.text
            after_text = True
    return text, tuple(images)


def _text(content: str | Sequence[TextPart] | None) -> str:
    """Return text, or the text of parts, one line each."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part.text for part in content)


def _tools_json(tools: list[FunctionTool] | None) -> str:
    if not tools:
        return ""
    keys = {"type", "strict"}
    functions = [tool.model_dump(exclude_none=True, exclude=keys) for tool in tools]
    for function in functions:
        function.setdefault("parameters", NO_PARAMETERS)
    wrapped = [{"type": "function", "function": function} for function in functions]
    return json.dumps(wrapped, ensure_ascii=False)


def _schema_json(text: TextOptions | None) -> str:
    written = None if text is None else text.format
    if isinstance(written, JsonFormat):
        return '{"type": "object"}'
    return json.dumps(written.schema_) if isinstance(written, SchemaFormat) else ""
