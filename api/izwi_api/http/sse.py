"""Server-sent events with JSON data, as OpenAI's clients read them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from fastapi.sse import format_sse_event

MEDIA_TYPE = "text/event-stream"
# The last event of a stream of chat completions.
DONE = format_sse_event(data_str="[DONE]")
_encoder = msgspec.json.Encoder()


def event(fields: Mapping[str, object]) -> bytes:
    """Return an event with an object as its data."""
    return format_sse_event(data_str=_encoder.encode(fields).decode())
