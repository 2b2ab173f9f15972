"""Events that a Realtime client sends: one strict type per event.

The names and keys are those of OpenAI's Realtime API (GA);
`tests/realtime/protocol/test_protocol.py` compares them with the types of the openai package.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from izwi.errors import TooLarge
from izwi_api.realtime.protocol.errors import EventError, describe

MAX_APPEND_BYTES = 15 << 20
MAX_MESSAGE_BYTES = 24 << 20  # the audio in base64, and the rest of the message
_EventId = Annotated[str, Meta(max_length=512)]


class _Event(Struct, forbid_unknown_fields=True, kw_only=True, tag_field="type"):
    event_id: _EventId | None = None


class SessionUpdate(_Event, tag="session.update"):
    """Change the given settings."""

    session: dict[str, Any]


class InputAudioAppend(_Event, tag="input_audio_buffer.append"):
    """Append audio to the input buffer."""

    audio: bytes  # base64 in the JSON


class InputAudioCommit(_Event, tag="input_audio_buffer.commit"):
    """Turn the input buffer into an item."""


class InputAudioClear(_Event, tag="input_audio_buffer.clear"):
    """Discard the input buffer."""


class OutputAudioClear(_Event, tag="output_audio_buffer.clear"):
    """Discard audio that was sent but not yet played (WebRTC only)."""


class ItemCreate(_Event, tag="conversation.item.create"):
    """Insert an item after another one: "root" inserts at the beginning, None at the end."""

    item: dict[str, Any]
    previous_item_id: str | None = None


class ItemRetrieve(_Event, tag="conversation.item.retrieve"):
    """Request an item, including its audio."""

    item_id: str


class ItemDelete(_Event, tag="conversation.item.delete"):
    """Remove an item from the conversation."""

    item_id: str


class ItemTruncate(_Event, tag="conversation.item.truncate"):
    """Truncate an answer to the part that was played."""

    item_id: str
    content_index: int
    audio_end_ms: int


class ResponseOptions(Struct, forbid_unknown_fields=True, kw_only=True):
    """Settings of one response. UNSET and None use the session's value."""

    audio: dict[str, Any] | None = None
    conversation: Literal["auto", "none"] | None = None
    input: list[dict[str, Any]] | UnsetType | None = UNSET
    instructions: str | None = None
    max_output_tokens: int | Literal["inf"] | None = None
    metadata: dict[str, str] | None = None
    output_modalities: list[Literal["text", "audio"]] | None = None
    parallel_tool_calls: bool | None = None
    prompt: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None


class ResponseCreate(_Event, tag="response.create"):
    """Request a response."""

    response: ResponseOptions | None = None


class ResponseCancel(_Event, tag="response.cancel"):
    """Stop the response in progress."""

    response_id: str | None = None


ClientEvent = (
    SessionUpdate | InputAudioAppend | InputAudioCommit | InputAudioClear | OutputAudioClear
    | ItemCreate | ItemRetrieve | ItemDelete | ItemTruncate | ResponseCreate | ResponseCancel
)  # fmt: skip

_DECODER: msgspec.json.Decoder[ClientEvent] = msgspec.json.Decoder(ClientEvent)


class BadEvent(EventError):
    """An invalid event, with the id that the client gave it."""

    def __init__(
        self,
        message: str,
        code: str = "invalid_value",
        *,
        param: str | None = None,
        event_id: str | None = None,
    ):
        super().__init__(message, code, param=param)
        self.event_id = event_id


def parse_event(text: str | bytes | None) -> ClientEvent:
    """Parse an event; `None` stands for a binary message.

    Raises:
        BadEvent: It is not JSON, its type is unknown, or a key or value is invalid.
        TooLarge: It exceeds the size limit of its type.
    """
    if text is None:
        raise BadEvent("events are JSON text, not binary")
    if len(text) > MAX_MESSAGE_BYTES:
        raise TooLarge(f"the event is larger than {MAX_MESSAGE_BYTES} bytes")
    try:
        event = _DECODER.decode(text)
    except msgspec.ValidationError as error:
        message, param, code = describe(error)
        if param is None and "type" in message:
            param = "type"
        raise BadEvent(message, code, param=param, event_id=_event_id(text)) from error
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise BadEvent("the event is not valid JSON") from error
    if isinstance(event, InputAudioAppend) and len(event.audio) > MAX_APPEND_BYTES:
        raise TooLarge(f"audio is larger than {MAX_APPEND_BYTES} bytes", param="audio")
    return event


def _event_id(text: str | bytes) -> str | None:
    """Return the id of an event that is otherwise invalid."""

    class _Named(Struct):
        event_id: _EventId | None = None

    try:
        return msgspec.json.decode(text, type=_Named).event_id
    except (msgspec.DecodeError, RecursionError):
        return None
