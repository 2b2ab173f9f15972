"""The control protocol of supervisor and processes: JSON lines over a socket pair.

Each process has one end as its standard input. Settings, keys among them, go down there, where
`ps` does not show them; and when either side dies, the other reads the end of the stream.
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
from izwi_api.console import code_of
from izwi_api.runtime_options import RuntimeOptions
from izwi_api.serve.process_log import log_as_the_server
from izwi_api.settings import Settings

_READ_BYTES = 1 << 16
# Who works says so this often; who has not for long hangs.
BEAT_S = 1.0
M = TypeVar("M")


class EngineSpec(msgspec.Struct, tag=True, frozen=True):
    """What the engine's process is to do.

    Attributes:
        folder: Where sockets are made; removed at its end.
        address: Where it takes commands.
        models: Folders by the name under which they are served.
        record: File to append to, or None.
    """

    folder: Path
    address: str
    models: Mapping[str, Path]
    runtime: RuntimeOptions
    config: EngineConfig
    record: Path | None = None


class ApiServerSpec(msgspec.Struct, tag=True, frozen=True):
    """What an API-server process is to do.

    Attributes:
        name: Of the API server, never used again.
        folder: Where its own sockets are made.
        listen_sockets: Descriptors of sockets that listen.
        models: As in `EngineSpec`.
        drain_s: Seconds that what runs may go on for.
        sends_asks: Requests are sent with what they were prepared from.
        metrics: Folder in which API servers count together, or None.
        kept: File of earlier answers that they share, or None.
    """

    name: str
    folder: Path
    listen_sockets: tuple[int, ...]
    models: Mapping[str, Path]
    settings: Settings
    drain_s: float
    sends_asks: bool = False
    metrics: Path | None = None
    kept: Path | None = None


class EngineUp(msgspec.Struct, tag=True, frozen=True):
    """To API servers: an engine takes commands at this address."""

    address: str


class EngineGone(msgspec.Struct, tag=True, frozen=True):
    """To API servers: the engine died; its requests give nothing more."""


class ApiServerGone(msgspec.Struct, tag=True, frozen=True):
    """To the engine: an API server died; its requests are to be aborted."""

    name: str


class Ready(msgspec.Struct, tag=True, frozen=True):
    """From a process: it works."""


class Alive(msgspec.Struct, tag=True, frozen=True):
    """From a process, every `BEAT_S`: it still works."""


class Failed(msgspec.Struct, tag=True, frozen=True):
    """From a process: it cannot begin, and why, as the command line says it."""

    message: str
    code: int


Message = (
    EngineSpec | ApiServerSpec | EngineUp | EngineGone | ApiServerGone | Ready | Alive | Failed
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


class Control:
    """One end. Not thread-safe."""

    def __init__(self, stream: socket.socket):
        self._stream = stream
        self._rest = b""
        self._beat_s = 0.0  # when the last one was

    @classmethod
    def of_this_process(cls) -> Control:
        """The end that is this process's standard input, which nothing it starts shall have."""
        stream = socket.socket(fileno=os.dup(0))
        with Path(os.devnull).open("rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        return cls(stream)

    def fileno(self) -> int:
        """The descriptor, to wait for."""
        return self._stream.fileno()

    def send(self, message: Message) -> None:
        """Send a message; nothing if the other side is gone, which `receive` tells."""
        try:
            self._stream.sendall(_encoder.encode(message) + b"\n")
        except OSError:
            return

    def beat(self) -> None:
        """Say `Alive`, no more often than every `BEAT_S`; call it as often as you like.

        It never blocks: a supervisor that was stopped reads nothing.
        """
        now_s = time.monotonic()
        if now_s - self._beat_s < BEAT_S:
            return
        self._beat_s = now_s
        line = _encoder.encode(Alive()) + b"\n"
        with suppress(OSError):  # full: it has enough of these to read
            num_sent = self._stream.send(line, socket.MSG_DONTWAIT)
            self._stream.sendall(line[num_sent:])

    def receive(self) -> list[Message]:
        """Wait for bytes, and return the messages that are complete by then.

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
        """Say no more: the other side reads the end. What it says is still received."""
        with suppress(OSError):
            self._stream.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close this end."""
        self._stream.close()


@contextmanager
def child_process() -> Iterator[Control]:
    """Be a process of the supervisor's, which hears why if the block fails for a known reason."""
    log_as_the_server()
    control = Control.of_this_process()
    try:
        yield control
    except EOFError:
        return
    except (IzwiError, OSError) as error:
        control.send(Failed(str(error), code_of(error)))
        sys.exit(code_of(error))
