"""The protocol between API servers and the engine process.

A message is a list of frames: the first is msgpack, the others are large arrays. API servers send
commands, the engine sends the output of each step, one message per API server.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from izwi.inputs import SpeechInput
from izwi.log import Log
from izwi.registry import families
from izwi.request import Chunk, Reason, Request
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
    """An API server has started and receives messages at an address."""

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


class Backpressure(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Turn backpressure on or off for a request whose reader is behind."""

    request_id: str
    backpressured: bool


class Write(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Write text to a request with open input."""

    request_id: str
    text_ids: list[int]
    closed: bool


class Acknowledge(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Acknowledge messages with chunks received since the last acknowledgement."""

    num_messages: int


# Commands about one request, which only the API server that sent it may give.
OF_ONE = (Abort, Pause, Backpressure, Write)
Command = Hello | Submit | Abort | Pause | Backpressure | Write | Acknowledge


class Envelope(msgspec.Struct, array_like=True, frozen=True):
    """A command and the API server that it comes from."""

    api_server: str
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


LoadFigures = dict[str, dict[str, float]]


class Welcome(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Sent to an API server when the engine has registered it."""

    max_backlog: int
    load: LoadFigures


class Chunks(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Output of one step."""

    chunks: list[PackedChunk]


class Figures(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """The engine's current figures."""

    load: LoadFigures


EngineMessage = Welcome | Chunks | Figures

_encoder = msgspec.msgpack.Encoder()
_envelopes = msgspec.msgpack.Decoder(Envelope)
_engine_messages = msgspec.msgpack.Decoder(EngineMessage)


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
        api_server: str,
        requests: Sequence[Request],
        logs: Sequence[Log] = (),
        *,
        with_ask: bool = False,
    ) -> list[Frame]:
        """Encode a `Submit`.

        Args:
            api_server: Who asks.
            requests: To take in.
            logs: Where the last engine has begun them: one each.
            with_ask: Send what they were prepared from, for recordings.
        """
        frames: list[Frame] = [b""]
        packed = [pack(r if with_ask else _without_ask(r), frames) for r in requests]
        begun = [pack(log, frames) for log in logs]
        frames[0] = _encoder.encode(Envelope(api_server, Submit(packed, begun)))
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


def encode_command(api_server: str, command: Command) -> bytes:
    """Encode a command that has no arrays."""
    return _encoder.encode(Envelope(api_server, command))


def decode_command(frame: Frame) -> Envelope:
    """Decode the first frame of a command. Raises ValueError."""
    return _envelopes.decode(frame)


def encode_engine_message(message: Welcome | Figures) -> bytes:
    """Encode news that have no arrays."""
    return _encoder.encode(message)


def encode_chunks(chunks: Iterable[Chunk]) -> list[Frame]:
    """Encode chunks as one message."""
    frames: list[Frame] = [b""]
    frames[0] = _encoder.encode(Chunks([_pack_chunk(chunk, frames) for chunk in chunks]))
    return frames


def decode_engine_message(frame: Frame) -> EngineMessage:
    """Decode the first frame of news. Raises ValueError."""
    message: EngineMessage = _engine_messages.decode(frame)
    return message


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
