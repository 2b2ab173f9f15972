"""The keys of POST /v1/chat/completions for a cascade: transcription, chat model, speech.

All other keys are those of `izwi_api.schemas.chat`, and are checked there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from izwi.errors import InvalidRequest
from izwi_api.schemas.chat import ChatBody
from izwi_api.schemas.chat_messages import Strict
from izwi_api.schemas.spoken_chat import AudioFormat, AudioPart, GivenAnswer, VoiceId

# Keys in addition to those of a text chat.
_OWN_KEYS = ("modalities", "audio", "speech_model", "transcription_model")


def _kind(part: object) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else getattr(part, "type", None)
    return "input_audio" if kind == "input_audio" else "other"


_Part = Annotated[
    Annotated[AudioPart, Tag("input_audio")] | Annotated[Any, Tag("other")], Discriminator(_kind)
]


def _content_kind(content: object) -> str:
    return "parts" if isinstance(content, list) else "other"


_Content = Annotated[
    Annotated[list[_Part], Tag("parts")] | Annotated[Any, Tag("other")],
    Discriminator(_content_kind),
]


class HeardMessage(BaseModel):
    """The audio of one message; its other keys are validated elsewhere."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    role: str | None = None
    content: _Content = None
    audio: GivenAnswer | None = None


class SpokenWith(Strict):
    """Voice and format of a spoken answer."""

    format: AudioFormat
    voice: str | VoiceId

    @property
    def voice_name(self) -> str:
        """Return the voice's name or id."""
        return self.voice if isinstance(self.voice, str) else self.voice.id


class CascadeBody(BaseModel):
    """Audio input to a chat model, and settings of its spoken answer.

    Attributes:
        speech_model: The speech model; None selects the first one.
        transcription_model: The transcription model; None selects the first one.
    """

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    messages: list[HeardMessage] = Field(min_length=1)
    modalities: list[Literal["text", "audio"]] | None = None
    audio: SpokenWith | None = None
    speech_model: str | None = None
    transcription_model: str | None = None
    n: Any = None
    store: Literal[False] | None = None
    logprobs: Any = None

    def check(self) -> None:
        """Validate combinations of keys. Raises InvalidRequest."""
        if ("audio" in (self.modalities or ())) is not (self.audio is not None):
            message = "`audio` and the modality 'audio' belong together: give both or neither"
            raise InvalidRequest(message, param="audio")
        if self.audio is not None and self.n not in (None, 1):
            raise InvalidRequest("'n' must be 1 for an answer with audio", param="n")
        if self.audio is not None and self.logprobs:
            message = "logprobs are not supported for an answer with audio"
            raise InvalidRequest(message, param="logprobs")


def chat_body(values: Mapping[str, Any], texts: list[list[str] | None]) -> ChatBody:
    """Return the body of a text chat.

    Args:
        values: The body as received; a valid `CascadeBody`.
        texts: For each message, the texts of its content with audio transcribed; None leaves the
            message unchanged.

    Raises:
        ValidationError: One of its other keys is invalid.
    """
    plain = {key: value for key, value in values.items() if key not in _OWN_KEYS}
    plain["messages"] = [
        message if said is None else _written(message, said)
        for message, said in zip(values["messages"], texts, strict=True)
    ]
    return ChatBody.model_validate(plain)


def _written(message: Mapping[str, Any], texts: list[str]) -> dict[str, Any]:
    content = [{"type": "text", "text": text} for text in texts]
    return {key: value for key, value in message.items() if key != "audio"} | {"content": content}
