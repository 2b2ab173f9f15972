"""Messages and tools of a conversation, in OpenAI's format. An unknown key is an error."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, get_args

from msgspec.structs import replace
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetJsonSchemaHandler,
    GetPydanticSchema,
    Tag,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema

from izwi.errors import InvalidValue
from izwi.inputs.chat import NO_PARAMETERS, ChatMessage, Role, ToolCall
from izwi.inputs.images import ChatImage, Detail

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
_MAX_ID_CHARS = 128
# base64 of a file that begins with RIFF
_WAV = "UklGR"


class Strict(BaseModel):
    """A body that rejects unknown keys and does not convert types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class TextPart(Strict):
    """Text of a message."""

    type: Literal["text"]
    text: str


class RefusalPart(Strict):
    """Text of the assistant that refuses to answer."""

    type: Literal["refusal"]
    refusal: str


class InputAudio(Strict):
    """An audio file, in base64."""

    data: str = Field(min_length=1)
    format: Literal["wav", "mp3"]


def _with_format(value: object) -> object:
    """Detect a bare file as WAV by its first bytes, otherwise assume MP3."""
    if not isinstance(value, str):
        return value
    return {"data": value, "format": "wav" if value.startswith(_WAV) else "mp3"}


class AudioPart(Strict):
    """Audio of a message; some clients send only the file."""

    type: Literal["input_audio"]
    input_audio: Annotated[InputAudio, BeforeValidator(_with_format)]


_DETAILS = ("auto", "low", "high", "original")
_IMAGE = {
    "type": "object",
    "properties": {
        "url": {"type": "string"},
        "detail": {"type": "string", "enum": list(_DETAILS)},
    },
    "required": ["url"],
}


class ImagePart(BaseModel):
    """An image, for models that see; other models refuse it, whatever it holds."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    type: Literal["image_url"]
    image_url: Annotated[Any, WithJsonSchema(_IMAGE)] = None

    def unpack(self, at: int) -> ChatImage:
        """Return the image, after so many characters of text. Raises InvalidValue."""
        value = self.image_url
        return image_of(value if isinstance(value, dict) else {"url": value}, at)


def image_of(value: Mapping[str, object], at: int) -> ChatImage:
    """Return an image of its `url` and `detail`, after so many characters of text.

    Raises:
        InvalidValue: One of them is of the wrong kind.
    """
    url, detail = value.get("url"), value.get("detail") or "auto"
    if not isinstance(url, str) or not url:
        raise InvalidValue("image_url must have a url", param="messages")
    if detail not in _DETAILS:
        raise InvalidValue(f"detail must be one of {', '.join(_DETAILS)}", param="messages")
    return ChatImage(at, url, Detail.HIGH if detail == "original" else Detail(str(detail)))


def _part_tag(value: object) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return kind if isinstance(kind, str) and kind in _PART_TYPES else None


_PART_TYPES = ("text", "input_audio", "image_url", "refusal")

Part = Annotated[
    Annotated[TextPart, Tag("text")]
    | Annotated[AudioPart, Tag("input_audio")]
    | Annotated[ImagePart, Tag("image_url")]
    | Annotated[RefusalPart, Tag("refusal")],
    Discriminator(
        _part_tag,
        custom_error_type="part",
        custom_error_message="a part must be an object whose type is 'text' or 'input_audio', "
        "'image_url' in messages of the user, or 'refusal' in messages of the assistant",
    ),
]


def text_or_list(item: Any, error: str, *, optional: bool = True) -> GetPydanticSchema:
    """Return the validation of a field that is a string or a list, or null.

    It is not a union of two types, so that errors have no place between the field and an index.

    Args:
        item: Type of the list's items.
        error: What is reported of a value that is neither.
        optional: Null is allowed.
    """

    def read(value: object, read_list: ValidatorFunctionWrapHandler) -> object:
        if isinstance(value, str) or (value is None and optional):
            return value
        if not isinstance(value, list):
            raise ValueError(error)
        return read_list(value)

    def json_schema(schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        null = [{"type": "null"}] if optional else []
        return {"anyOf": [{"type": "string"}, handler(schema["schema"]), *null]}

    return GetPydanticSchema(
        lambda _, handler: core_schema.no_info_wrap_validator_function(
            read,
            handler.generate_schema(list[item]),
            serialization=core_schema.simple_ser_schema("any"),
        ),
        json_schema,
    )


Content = Annotated[
    str | list[Part] | None,
    text_or_list(Part, "content must be a string or a list of parts"),
]


class GivenAnswer(Strict):
    """An earlier spoken answer, by its id."""

    id: str = Field(max_length=_MAX_ID_CHARS)
    data: str | None = None
    expires_at: int | None = None
    transcript: str | None = None


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
    content: Content = None
    reasoning_content: str | None = None
    name: str | None = None
    refusal: str | None = None
    audio: GivenAnswer | None = None
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

    @property
    def parts(self) -> Sequence[Part]:
        """The parts of the content; a string is one part."""
        if isinstance(self.content, str):
            return (TextPart(type="text", text=self.content),)
        return self.content or ()

    @property
    def has_audio(self) -> bool:
        """Whether the message has audio to hear, or is an earlier spoken answer."""
        return self.audio is not None or any(isinstance(part, AudioPart) for part in self.parts)

    @property
    def text(self) -> str:
        """The text of its parts, one line each."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(map(text_of, self.parts))

    @property
    def model_role(self) -> Role:
        """The role as models know it."""
        return _ROLES[self.role]

    def unpack(self, text: str | None = None) -> ChatMessage:
        """Return the message in the format of chat models.

        Args:
            text: Its text, if it is not `text`: what was heard, or said, instead of audio. Images
                then stand before it.

        Raises:
            InvalidValue: An image is not valid.
        """
        images: tuple[ChatImage, ...] = ()
        if any(isinstance(part, ImagePart) for part in self.parts):
            shown, images = self._with_images()
            if text is None:
                text = shown
            else:
                images = tuple(replace(image, at=0) for image in images)
        calls = tuple(
            ToolCall(call.id, call.function.name, call.function.arguments)
            for call in self.tool_calls or ()
        )
        return ChatMessage(
            self.model_role,
            (self.text or self.refusal or "") if text is None else text,
            self.reasoning_content,
            calls,
            self.tool_call_id,
            self.name if self.role == "tool" else None,
            images,
        )

    def _with_images(self) -> tuple[str, tuple[ChatImage, ...]]:
        """Return the text, and the images at their places in it.

        Texts side by side are lines, and nothing stands between text and an image.
        """
        text, images, after_text = "", [], False
        for part in self.parts:
            if isinstance(part, ImagePart):
                images.append(part.unpack(len(text)))
                after_text = False
            else:
                text += ("\n" if after_text else "") + text_of(part)
                after_text = True
        return text, tuple(images)


def text_of(part: Part) -> str:
    """Return the text of a part; a part of another kind has none."""
    match part:
        case TextPart(text=text) | RefusalPart(refusal=text):
            return text
    return ""


def tools_json(tools: list[Tool] | None) -> str:
    """Return tools as JSON for chat templates; empty if there are none."""
    if not tools:
        return ""
    dumped = [tool.model_dump(exclude_none=True) for tool in tools]
    for tool in dumped:
        tool["function"].setdefault("parameters", NO_PARAMETERS)
    return json.dumps(dumped, ensure_ascii=False)
