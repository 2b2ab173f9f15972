"""The control protocol of supervisor and processes: JSON lines over a socket pair.

Each process has one end as its standard input. Settings, including keys, are sent there, so that
`ps` does not show them. If either side dies, the other reads the end of the stream.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from izwi.config import EngineConfig
from izwi.errors import IzwiError
from izwi.ops.ranks import RankPlace
from izwi.router.breaker import CircuitEvent
from izwi_api.console import code_of
from izwi_api.environment import read_log
from izwi_api.runtime_options import RuntimeOptions
from izwi_api.serve.operator_socket import PassedOn
from izwi_api.serve.options import ReplicaOptions
from izwi_api.serve.process_log import log_as_the_server
from izwi_api.settings import Settings

_READ_BYTES = 1 << 16
# Seconds between heartbeats. A process without heartbeats for a long time has hung.
BEAT_S = 1.0
M = TypeVar("M")


class EngineSpec(msgspec.Struct, tag=True, frozen=True):
    """What the engine process runs.

    Attributes:
        folder: Where sockets are made; removed when the process ends.
        address: Where the engine receives commands; see `sockets.bind`.
        models: Folders by the name under which they are served.
        record: File to append to, or None.
        replica: The engine's number.
        publishes_prefixes: API servers choose among several engines by the prefixes they know.
        rank_devices: Devices of its ranks, if its models are split over several.
        spread: Its place among engines that use one GPU after the other, if no device was named.
        models_go: Models may be removed from it.
        num_beside: Models that other engines have on its device already, if its own was added
            while the server ran; it takes one share of the memory.
    """

    folder: Path
    address: str
    models: Mapping[str, Path]
    runtime: RuntimeOptions
    config: EngineConfig
    record: Path | None
    replica: int = 0
    publishes_prefixes: bool = False
    rank_devices: tuple[str, ...] = ()
    spread: int | None = None
    models_go: bool = False
    num_beside: int = 0


class RankSpec(msgspec.Struct, tag=True, frozen=True):
    """What another rank of an engine runs, as the engine process tells it.

    Attributes:
        place: Its place among the ranks.
        models: As in `EngineSpec`, in the same order.
        runtime: With its own device.
    """

    place: RankPlace
    models: Mapping[str, Path]
    runtime: RuntimeOptions
    config: EngineConfig


class ApiServerSpec(msgspec.Struct, tag=True, frozen=True):
    """What an API-server process runs.

    Attributes:
        name: The API server's name, never reused.
        folder: Where its own sockets are made.
        listen_sockets: Descriptors of the listening sockets.
        models: As in `EngineSpec`.
        drain_s: Seconds that requests in flight may take to finish.
        sends_asks: Requests are sent with the input that they were prepared from.
        metrics: Folder in which several API servers share their counts, or None.
        kept: File of earlier answers that they share, or None.
        replicas: The engines, and how requests are placed on them.
        runner: See `RuntimeOptions`.
    """

    name: str
    folder: Path
    listen_sockets: tuple[int, ...]
    models: Mapping[str, Path]
    settings: Settings
    drain_s: float
    sends_asks: bool
    metrics: Path | None
    kept: Path | None
    replicas: ReplicaOptions = ReplicaOptions()
    runner: str = "izwi"


class EngineUp(msgspec.Struct, tag=True, frozen=True):
    """To API servers: an engine receives commands at this address."""

    address: str
    replica: int = 0


class EngineGone(msgspec.Struct, tag=True, frozen=True):
    """To API servers: the engine died, and its requests get no more output.

    Attributes:
        for_good: No other one will take its place.
    """

    replica: int = 0
    for_good: bool = False


class EngineDraining(msgspec.Struct, tag=True, frozen=True):
    """To API servers: move the requests of an engine to the others, and send it no more.

    Attributes:
        is_hung: It has stopped responding.
    """

    replica: int
    is_hung: bool = False


class EngineAccepts(msgspec.Struct, tag=True, frozen=True):
    """To API servers: an engine that was draining may get requests again."""

    replica: int


class Restarted(msgspec.Struct, tag=True, frozen=True):
    """To API servers: how often processes were started again.

    Attributes:
        engines: Each engine that is not gone for good, by its number.
        api_servers: All API servers together.
    """

    engines: dict[int, int]
    api_servers: int


class Drained(msgspec.Struct, tag=True, frozen=True):
    """From an API server: `EngineDraining` was carried out."""

    replica: int


class CircuitChanged(msgspec.Struct, tag=True, frozen=True):
    """From an API server, and to all others: what has happened to a circuit of an engine."""

    replica: int
    model: str
    event: CircuitEvent


class Operate(msgspec.Struct, tag=True, frozen=True):
    """To an API server: carry out a command of an operator."""

    number: int
    command: PassedOn


class Operated(msgspec.Struct, tag=True, frozen=True):
    """From an API server: the command of that number has ended.

    Attributes:
        text: What was asked for.
        error: Why it was refused; empty if it was not.
    """

    number: int
    text: str = ""
    error: str = ""


class LoadModel(msgspec.Struct, tag=True, frozen=True):
    """From an API server: serve another model.

    Attributes:
        name: The name under which it will be served.
        folder: Its checkpoint, whose configuration the API server has read.
    """

    name: str
    folder: Path


class UnloadModel(msgspec.Struct, tag=True, frozen=True):
    """From an API server: serve a model no more."""

    name: str


class ModelChanged(msgspec.Struct, tag=True, frozen=True):
    """To an API server: the change of a model that it asked for has ended.

    Attributes:
        error: Why it failed; empty if it did not.
    """

    name: str
    error: str = ""


class ServeModel(msgspec.Struct, tag=True, frozen=True):
    """To API servers: a model is on these engines; accept requests for it."""

    name: str
    folder: Path
    replicas: tuple[int, ...]


class ForgetModel(msgspec.Struct, tag=True, frozen=True):
    """To API servers: accept no more requests for a model."""

    name: str


class ModelKnown(msgspec.Struct, tag=True, frozen=True):
    """From an API server: it serves a model, or serves it no more and runs none of its requests."""

    name: str


class RemoveModel(msgspec.Struct, tag=True, frozen=True):
    """To an engine: free the memory of a model, of which it gets no more requests."""

    name: str


class ModelRemoved(msgspec.Struct, tag=True, frozen=True):
    """From an engine: `RemoveModel` was carried out."""

    name: str


class ApiServerGone(msgspec.Struct, tag=True, frozen=True):
    """To the engine: an API server died; abort its requests."""

    name: str


class Ready(msgspec.Struct, tag=True, frozen=True):
    """From a process: it is ready.

    Attributes:
        address: Of an engine: where it receives commands.
    """

    address: str = ""


class Alive(msgspec.Struct, tag=True, frozen=True):
    """From a process, every `BEAT_S`: it still runs."""


class Failed(msgspec.Struct, tag=True, frozen=True):
    """From a process: it cannot start; the reason, and the exit code of the command line."""

    message: str
    code: int


Message = (
    EngineSpec
    | ApiServerSpec
    | EngineUp
    | EngineGone
    | EngineDraining
    | EngineAccepts
    | Drained
    | CircuitChanged
    | Operate
    | Operated
    | Restarted
    | LoadModel
    | UnloadModel
    | ModelChanged
    | ServeModel
    | ForgetModel
    | ModelKnown
    | RemoveModel
    | ModelRemoved
    | ApiServerGone
    | Ready
    | Alive
    | Failed
)


def _to_json(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(f"{type(value)} has no place in a message")


def _from_json(cls: type, value: Any) -> Any:
    if cls is Path:
        return Path(value)
    raise NotImplementedError(f"{cls} has no place in a message")


_encoder = msgspec.json.Encoder(enc_hook=_to_json)
_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message, dec_hook=_from_json)


def encode_rank(spec: RankSpec) -> bytes:
    """Encode the first message to another rank."""
    return _encoder.encode(spec)


def decode_rank(content: bytes) -> RankSpec:
    """Decode it."""
    return msgspec.json.decode(content, type=RankSpec, dec_hook=_from_json)


class Control:
    """One end of the connection. Not thread-safe."""

    def __init__(self, stream: socket.socket):
        self._stream = stream
        self._rest = b""
        self._beat_s = 0.0  # when the last heartbeat was sent

    @classmethod
    def of_this_process(cls) -> Control:
        """Return the end that is this process's standard input; its children do not inherit it."""
        stream = socket.socket(fileno=os.dup(0))
        with Path(os.devnull).open("rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        return cls(stream)

    def fileno(self) -> int:
        """Return the descriptor, to wait on."""
        return self._stream.fileno()

    def send(self, message: Message) -> None:
        """Send a message; do nothing if the other side is gone, which `receive` reports."""
        try:
            self._stream.sendall(_encoder.encode(message) + b"\n")
        except OSError:
            return

    def beat(self) -> None:
        """Send `Alive`, but at most once every `BEAT_S`; call it as often as you like.

        It never blocks, even if the supervisor is stopped and reads nothing.
        """
        now_s = time.monotonic()
        if now_s - self._beat_s < BEAT_S:
            return
        self._beat_s = now_s
        line = _encoder.encode(Alive()) + b"\n"
        with suppress(OSError):  # full: enough heartbeats are waiting to be read
            num_sent = self._stream.send(line, socket.MSG_DONTWAIT)
            self._stream.sendall(line[num_sent:])

    def receive(self) -> list[Message]:
        """Wait for bytes, and return the messages that are now complete.

        Raises:
            EOFError: The other side is gone.
        """
        try:
            came = self._stream.recv(_READ_BYTES)
        except ConnectionError:
            came = b""
        if not came:
            raise EOFError("the other side is gone")
        *lines, self._rest = (self._rest + came).split(b"\n")
        return [_decoder.decode(line) for line in lines]

    def first(self, kind: type[M]) -> M:
        """Wait for the first message. Raises EOFError."""
        while not (messages := self.receive()):
            continue
        (message,) = messages
        assert isinstance(message, kind)
        return message

    def finish(self) -> None:
        """Send nothing more; the other side reads the end. Messages are still received."""
        with suppress(OSError):
            self._stream.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close this end."""
        self._stream.close()


@contextmanager
def child_process() -> Iterator[Control]:
    """Run as a child of the supervisor; report a known error of the block to it."""
    log_as_the_server(read_log(os.environ))
    control = Control.of_this_process()
    try:
        yield control
    except EOFError:
        return
    except (IzwiError, OSError) as error:
        control.send(Failed(str(error), code_of(error)))
        sys.exit(code_of(error))
