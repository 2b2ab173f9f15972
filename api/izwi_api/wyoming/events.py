"""Events of the Wyoming protocol on a TCP connection.

An event is a line of JSON with its type, then its data as more JSON, then bytes. The protocol is
described at https://github.com/OHF-Voice/wyoming.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from izwi.errors import InvalidMessage

# What clients send: text, settings and pieces of audio. A line has at most 64 KiB, asyncio's limit.
_MAX_DATA_BYTES, _MAX_PAYLOAD_BYTES = 1 << 20, 1 << 20


@dataclass(frozen=True, slots=True)
class Event:
    """One event.

    Attributes:
        type: Its type, such as "audio-chunk".
        data: Its fields.
        payload: Its bytes, such as samples.
    """

    type: str
    data: Mapping[str, Any] = field(default_factory=dict)
    payload: bytes = b""

    def text(self, name: str) -> str:
        """Return a field that is text; "" if it is missing. Raises InvalidMessage."""
        value = self.data.get(name) or ""
        if not isinstance(value, str):
            raise InvalidMessage(f"{name} of {self.type!r} must be text")
        return value


async def read_event(reader: asyncio.StreamReader) -> Event | None:
    """Read an event; None at the end of the stream. Raises InvalidMessage."""
    try:
        line = await reader.readline()
        if not line:
            return None
        head = _object(line)
        data = head.get("data") or {}
        if size := _size(head, "data_length", _MAX_DATA_BYTES):
            data = {**data, **_object(await reader.readexactly(size))}
        payload = b""
        if size := _size(head, "payload_length", _MAX_PAYLOAD_BYTES):
            payload = await reader.readexactly(size)
    except asyncio.IncompleteReadError:
        return None
    except ValueError as error:  # also a line that is too long
        raise InvalidMessage("an event must be a line of JSON, with data and bytes") from error
    return Event(str(head.get("type")), data, payload)


async def write_event(writer: asyncio.StreamWriter, event: Event) -> None:
    """Write an event; wait while the other side reads nothing. Raises OSError."""
    data = json.dumps(event.data, ensure_ascii=False).encode() if event.data else b""
    head: dict[str, Any] = {"type": event.type}
    if data:
        head["data_length"] = len(data)
    if event.payload:
        head["payload_length"] = len(event.payload)
    writer.write(json.dumps(head).encode() + b"\n" + data + event.payload)
    await writer.drain()


def _object(text: bytes) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


def _size(head: Mapping[str, Any], name: str, most: int) -> int:
    size = head.get(name) or 0
    if not isinstance(size, int) or not 0 <= size <= most:
        raise ValueError(f"{name} is not from 0 to {most}")
    return size
