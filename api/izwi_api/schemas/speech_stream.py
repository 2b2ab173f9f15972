"""Client messages of the WebSocket /v1/audio/speech/stream, and splitting of their text.

The names are those of vLLM-Omni's endpoint; `input.cancel` and `audio_encoding` are ours.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Literal

from pydantic import BaseModel, ConfigDict

from izwi.errors import InvalidRequest, TooLarge
from izwi_api.schemas.json_text import check_unicode, refuse_constant
from izwi_api.schemas.speech import OnlyTrue, SpeechBody
from izwi_api.sessions.errors import POLICY
from izwi_api.sessions.limits import SessionLimits
from izwi_api.settings import Settings

Granularity = Literal["none", "sentence", "clause"]


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """Limits of one session.

    Attributes:
        config_bytes: Size of a `session.config`, which may contain a reference clip.
        message_bytes: Size of any other message.
        utterance_chars: Characters between two `input.done`.
        pending_chars: Characters not spoken yet; above this, no message is read (backpressure).
        pending_utterances: The same for utterances.
        config_s: Seconds within which a session must be configured.
        idle_s: Seconds without traffic in either direction after which a session is closed.
        text_s: Seconds after which it is closed if an utterance is open, no text except white
            space has arrived and the client has read no audio.
        total_s: Maximum duration of a session, in seconds.
        bad_messages: Number of consecutive invalid messages that ends the session.
    """

    config_bytes: int = 4 << 20
    message_bytes: int = 128 << 10
    utterance_chars: int = 1 << 20
    pending_chars: int = 1 << 18
    pending_utterances: int = 64
    config_s: float = 10.0
    idle_s: float = 30.0
    text_s: float = 30.0
    total_s: float = 86_400.0
    bad_messages: int = 100

    @property
    def of_session(self) -> SessionLimits:
        """Return the limits that every live session has."""
        return SessionLimits(
            total_s=self.total_s,
            idle_s=self.idle_s,
            idle_code=POLICY,
            unread_s=self.idle_s,
            bad_messages=self.bad_messages,
        )

    def under(self, settings: Settings) -> StreamLimits:
        """Return these limits with the server's settings applied."""
        num_chars = settings.stream_utterance_chars or self.utterance_chars
        return replace(self, text_s=settings.stream_text_s, utterance_chars=num_chars)


class Message(BaseModel):
    """A message, tagged by its `type`. An unknown key is an error."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class SessionConfig(SpeechBody):
    """Settings from the next utterance on: the keys of a speech request without its text.

    Attributes:
        model: "" selects the first speech model.
        input: Unused; text arrives in its own messages.
        stream_audio: Send audio while it is generated; otherwise each file is one message.
        audio_encoding: Binary messages, or base64 within JSON.
        split_granularity: What becomes one file: an utterance, or each of its sentences or clauses.
        word_timestamps: Send the times of words, in `audio.chunk`.
    """

    type: Literal["session.config"]
    model: str = ""
    input: Literal[""] = ""
    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] = "pcm"
    stream_format: Literal["audio"] = "audio"
    stream: OnlyTrue | None = None
    stream_audio: bool = True
    audio_encoding: Literal["binary", "base64"] = "binary"
    split_granularity: Granularity = "none"


class InputText(Message):
    """The next piece of the text, split anywhere."""

    type: Literal["input.text"]
    text: str


class InputDone(Message):
    """The text of this utterance is complete; the session continues."""

    type: Literal["input.done"]


class InputCancel(Message):
    """Stop speaking and drop the pending text."""

    type: Literal["input.cancel"]


class SessionClose(Message):
    """Finish speaking the pending text, then close."""

    type: Literal["session.close"]


ClientMessage = SessionConfig | InputText | InputDone | InputCancel | SessionClose
_MESSAGES: dict[object, type[ClientMessage]] = {
    "session.config": SessionConfig,
    "input.text": InputText,
    "input.done": InputDone,
    "input.cancel": InputCancel,
    "session.close": SessionClose,
}


def parse_message(text: str | None, limits: StreamLimits) -> ClientMessage:
    """Parse a message; `None` stands for a binary message.

    Raises:
        InvalidRequest: It is not JSON, not an object, or its type is unknown.
        TooLarge: It exceeds the size limit of its type.
        ValidationError: One of its keys is invalid.
    """
    if text is None:
        raise InvalidRequest("messages are JSON text, not binary")
    size = len(text.encode())
    if size > limits.config_bytes:
        raise TooLarge(f"the message is larger than {limits.config_bytes} bytes")
    try:
        value = json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest("the message is not valid JSON") from error
    if not isinstance(value, dict):
        raise InvalidRequest("a message must be a JSON object")
    kind = value.get("type")
    if not isinstance(kind, str) or kind not in _MESSAGES:
        known = ", ".join(str(name) for name in _MESSAGES)
        raise InvalidRequest(f"type must be one of {known}", param="type")
    if kind != "session.config" and size > limits.message_bytes:
        raise TooLarge(f"the message is larger than {limits.message_bytes} bytes", param="text")
    if "\\u" in text:  # a client may split its text within a character
        check_unicode(value)
    given = {key: item for key, item in value.items() if item is not None}
    return _MESSAGES[kind].model_validate(given)


# Punctuation ends a unit if white space follows, so that 3.5 and 10:30 stay whole. Chinese and
# Japanese punctuation, and a newline, always end one.
_ENDS = {
    "sentence": re.compile(r"[.!?]+[\"'”’)\]]*(?=\s)|[。！？]+[”’」』）]*|\n+"),
    "clause": re.compile(r"[.!?,;:]+[\"'”’)\]]*(?=\s)|[。！？，；：、]+[”’」』）]*|\n+"),
}


def unit_end(text: str, granularity: Granularity, max_chars: int) -> int:
    """Return the end of the first unit of a growing text, or 0 if it is not known yet.

    Args:
        text: The text so far.
        granularity: "sentence" or "clause".
        max_chars: A longer unit is split, between words if possible.
    """
    for match in _ENDS[granularity].finditer(text, 0, max_chars):
        if has_word(text[: match.end()]):
            return match.end()
    if len(text) <= max_chars:
        return 0
    return text.rfind(" ", 1, max_chars) + 1 or max_chars


def has_word(text: str) -> bool:
    """Return whether a text contains a letter or a digit."""
    return any(map(str.isalnum, text))
