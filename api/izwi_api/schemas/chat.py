"""The body of POST /v1/chat/completions, with text and audio. An unknown key is an error.

Keys of OpenAI's that no model here supports are accepted only with the value that has no effect.
Keys that never affect the answer are accepted and ignored. What depends on the models that answer
is checked in `izwi_api.services.chat.pipeline`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from izwi.errors import InvalidRequest, InvalidValue
from izwi.inputs.chat import ChatInput, ToolChoice
from izwi_api.schemas.chat_messages import (
    MAX_TOOLS,
    AllowedToolsChoice,
    ImagePart,
    Message,
    NamedTool,
    Strict,
    Tool,
    ToolChoiceValue,
    tools_json,
)
from izwi_api.schemas.stream_options import StreamOptions

INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1
_MAX_STOPS, _MAX_STOP_CHARS = 4, 256
_MAX_BIASES = 1024
MAX_TOP_LOGPROBS = 20
MAX_CHOICES = 8
# OpenAI's names of formats, by the encoders' names.
FORMATS = {name: name for name in ("wav", "aac", "mp3", "flac", "opus")} | {"pcm16": "pcm"}
AudioFormat = Literal["wav", "aac", "mp3", "flac", "opus", "pcm16"]


class TemplateOptions(Strict):
    """The template option for thinking, as other servers of these models name it."""

    enable_thinking: bool | None = None


class TextFormat(Strict):
    """Unconstrained text."""

    type: Literal["text"]


class JsonFormat(Strict):
    """Any JSON object."""

    type: Literal["json_object"]


class JsonSchema(Strict):
    """A schema with OpenAI's metadata. It is always enforced, strict or not."""

    name: str = Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema", default_factory=lambda: {"type": "object"})
    strict: bool | None = None


class JsonSchemaFormat(Strict):
    """JSON that follows a schema."""

    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[TextFormat | JsonFormat | JsonSchemaFormat, Field(discriminator="type")]


def schema_json(response_format: TextFormat | JsonFormat | JsonSchemaFormat | None) -> str:
    """Return the JSON schema for the answer; empty for unconstrained text."""
    if isinstance(response_format, JsonFormat):
        return '{"type": "object"}'
    if isinstance(response_format, JsonSchemaFormat):
        return json.dumps(response_format.json_schema.schema_)
    return ""


_Stop = Annotated[str, Field(min_length=1, max_length=_MAX_STOP_CHARS)]
_STOP = {"type": "string", "minLength": 1, "maxLength": _MAX_STOP_CHARS}
_STOPS = {"anyOf": [_STOP, {"type": "array", "items": _STOP, "maxItems": _MAX_STOPS}]}


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


_Penalty = Annotated[float, Field(ge=-2.0, le=2.0)]
_ID = r"^[0-9]{1,9}$"
_BIASES = {
    "type": "object",
    "patternProperties": {_ID: {"type": "number", "minimum": -100, "maximum": 100}},
    "additionalProperties": False,
    "maxProperties": _MAX_BIASES,
}
_Biases = Annotated[
    dict[Annotated[str, Field(pattern=_ID)], Annotated[float, Field(ge=-100, le=100)]],
    Field(max_length=_MAX_BIASES),
    WithJsonSchema(_BIASES),
]


_METADATA = {
    "type": "object",
    "propertyNames": {"maxLength": 64},
    "additionalProperties": {"type": "string", "maxLength": 512},
    "maxProperties": 16,
}
Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
    Field(max_length=16),
    WithJsonSchema(_METADATA),
]


class Prediction(Strict):
    """Predicted content of the answer."""

    type: Literal["content"]
    content: str | list[dict[str, Any]]


class VoiceId(Strict):
    """A voice, by its id."""

    id: str


class AudioOptions(Strict):
    """Voice and format of a spoken answer.

    Attributes:
        voice: Required if a speech model speaks the answer of a chat model; without effect for a
            speech-to-speech model, which has one voice.
    """

    format: AudioFormat
    voice: str | VoiceId | None = None

    @property
    def voice_name(self) -> str | None:
        """Return the voice's name or id."""
        return self.voice.id if isinstance(self.voice, VoiceId) else self.voice


class StoredUpdateBody(Strict):
    """The fields of a stored completion that can be updated."""

    metadata: Metadata | None = None


