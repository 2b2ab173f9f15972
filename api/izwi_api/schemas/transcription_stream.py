"""Client messages of the WebSocket /v1/audio/transcriptions/stream, except audio."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from izwi.errors import InvalidRequest, TooLarge
from izwi_api.schemas.known_speakers import (
    KnownNames,
    KnownReferences,
    SpeakerSetting,
    asked_speakers,
)

# Maximum size of one message: seconds of audio, and a prompt.
MAX_BYTES = 1 << 20
_FIELD = re.compile(r"(?:missing required|unknown) field `([^`]*)`")


class _Message(Struct, forbid_unknown_fields=True, kw_only=True, tag_field="type"):
    """A message, tagged by its `type`."""


class SessionConfig(_Message, tag="session.config"):
    """Settings from the next input on.

    Attributes:
        model: "" selects the first model with live transcription.
        language: The spoken language; None detects it.
        prompt: Preceding text, or words to expect.
        sample_rate: Sample rate of the audio in Hz; it is 16-bit PCM, mono, little-endian.
        chunk_s: Seconds of audio between two partial transcripts; None selects the model's default.
        speakers: Segments say who speaks; the fields after it are those of a file.
    """

    model: str = ""
    language: str | None = None
    prompt: Annotated[str, Meta(max_length=4096)] = ""
    sample_rate: Annotated[int, Meta(ge=8000, le=48_000)] = 16_000
    chunk_s: Annotated[float, Meta(ge=0.1, le=10.0)] | None = None
    speakers: bool = False
    speaker_threshold: Annotated[float, Meta(ge=-1.0, le=1.0)] | None = None
    known_speaker_names: KnownNames = []
    known_speaker_references: KnownReferences = []

    @property
    def speaker_setting(self) -> SpeakerSetting | None:
        """Return how speakers are told apart, or None. Raises InvalidRequest."""
        setting = SpeakerSetting(
            self.known_speaker_names, self.known_speaker_references, self.speaker_threshold
        )
        return asked_speakers(is_asked=self.speakers, setting=setting)


class InputDone(_Message, tag="input.done"):
    """This input is complete; the session continues with the next one."""


class InputCancel(_Message, tag="input.cancel"):
    """Discard this input."""


class SessionClose(_Message, tag="session.close"):
    """Finish the transcript, then close."""


ClientMessage = SessionConfig | InputDone | InputCancel | SessionClose


def parse_message(text: str) -> ClientMessage:
    """Parse a message.

    Raises:
        InvalidRequest: It is not JSON, its type is unknown, or one of its keys is invalid.
        TooLarge: It is larger than `MAX_BYTES`.
    """
    if len(text) > MAX_BYTES:
        raise TooLarge(f"the message is larger than {MAX_BYTES} bytes")
    try:
        message: ClientMessage = msgspec.json.decode(text, type=ClientMessage)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at `$.")
        found = _FIELD.search(problem)
        param = found[1][:64] if found else place.rstrip("`")
        raise InvalidRequest(problem, param=param) from error
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as error:
        raise InvalidRequest("the message is not valid JSON") from error
    return message
