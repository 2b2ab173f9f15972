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


def event(fields: Mapping[str, object], name: str | None = None) -> bytes:
    """Return an event with an object as its data.

    Args:
        fields: The object.
        name: Of the event; without it, clients call it `message`.
    """
    return format_sse_event(data_str=_encoder.encode(fields).decode(), event=name)


def comment(text: str) -> bytes:
    """Return a line that clients skip. It shows them, and proxies, that the stream goes on."""
    return format_sse_event(comment=text)


def obfuscated_event(fields: Mapping[str, object], name: str | None = None) -> bytes:
    """Return an event like `event`, with random characters that hide the size of its text.

    They are in the last key, `obfuscation`, and make the JSON a multiple of `OBFUSCATED_BYTES`
    long.
    """
    data = _encoder.encode({**fields, "obfuscation": ""})
    filler = "".join(secrets.choice(_CHARACTERS) for _ in range(-len(data) % OBFUSCATED_BYTES))
    end = '"}'
    return format_sse_event(data_str=data.decode().removesuffix(end) + filler + end, event=name)
