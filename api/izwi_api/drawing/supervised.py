"""Start the process that draws at the first job, and again at the next one after it has ended."""

from __future__ import annotations

import logging
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path

import msgspec

from izwi.errors import EngineStopped
from izwi_api.drawing.jobs import encode_frame, refusal_of
from izwi_api.drawing.options import PipelineOptions

logger = logging.getLogger(__name__)

# The sign of life of a process that waits for jobs; any other is of one that runs a job.
IDLE = b"I"
PROGRAM = (sys.executable, "-P", "-m", "izwi_api.drawing.process")
_SOCKET = "drawing"
# Paths of sockets may have 104 bytes on macOS.
_MAX_FOLDER_CHARS = 70
_BACKLOG = 128
_GRACE_S = 5.0


class _Woken(Enum):
    """What ended a wait."""

    READY, STOPPED, SILENT = range(3)


class SupervisedProcess:
    """A thread that owns a listening socket, and the process that accepts from it.

    Args:
        listener: Listens; a job is a connection.
        command: (descriptor of the listener) -> how the process is started. Its standard input is a
            socket, to which it writes the signs of life of `izwi_api.drawing.process`, and at whose
            end it ends.
        hung_after_s: Seconds without a sign, while it starts or is busy, after which it is killed.
    """

    def __init__(
        self,
        listener: socket.socket,
        command: Callable[[int], Sequence[str]],
        hung_after_s: float | None = None,
    ):
        self._listener, self._command = listener, command
        self._hung_after_s = hung_after_s
        self._ours, self._theirs = socket.socketpair()  # closed to wake the thread
        self._thread = threading.Thread(target=self._watch, name="izwi-drawing", daemon=True)

    def start(self) -> None:
        """Wait for jobs."""
        self._thread.start()

    def stop(self) -> None:
        """End the process, and wait for its end."""
        self._ours.close()
        self._thread.join()
        self._theirs.close()

    def _watch(self) -> None:
        while self._wait(self._listener) is _Woken.READY:
            if not self._run_process():
                return

    def _wait(self, stream: socket.socket, limit_s: float | None = None) -> _Woken:
        """Wait until a stream can be read, or `stop` comes, or the time has passed."""
        ready, _, _ = select.select((stream, self._theirs), (), (), limit_s)
        if self._theirs in ready:
            return _Woken.STOPPED
        return _Woken.READY if ready else _Woken.SILENT

    def _run_process(self) -> bool:
        """Run the process to its end. Returns False if it was ended by `stop`."""
        number = self._listener.fileno()
        control, its_input = socket.socketpair()
        with control:
            with its_input:
                process = subprocess.Popen(
                    self._command(number),
                    stdin=its_input.fileno(),
                    pass_fds=(number,),
                    env=os.environ | {"HF_HUB_OFFLINE": "1"},
                    # Ctrl+C in the terminal is for the server, which drains
                    start_new_session=True,
                )
            logger.info("drawing: process %d", process.pid)
            accepts, sign = False, b"\0"
            woken = self._wait(control, self._hung_after_s)
            while woken is _Woken.READY and (sign := _last_sign(control)):
                accepts = True
                woken = self._wait(control, None if sign == IDLE else self._hung_after_s)
            if woken is _Woken.SILENT:
                logger.error("drawing: no sign of life for %g s: it is killed", self._hung_after_s)
                process.kill()
        _end(process)
        if woken is _Woken.STOPPED:
            return False
        logger.error("drawing: the process ended with status %d", process.returncode)
        if not accepts:
            self._refuse_waiting()
        return True

    def _refuse_waiting(self) -> None:
        """Refuse what nobody has accepted: another process would not start, either."""
        refusal = encode_frame(refusal_of(EngineStopped("the process that draws does not start")))
        self._listener.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                with self._listener.accept()[0] as stream, suppress(ConnectionError):
                    stream.sendall(refusal)


def _last_sign(control: socket.socket) -> bytes:
    """Read the process's signs of life; returns the last, or nothing if it has ended."""
    try:
        return control.recv(1 << 12)[-1:]
    except ConnectionError:
        return b""


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait for a process whose input is closed; kill it if it does not end."""
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def drawing_process(options: PipelineOptions, hung_after_s: float) -> Iterator[Path]:
    """Accept jobs, and yield the path of the socket for them. No process runs before the first.

    Args:
        options: How the pipeline is loaded and run.
        hung_after_s: See `SupervisedProcess`.
    """
    text = msgspec.json.encode(options).decode()
    with _listening() as (path, listener):
        process = SupervisedProcess(
            listener, lambda number: (*PROGRAM, str(number), text), hung_after_s
        )
        process.start()
        try:
            yield path
        finally:
            process.stop()


@contextmanager
def _listening() -> Iterator[tuple[Path, socket.socket]]:
    """Listen in a folder that only this user can access."""
    parent = tempfile.gettempdir()
    parent = parent if len(parent) <= _MAX_FOLDER_CHARS else "/tmp"
    with (
        tempfile.TemporaryDirectory(prefix="izwi-", dir=parent, ignore_cleanup_errors=True) as name,
        socket.socket(socket.AF_UNIX) as listener,
    ):
        path = Path(name, _SOCKET)
        listener.bind(str(path))
        listener.listen(_BACKLOG)
        yield path, listener