class ChatBody(Strict):
    """The request body."""

    model: str
    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1, le=INT32_MAX)
    max_tokens: int | None = Field(default=None, ge=1, le=INT32_MAX)
    temperature: float | None = Field(default=None, ge=0.0, le=2.0)
    top_p: float | None = Field(default=None, gt=0.0, le=1.0)
    frequency_penalty: _Penalty | None = None
    presence_penalty: _Penalty | None = None
    logit_bias: _Biases | None = None
    seed: int | None = Field(default=None, ge=-INT64_MAX - 1, le=INT64_MAX)
    stop: Annotated[
        list[_Stop],
        Field(max_length=_MAX_STOPS),
        BeforeValidator(_listed),
        WithJsonSchema(_STOPS),
    ] = Field(default_factory=list)
    n: int | None = Field(default=None, ge=1, le=MAX_CHOICES)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoiceValue | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None

    # A spoken answer: both, or neither.
    modalities: list[Literal["text", "audio"]] | None = None
    audio: AudioOptions | None = None

    # Storage of the completion, and its labels.
    store: bool = False
    metadata: Metadata | None = None

    # Accepted and ignored.
    service_tier: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    prediction: Prediction | None = None

    # Only switches thinking on or off: the models have no levels.
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = (
        None
    )

    # Extensions; the SDK sends them through `extra_body`.
    top_k: int | None = Field(default=None, ge=0, le=100_000)
    min_p: float | None = Field(default=None, ge=0.0, le=1.0)
    repetition_penalty: float | None = Field(default=None, ge=0.01, le=100.0)
    enable_thinking: bool | None = None
    chat_template_kwargs: TemplateOptions | None = None

    # Extensions of speech-to-speech models: sampling of audio.
    audio_temperature: float | None = Field(default=None, ge=0.0, le=2.0)
    audio_top_k: int | None = Field(default=None, ge=0, le=2049)

    # Extensions for models beside a chat model; by default the first ones that are served.
    speech_model: str | None = None
    transcription_model: str | None = None

    @property
    def has_audio(self) -> bool:
        """Whether a message has audio, or is an earlier spoken answer."""
        return any(message.has_audio for message in self.messages)

    @property
    def has_images(self) -> bool:
        """Whether a message has an image."""
        return any(isinstance(part, ImagePart) for m in self.messages for part in m.parts)

    @property
    def speaks(self) -> bool:
        """Whether the answer has audio."""
        return "audio" in (self.modalities or ())


def check(body: ChatBody) -> None:
    """Validate what does not depend on the models that answer. Raises InvalidRequest."""
    _check_content(body.messages)
    if body.speaks is not (body.audio is not None):
        message = "`audio` and the modality 'audio' belong together: give both or neither"
        raise InvalidRequest(message, param="audio")
    _check_together(body)


def check_images(body: ChatBody, *, sees: bool) -> None:
    """Validate images. Raises InvalidValue, which names the place of the first wrong one.

    Args:
        body: The request body.
        sees: Whether the model that answers sees images.
    """
    for place, message in enumerate(body.messages):
        for part_place, part in enumerate(message.parts):
            if not isinstance(part, ImagePart):
                continue
            where = f"messages[{place}].content[{part_place}]"
            if not sees:
                raise InvalidValue(
                    f"model {body.model!r} cannot see, so parts of the type 'image_url' are not "
                    "supported; send parts of the type 'text' or 'input_audio'",
                    param=where,
                )
            if message.role != "user":
                raise InvalidValue("images belong into messages of the role 'user'", param=where)
            try:
                part.unpack(0)
            except InvalidValue as error:
                raise InvalidValue(str(error), param=where) from error


def _check_content(messages: Sequence[Message]) -> None:
    for message in messages:
        if message.audio is not None and message.role != "assistant":
            raise InvalidRequest("only a message of the assistant may have audio", param="messages")


def _check_together(body: ChatBody) -> None:
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs to be true", param="top_logprobs")
    choice = body.tool_choice
    if choice in (None, "none", "auto"):
        return
    names = [tool.function.name for tool in body.tools or ()]
    if not names:
        raise InvalidRequest("tool_choice requires a call, but there are no tools", param="tools")
    for name in _chosen(body):
        if name not in names:
            raise InvalidRequest(
                f"tool_choice names no tool of this request: {name!r}", param="tool_choice"
            )


def _chosen(body: ChatBody) -> list[str]:
    """Return the names of the functions that `tool_choice` names."""
    match body.tool_choice:
        case NamedTool(function=function):
            return [function.name]
        case AllowedToolsChoice(allowed_tools=allowed):
            return [tool.function.name for tool in allowed.tools]
    return []


def _available(body: ChatBody) -> tuple[list[Tool] | None, ToolChoice, str | None]:
    """Return the functions in the prompt, whether one is called, and which one must be called."""
    match body.tool_choice:
        case NamedTool(function=function):
            return body.tools, ToolChoice.REQUIRED, function.name
        case AllowedToolsChoice(allowed_tools=allowed):
            names = _chosen(body)
            tools = [tool for tool in body.tools or () if tool.function.name in names]
            return tools, ToolChoice(allowed.mode), None
        case choice:
            return body.tools, ToolChoice(choice or ToolChoice.AUTO), None


def chat_input(body: ChatBody, seed: int, texts: Sequence[str | None] | None = None) -> ChatInput:
    """Convert a body to the input of a chat model.

    Args:
        body: The request body, which passed `check`.
        seed: Used if the body has none.
        texts: Text of each message, in place of its audio; None leaves a message, or all of them,
            as they are.
    """
    thinking = body.enable_thinking
    if thinking is None and body.chat_template_kwargs is not None:
        thinking = body.chat_template_kwargs.enable_thinking
    if thinking is None and body.reasoning_effort is not None:
        thinking = body.reasoning_effort != "none"
    tools, choice, named = _available(body)
    said = texts or [None] * len(body.messages)
    return ChatInput(
        tuple(message.unpack(text) for message, text in zip(body.messages, said, strict=True)),
        thinking=thinking,
        temperature=body.temperature,
        top_k=body.top_k,
        top_p=body.top_p,
        seed=seed if body.seed is None else body.seed,
        max_new_tokens=body.max_completion_tokens or body.max_tokens,
        tools=tools_json(tools),
        tool_choice=choice,
        tool_name=named,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        min_p=body.min_p,
        repetition_penalty=body.repetition_penalty,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        logit_bias=tuple((int(i), bias) for i, bias in sorted((body.logit_bias or {}).items())),
        logprobs=bool(body.logprobs),
        top_logprobs=body.top_logprobs or 0,
        response_schema=schema_json(body.response_format),
    )
