"""Server-sent events with JSON data, as OpenAI's clients read them."""

from __future__ import annotations

import secrets
import string
from collections.abc import Mapping

import msgspec
from fastapi.sse import format_sse_event

MEDIA_TYPE = "text/event-stream"
# The last event of a stream of chat completions.
DONE = format_sse_event(data_str="[DONE]")
_encoder = msgspec.json.Encoder()
# The JSON of an obfuscated event has a multiple of this size.
OBFUSCATED_BYTES = 256
_CHARACTERS = string.ascii_letters + string.digits


def event(fields: Mapping[str, object]) -> bytes:
    """Return an event with an object as its data."""
    return format_sse_event(data_str=_encoder.encode(fields).decode())


def obfuscated_event(fields: Mapping[str, object]) -> bytes:
    """Return an event like `event`, with random characters that hide the size of its text.

    They are in the key `obfuscation`, and make the JSON a multiple of `OBFUSCATED_BYTES` long.
    """
    size = len(_encoder.encode({**fields, "obfuscation": ""}))
    return event({**fields, "obfuscation": obfuscation(size)})


def obfuscation(size: int) -> str:
    """Return the random characters that fill up an event whose JSON has so many bytes."""
    return "".join(secrets.choice(_CHARACTERS) for _ in range(-size % OBFUSCATED_BYTES))
