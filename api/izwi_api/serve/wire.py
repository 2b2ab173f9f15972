"""The protocol between API servers and the engine process.

`izwi.request.serialization` makes frames of a message. API servers send commands, the engine
sends the output of each step, one message per API server.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from izwi.checkpoints.registry import families
from izwi.errors import InvalidMessage
from izwi.request.log import Log
from izwi.request.request import Chunk, PromptT, Request
from izwi.request.serialization import Frame, decode, encode


class Hello(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """An API server has started and receives messages at an address."""

    address: str


class Submit(msgspec.Struct, Generic[PromptT], tag=True, array_like=True, frozen=True):
    """Submit requests, all or none.

    Attributes:
        logs: One for each request if the previous engine has begun them; else empty.
        prefills: Compute their prompts for another engine: `ComputedPages` is the response.
    """

    requests: list[Request[PromptT]]
    logs: list[Log] = []
    prefills: bool = False


class Abort(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """End a request."""

    request_id: str


class Pause(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Pause a request, or resume it."""

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


class WritePages(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Write pages that another engine has computed; `WrittenPages` is the response.

    Attributes:
        request_id: The request that they are for; it is sent later.
        path: Where they are; see `izwi_api.serve.shared_pages`.
    """

    request_id: str
    path: str


class FreePages(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Free the shared memory with the pages of a prompt."""

    request_id: str


# Commands about one request, which only the API server that sent it may give.
OF_ONE = (Abort, Pause, Backpressure, Write)
_OF_PAGES = (WritePages, FreePages)
Command = (
    Hello
    | Submit[Any]
    | Abort
    | Pause
    | Backpressure
    | Write
    | Acknowledge
    | WritePages
    | FreePages
)


CommandT = TypeVar("CommandT")


class Envelope(msgspec.Struct, Generic[CommandT], array_like=True, frozen=True):
    """A command and the API server that it comes from."""

    api_server: str
    command: CommandT


LoadFigures = dict[str, dict[str, float]]


class Welcome(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Sent to an API server when the engine has registered it."""

    max_backlog: int
    load: LoadFigures


class Chunks(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Output of one step."""

    chunks: list[Chunk]


class Figures(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """The engine's current figures."""

    load: LoadFigures


class Prefixes(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Page digests of the engine's known prefixes, by model; sent only if there is a router."""

    digests: dict[str, list[int]]


class ComputedPages(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """A prompt was computed for another engine.

    Attributes:
        request_id: The request that did it.
        path: Where its pages are until `FreePages`; empty if there are none.
    """

    request_id: str
    path: str


class WrittenPages(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """The pages for a request were written, as far as there was room."""

    request_id: str


EngineMessage = Welcome | Chunks | Figures | Prefixes | ComputedPages | WrittenPages


class _EngineEnvelope(msgspec.Struct, array_like=True, frozen=True):
    message: EngineMessage


class _AnySubmit(msgspec.Struct, tag="Submit", array_like=True, frozen=True):
    requests: list[Any]


class RequestCodec:
    """Encodes and decodes commands; knows the prompt types that requests may have.

    Args:
        prompts: Tagged structs of prompts; None stands for those of the installed families.

    Raises:
        TypeError: Two prompt types have the same tag, or one has none.
    """

    def __init__(self, prompts: Iterable[type[msgspec.Struct]] | None = None):
        if prompts is None:
            known = (family for same in families().values() for family in same)
            prompts = (prompt for family in known for prompt in family.prompts)
        # these types are known only at run time, so a type checker cannot know them
        union: Any = typing.Union
        submit: Any = Submit
        envelope: Any = Envelope
        prompt = union[tuple(dict.fromkeys(prompts))]
        self._cls = envelope[union[Hello, submit[prompt], *OF_ONE, Acknowledge, *_OF_PAGES]]
        msgspec.msgpack.Decoder(self._cls)  # raises if two prompt types cannot be told apart

    def submit(
        self,
        api_server: str,
        requests: Sequence[Request],
        logs: Sequence[Log] = (),
        *,
        with_ask: bool = False,
        prefills: bool = False,
    ) -> list[Frame]:
        """Encode a `Submit`.

        Args:
            api_server: The sender.
            requests: The requests.
            logs: One for each request if the previous engine has begun them.
            with_ask: Include the input that they were prepared from, for recordings.
            prefills: See `Submit`.
        """
        sent = [request if with_ask else replace(request, ask=None) for request in requests]
        return encode_command(api_server, Submit(sent, list(logs), prefills))

    def decode(self, frames: Sequence[Frame]) -> Envelope[Command]:
        """Decode a command. Raises InvalidMessage."""
        envelope: Envelope[Command] = decode(frames, self._cls)
        return envelope


def named_requests(frames: Sequence[Frame]) -> tuple[str, list[str]]:
    """Return the sender and the request ids of a `Submit` that cannot be decoded completely.

    Returns:
        An API server, and the ids that could be read; none if it is not a `Submit`.
    """
    try:
        envelope = decode(frames, Envelope[_AnySubmit])
    except InvalidMessage:
        return "", []
    requests = [request for request in envelope.command.requests if isinstance(request, dict)]
    named = [request.get("request_id") for request in requests]
    return envelope.api_server, [name for name in named if isinstance(name, str)]


def encode_command(api_server: str, command: Command) -> list[Frame]:
    """Encode a command."""
    return encode(Envelope(api_server, command))


def encode_engine_message(message: EngineMessage) -> list[Frame]:
    """Encode a message of the engine."""
    return encode(_EngineEnvelope(message))


def encode_chunks(chunks: Iterable[Chunk]) -> list[Frame]:
    """Encode the output of a step for one API server."""
    return encode_engine_message(Chunks(list(chunks)))


def decode_engine_message(frames: Sequence[Frame]) -> EngineMessage:
    """Decode a message of the engine. Raises InvalidMessage."""
    return decode(frames, _EngineEnvelope).message
