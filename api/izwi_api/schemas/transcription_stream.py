"""What clients of the WebSocket /v1/audio/transcriptions/stream send beside sound."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from izwi.errors import InvalidRequest, TooLarge

# Of one message: seconds of sound, and a prompt.
MAX_BYTES = 1 << 20
_FIELD = re.compile(r"(?:missing required|unknown) field `([^`]*)`")


class _Message(Struct, forbid_unknown_fields=True, kw_only=True, tag_field="type"):
    """A message; its `type` says which."""


class SessionConfig(_Message, tag="session.config"):
    """How to transcribe from the next sound on.

    Attributes:
        model: "" for the first that transcribes while sound arrives.
        language: None detects it.
        prompt: Text before the sound, or words that are likely in it.
        sample_rate: Of the sound, in Hz: 16-bit PCM, mono, little-endian.
        chunk_s: Seconds of sound between two partial texts; None takes the model's own.
    """

    model: str = ""
    language: str | None = None
    prompt: Annotated[str, Meta(max_length=4096)] = ""
    sample_rate: Annotated[int, Meta(ge=8000, le=48_000)] = 16_000
    chunk_s: Annotated[float, Meta(ge=0.1, le=10.0)] | None = None


class InputDone(_Message, tag="input.done"):
    """This sound is complete; the session goes on with the next."""


class InputCancel(_Message, tag="input.cancel"):
    """Forget this sound."""


class SessionClose(_Message, tag="session.close"):
    """Write what was heard to its end, then close."""


ClientMessage = SessionConfig | InputDone | InputCancel | SessionClose


def parse_message(text: str) -> ClientMessage:
    """Read a message.

    Raises:
        InvalidRequest: It is not JSON, of no known type, or a key of it cannot be used.
        TooLarge: It is over `MAX_BYTES`.
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
