"""Commands of an operator on this machine, to the supervisor: list, drain, metrics, load, ...

They arrive at a Unix socket in a folder that only this user can access, named by the server's port.
One JSON line is a command, one JSON line the answer; then the connection closes.
"""

from __future__ import annotations

import errno
import logging
import os
import selectors
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from izwi.errors import EngineStopped, IzwiError
from izwi_api.schemas.warm_file import WarmFile

logger = logging.getLogger(__name__)

_MOST_BYTES = 1 << 20  # of a command
_READ_BYTES = 1 << 16
# Seconds that an operator may take to read the answer; the supervisor waits.
_ANSWER_S = 2.0
_MOST_CONNECTIONS = 16
# Seconds that a command may take: to drain, API servers have 10.
_PATIENCE_S = 30.0
# Where sockets are without a folder of the session; `_check_folder` refuses another user's.
_TEMPORARY = Path("/tmp")


class ListReplicas(msgspec.Struct, tag="list", frozen=True):
    """Describe the replicas."""


class DrainReplica(msgspec.Struct, tag="drain", frozen=True):
    """Move a replica's requests to the others, and send it no more until it is resumed."""

    replica: int


class ResumeReplica(msgspec.Struct, tag="resume", frozen=True):
    """Send requests to a drained replica again."""

    replica: int


class RestartReplicas(msgspec.Struct, tag="restart", frozen=True):
    """Replace the processes of replicas, one after the other; of all if none is named."""

    replicas: tuple[int, ...] = ()


class ReadMetrics(msgspec.Struct, tag="metrics", frozen=True):
    """Return the server's metrics as Prometheus' text."""


class WarmReplicas(msgspec.Struct, tag="warm", frozen=True):
    """Compute what requests will share, on all replicas or on one."""

    wanted: WarmFile
    replica: int | None = None


class LoadServed(msgspec.Struct, tag="load", frozen=True):
    """Serve another model, if the server has --manage-models."""

    name: str


class UnloadServed(msgspec.Struct, tag="unload", frozen=True):
    """Serve a model no more, likewise."""

    name: str


# What the supervisor passes on to an API server.
PassedOn = ReadMetrics | WarmReplicas | LoadServed | UnloadServed
OperatorCommand = ListReplicas | DrainReplica | ResumeReplica | RestartReplicas | PassedOn


class ReplicaInfo(msgspec.Struct, frozen=True):
    """One replica, as the supervisor sees it.

    Attributes:
        replica: Its number.
        device: As `izwi serve` was told.
        status: "ready", "starting", "draining", "drained", "unresponsive", "restarting", or
            "failed" while it waits for its next start.
        pid: Its process, or None.
        ready_s: Seconds for which it has been ready, or None.
        num_starts: Processes so far.
        reason: Why the last process ended by itself; empty if the present one is ready.
        circuits: Models that keep failing there, as `ReplicaReport.circuits`.
    """

    replica: int
    device: str
    status: str
    pid: int | None
    ready_s: float | None
    num_starts: int
    reason: str
    circuits: dict[str, str] = {}


class Report(msgspec.Struct, frozen=True):
    """The answer to a command: all replicas, what was asked for, and why it was refused, if it was.

    Attributes:
        text: Of commands that an API server carries out.
    """

    replicas: list[ReplicaInfo]
    error: str = ""
    text: str = ""


_commands: msgspec.json.Decoder[OperatorCommand] = msgspec.json.Decoder(OperatorCommand)
_reports = msgspec.json.Decoder(Report)
_encoder = msgspec.json.Encoder()


