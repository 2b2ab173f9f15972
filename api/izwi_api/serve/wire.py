"""What a door and the engine's process say to each other.

A message is a list of frames: the first is msgpack, the others are large arrays. Doors send
commands, and the engine sends news; what one step gave for the requests of a door is one message.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from izwi.log import Log
from izwi.registry import families
from izwi.request import Chunk, Reason, Request, SpeechInput
from izwi_api.serve.packing import (
    Frame,
    PackedArray,
    PackedError,
    Unpacker,
    pack,
    pack_array,
    pack_error,
    unpack_array,
    unpack_error,
)


class Hello(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """A door is there, and hears news at an address."""

    address: str


class Submit(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Take requests in, all or none.

    Attributes:
        logs: Where the last engine has begun them: a `Log` each; else none.
    """

    requests: list[Any]
    logs: list[Any] = []


class Abort(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """End a request."""

    request_id: str


class Pause(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Stop a request where it is, or let it go on."""

    request_id: str
    paused: bool


class Hold(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Stop or go on emitting for a request whose reader is behind."""

    request_id: str
    held: bool


class Write(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Write text to a request with open input."""

    request_id: str
    text_ids: list[int]
    closed: bool


class Heard(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """So many messages with chunks have come since the last time that this was said."""

    num_messages: int


Command = Hello | Submit | Abort | Pause | Hold | Write | Heard


class Envelope(msgspec.Struct, array_like=True, frozen=True):
    """A command and the door that it comes from."""

    door: str
    command: Command


class PackedChunk(msgspec.Struct, array_like=True, frozen=True):
    """A `Chunk`."""

    request_id: str
    entries: PackedArray
    pcm: PackedArray | None
    encoded: list[PackedArray]
    reason: Reason | None
    error: PackedError | None
    logprobs: PackedArray | None


Load = dict[str, dict[str, float]]


class Welcome(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """The engine knows the door."""

    max_backlog: int
    load: Load


class Told(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """What a step gave."""

    chunks: list[PackedChunk]


class Figures(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """What the engine counts, as it is now."""

    load: Load


News = Welcome | Told | Figures

_encoder = msgspec.msgpack.Encoder()
_envelopes = msgspec.msgpack.Decoder(Envelope)
_news = msgspec.msgpack.Decoder(News)


class RequestCodec:
    """Requests as they cross.

    Args:
        prompts: Dataclasses of prompts; None: those of the installed families.
    """

    def __init__(self, prompts: Iterable[type] | None = None):
        if prompts is None:
            known = (family for same in families().values() for family in same)
            prompts = (prompt for family in known for prompt in family.prompts)
        self._unpacker = Unpacker([Request, Log, *dict.fromkeys(prompts)])

    def submit(
        self,
        door: str,
        requests: Sequence[Request],
        logs: Sequence[Log] = (),
        *,
        with_ask: bool = False,
    ) -> list[Frame]:
        """Encode a `Submit`.

        Args:
            door: Who asks.
            requests: To take in.
            logs: Where the last engine has begun them: one each.
            with_ask: Send what they were prepared from, for traces.
        """
        frames: list[Frame] = [b""]
        packed = [pack(r if with_ask else _without_ask(r), frames) for r in requests]
        begun = [pack(log, frames) for log in logs]
        frames[0] = _encoder.encode(Envelope(door, Submit(packed, begun)))
        return frames

    def requests(self, command: Submit, frames: Sequence[Frame]) -> list[Request]:
        """Return the requests of a `Submit`. Raises ValueError where they are none."""
        return [self._unpacker.unpack(packed, frames) for packed in command.requests]

    def logs(self, command: Submit, frames: Sequence[Frame]) -> list[Log]:
        """Return the logs of a `Submit`. Raises ValueError where they are none."""
        return [self._unpacker.unpack(packed, frames) for packed in command.logs]


def named_ids(command: Submit) -> list[str]:
    """Ids of a `Submit`'s requests, whatever else is wrong with them."""
    named = (packed[1] for packed in command.requests if isinstance(packed, list) and packed[1:])
    return [request_id for request_id in named if isinstance(request_id, str)]


def encode_command(door: str, command: Command) -> bytes:
    """Encode a command that has no arrays."""
    return _encoder.encode(Envelope(door, command))


def decode_command(frame: Frame) -> Envelope:
    """Decode the first frame of a command. Raises ValueError."""
    return _envelopes.decode(frame)


def encode_news(news: Welcome | Figures) -> bytes:
    """Encode news that have no arrays."""
    return _encoder.encode(news)


def encode_chunks(chunks: Iterable[Chunk]) -> list[Frame]:
    """Encode chunks as one message."""
    frames: list[Frame] = [b""]
    frames[0] = _encoder.encode(Told([_pack_chunk(chunk, frames) for chunk in chunks]))
    return frames


def decode_news(frame: Frame) -> News:
    """Decode the first frame of news. Raises ValueError."""
    news: News = _news.decode(frame)
    return news


def unpack_chunk(packed: PackedChunk, frames: Sequence[Frame]) -> Chunk:
    """Return a chunk of a message. Raises ValueError where an array is broken."""
    return Chunk(
        packed.request_id,
        unpack_array(packed.entries, frames),
        None if packed.pcm is None else unpack_array(packed.pcm, frames),
        tuple(unpack_array(array, frames) for array in packed.encoded),
        packed.reason,
        None if packed.error is None else unpack_error(packed.error),
        None if packed.logprobs is None else unpack_array(packed.logprobs, frames),
    )


def _pack_chunk(chunk: Chunk, frames: list[Frame]) -> PackedChunk:
    return PackedChunk(
        chunk.request_id,
        pack_array(chunk.entries, frames),
        None if chunk.pcm is None else pack_array(chunk.pcm, frames),
        [pack_array(array, frames) for array in chunk.encoded],
        chunk.reason,
        None if chunk.error is None else pack_error(chunk.error),
        None if chunk.logprobs is None else pack_array(chunk.logprobs, frames),
    )


def _without_ask(request: Request) -> Request:
    """Leave out what the engine does not look at: the clip and the text again.

    Where text is still written, the model works out the last frame by the limits that were asked.
    """
    ask = request.ask
    if request.open_input and isinstance(ask, SpeechInput):
        return replace(request, ask=replace(ask, voice=None))
    return replace(request, ask=None)
