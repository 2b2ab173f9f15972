"""Events that a Realtime client sends: strict, one type each.

The names and keys are those of OpenAI's Realtime API (GA); `tests/realtime/test_protocol.py`
compares them with the types of the openai package.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from izwi.errors import InvalidRequest, TooLarge
from izwi_api.realtime.errors import describe

MAX_APPEND_BYTES = 15 << 20
MAX_MESSAGE_BYTES = 24 << 20  # base64 of it, and the rest of the message
_EventId = Annotated[str, Meta(max_length=512)]


class _Event(Struct, forbid_unknown_fields=True, kw_only=True, tag_field="type"):
    event_id: _EventId | None = None


class SessionUpdate(_Event, tag="session.update"):
    """Change the settings that are given."""

    session: dict[str, Any]


class InputAudioAppend(_Event, tag="input_audio_buffer.append"):
    """Add sound to the input buffer."""

    audio: bytes  # base64 in JSON


class InputAudioCommit(_Event, tag="input_audio_buffer.commit"):
    """Make an item of the input buffer."""


class InputAudioClear(_Event, tag="input_audio_buffer.clear"):
    """Drop what is in the input buffer."""


class OutputAudioClear(_Event, tag="output_audio_buffer.clear"):
    """Drop sound that was sent and not played; for WebRTC."""


class ItemCreate(_Event, tag="conversation.item.create"):
    """Put an item behind another one; at the beginning behind "root", at the end behind None."""

    item: dict[str, Any]
    previous_item_id: str | None = None


class ItemRetrieve(_Event, tag="conversation.item.retrieve"):
    """Ask for an item, with its sound."""

    item_id: str


class ItemDelete(_Event, tag="conversation.item.delete"):
    """Take an item out of the conversation."""

    item_id: str


class ItemTruncate(_Event, tag="conversation.item.truncate"):
    """Cut an answer to what was played of it."""

    item_id: str
    content_index: int
    audio_end_ms: int


class ResponseOptions(Struct, forbid_unknown_fields=True, kw_only=True):
    """Settings of one response; UNSET and None take those of the session."""

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
    """Ask for a response."""

    response: ResponseOptions | None = None


class ResponseCancel(_Event, tag="response.cancel"):
    """Stop the response in progress."""

    response_id: str | None = None


ClientEvent = (
    SessionUpdate | InputAudioAppend | InputAudioCommit | InputAudioClear | OutputAudioClear
    | ItemCreate | ItemRetrieve | ItemDelete | ItemTruncate | ResponseCreate | ResponseCancel
)  # fmt: skip

_DECODER: msgspec.json.Decoder[ClientEvent] = msgspec.json.Decoder(ClientEvent)


class BadEvent(InvalidRequest):
    """An event that cannot be used, with the id that its client gave it."""

    def __init__(self, message: str, *, param: str | None = None, event_id: str | None = None):
        super().__init__(message, param=param)
        self.event_id = event_id


def parse_event(text: str | bytes | None) -> ClientEvent:
    """Read an event; None stands for a message that was not text.

    Raises:
        BadEvent: It is not JSON, of no known type, or has a key or value that cannot be used.
        TooLarge: It is over the limit of its type.
    """
    if text is None:
        raise BadEvent("events are JSON text, not binary")
    if len(text) > MAX_MESSAGE_BYTES:
        raise TooLarge(f"the event is larger than {MAX_MESSAGE_BYTES} bytes")
    try:
        event = _DECODER.decode(text)
    except msgspec.ValidationError as error:
        message, param = describe(error)
        if param is None and "type" in message:
            param = "type"
        raise BadEvent(message, param=param, event_id=_event_id(text)) from error
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise BadEvent("the event is not valid JSON") from error
    if isinstance(event, InputAudioAppend) and len(event.audio) > MAX_APPEND_BYTES:
        raise TooLarge(f"audio is larger than {MAX_APPEND_BYTES} bytes", param="audio")
    return event


def _event_id(text: str | bytes) -> str | None:
    """The id of an event that has a fault elsewhere."""

    class _Named(Struct):
        event_id: _EventId | None = None

    try:
        return msgspec.json.decode(text, type=_Named).event_id
    except (msgspec.DecodeError, RecursionError):
        return None