class Operator:
    """One connection, and the command that came on it."""

    def __init__(self, stream: socket.socket, forget: Callable[[], None]):
        self._stream, self._forget = stream, forget
        self._received = b""
        self.command: OperatorCommand = ListReplicas()

    def read(self) -> bool:
        """Read what has arrived; return whether a command is complete. Closes bad connections."""
        try:
            received = self._stream.recv(_READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            received = b""
        self._received += received
        line, ended, _ = self._received.partition(b"\n")
        if not ended:
            if not received or len(line) >= _MOST_BYTES:
                self.close()
            return False
        self._forget()  # nothing more is read
        try:
            self.command = _commands.decode(line)
        except msgspec.MsgspecError as error:
            self.answer(Report([], f"invalid command: {error}"))
            return False
        return True

    def answer(self, report: Report) -> None:
        """Send the answer, and close."""
        with suppress(OSError):
            self._stream.settimeout(_ANSWER_S)  # metrics may be more than the socket holds
            self._stream.sendall(_encoder.encode(report) + b"\n")
        self.close()

    def close(self) -> None:
        """Close the connection; a second call does nothing."""
        self._forget()
        self._stream.close()


class OperatorSocket:
    """The supervisor's end.

    Args:
        listener: A listening Unix socket.
        selector: Waits for commands; the data of its keys are functions to call.
        carry_out: Called with each complete command; it must answer, now or later.
    """

    def __init__(
        self,
        listener: socket.socket,
        selector: selectors.BaseSelector,
        carry_out: Callable[[Operator], None],
    ):
        self._listener, self._selector, self._carry_out = listener, selector, carry_out
        self._streams: set[socket.socket] = set()
        listener.setblocking(False)
        selector.register(listener, selectors.EVENT_READ, self._accept)

    @classmethod
    @contextmanager
    def open(
        cls, port: int, selector: selectors.BaseSelector, carry_out: Callable[[Operator], None]
    ) -> Iterator[None]:
        """Listen for commands to the server of a port; without a place for it, log that."""
        path = socket_path(port)
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            _check_folder(path.parent)
            path.unlink(missing_ok=True)  # left by a server that was killed: the port is ours now
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.bind(str(path))
            listener.listen(_MOST_CONNECTIONS)
        except OSError as error:
            logger.warning("`izwi replicas` and `izwi ctl` cannot reach this server: %s", error)
            yield
            return
        ours = cls(listener, selector, carry_out)
        try:
            yield
        finally:
            ours._close()
            path.unlink(missing_ok=True)

    def _accept(self) -> None:
        with suppress(OSError):
            stream, _ = self._listener.accept()
            if len(self._streams) >= _MOST_CONNECTIONS:
                stream.close()
                return
            stream.setblocking(False)
            self._streams.add(stream)
            operator = Operator(stream, lambda: self._forget(stream))
            self._selector.register(stream, selectors.EVENT_READ, lambda: self._read(operator))

    def _read(self, operator: Operator) -> None:
        if operator.read():
            self._carry_out(operator)

    def _forget(self, stream: socket.socket) -> None:
        if stream in self._streams:
            self._streams.discard(stream)
            self._selector.unregister(stream)

    def _close(self) -> None:
        self._selector.unregister(self._listener)
        self._listener.close()
        for stream in list(self._streams):
            self._forget(stream)
            stream.close()


def socket_path(port: int) -> Path:
    """Return the path of the socket of the server at a port; the same for server and operator."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    # not the folder of TMPDIR, which the two may have set differently
    folder = Path(runtime) / "izwi" if runtime else _TEMPORARY / _own_name()
    return folder / f"serve-{port}.sock"


def _own_name() -> str:
    return f"izwi-{os.getuid()}"


def _check_folder(folder: Path) -> None:
    """Refuse a folder that others could have made. Raises OSError."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(errno.EACCES, "others can access it", str(folder))


def ask_supervisor(port: int, command: OperatorCommand, patience_s: float = _PATIENCE_S) -> Report:
    """Send a command to the supervisor of the server at a port, and wait for the answer.

    Raises:
        EngineStopped: No server with an operator socket runs at the port as this user.
        IzwiError: The command was refused.
    """
    received = b""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
            stream.settimeout(patience_s)
            stream.connect(str(socket_path(port)))
            stream.sendall(_encoder.encode(command) + b"\n")
            while not received.endswith(b"\n") and (piece := stream.recv(1 << 16)):
                received += piece
        report = _reports.decode(received)
    except (OSError, msgspec.MsgspecError) as error:
        raise EngineStopped(
            f"no server with several replicas answers for port {port} on this machine; start one "
            "with `izwi serve --replicas N` or --ctl, or name its port with --port"
        ) from error
    if report.error:
        raise IzwiError(report.error)
    return report
