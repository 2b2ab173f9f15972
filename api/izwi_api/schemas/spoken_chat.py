"""The body of POST /v1/chat/completions with audio input or output.

As in `izwi_api.schemas.chat`, an unknown key is an error, and an unsupported key is accepted only
with the value that has no effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from izwi.errors import InvalidRequest
from izwi_api.schemas.chat import INT32_MAX, INT64_MAX
from izwi_api.schemas.chat_messages import Strict
from izwi_api.schemas.stream_options import StreamOptions

_MAX_ID_CHARS = 128
# OpenAI's names of formats, by the encoders' names.
FORMATS = {name: name for name in ("wav", "aac", "mp3", "flac", "opus")} | {"pcm16": "pcm"}
AudioFormat = Literal["wav", "aac", "mp3", "flac", "opus", "pcm16"]


class TextPart(Strict):
    """Text of a message."""

    type: Literal["text"]
    text: str


class InputAudio(Strict):
    """An audio file, in base64."""

    data: str = Field(min_length=1)
    format: Literal["wav", "mp3"]


# base64 of a file that begins with RIFF
_WAV = "UklGR"


def _with_format(value: object) -> object:
    """Detect a bare file as WAV by its first bytes, otherwise assume MP3."""
    if not isinstance(value, str):
        return value
    return {"data": value, "format": "wav" if value.startswith(_WAV) else "mp3"}


class AudioPart(Strict):
    """Audio of a message; some clients send only the file."""

    type: Literal["input_audio"]
    input_audio: Annotated[InputAudio, BeforeValidator(_with_format)]


class GivenAnswer(Strict):
    """An earlier answer, by its id."""

    id: str = Field(max_length=_MAX_ID_CHARS)
    data: str | None = None
    expires_at: int | None = None
    transcript: str | None = None


class SpokenMessage(Strict):
    """One message. A response's message can be sent back unchanged."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[Annotated[TextPart | AudioPart, Field(discriminator="type")]] | None = None
    audio: GivenAnswer | None = None
    name: str | None = None
    refusal: None = None


class VoiceId(Strict):
    """A voice, by its id."""

    id: str


class AudioOptions(Strict):
    """Settings of the audio output.

    Attributes:
        voice: Accepted but ignored: the model has one voice.
    """

    format: AudioFormat
    voice: str | VoiceId | None = None


class SpokenChatBody(Strict):
    """The request body."""

    model: str
    messages: list[SpokenMessage] = Field(min_length=1)
    modalities: list[Literal["text", "audio"]] | None = None
    audio: AudioOptions | None = None
    max_completion_tokens: int | None = Field(default=None, ge=1, le=INT32_MAX)
    max_tokens: int | None = Field(default=None, ge=1, le=INT32_MAX)
    temperature: float | None = Field(default=None, ge=0.0, le=2.0)
    seed: int | None = Field(default=None, ge=-INT64_MAX - 1, le=INT64_MAX)
    stream: bool = False
    stream_options: StreamOptions | None = None

    # Accepted only with the value that has no effect.
    n: Literal[1] | None = None
    logprobs: Literal[False] | None = None
    store: Literal[False] | None = None
    tools: Annotated[list[Any], Field(max_length=0)] | None = None
    stop: Any = None
    response_format: Any = None
    top_p: float | None = Field(default=None, ge=1.0, le=1.0)

    # Accepted and ignored.
    service_tier: Literal["auto", "default"] | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    # Extensions; the SDK sends them through `extra_body`.
    top_k: int | None = Field(default=None, ge=0, le=100_000)
    audio_temperature: float | None = Field(default=None, ge=0.0, le=2.0)
    audio_top_k: int | None = Field(default=None, ge=0, le=2049)

    def check(self) -> None:
        """Validate combinations of keys, for a speech-to-speech model. Raises InvalidRequest."""
        if self.speaks is not (self.audio is not None):
            message = "`audio` and the modality 'audio' belong together: give both or neither"
            raise InvalidRequest(message, param="audio")
        if self.stop not in (None, []):
            raise InvalidRequest(
                "`stop` is not supported by a speech-to-speech model: it speaks text after writing "
                "it, so cutting the text would also cut audio that belongs to the answer",
                param="stop",
            )
        if self.response_format not in (None, {"type": "text"}):
            raise InvalidRequest(
                "`response_format` is not supported by a speech-to-speech model: it would speak "
                "the JSON",
                param="response_format",
            )

    @property
    def speaks(self) -> bool:
        """Return whether audio output is requested."""
        return "audio" in (self.modalities or ())


def has_audio(values: object) -> bool:
    """Return whether an unvalidated body has audio input or requests audio output."""
    if not isinstance(values, Mapping):
        return False
    messages = values.get("messages")
    has_input = isinstance(messages, list) and any(map(_message_has_audio, messages))
    return has_input or requests_audio(values)


def requests_audio(values: Mapping[str, object]) -> bool:
    """Return whether an unvalidated body requests audio output."""
    modalities = values.get("modalities")
    wants = isinstance(modalities, list) and "audio" in modalities
    return wants or values.get("audio") is not None


def _message_has_audio(message: object) -> bool:
    if not isinstance(message, Mapping):
        return False
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    has_input = any(isinstance(p, Mapping) and p.get("type") == "input_audio" for p in parts)
    return has_input or message.get("audio") is not None
