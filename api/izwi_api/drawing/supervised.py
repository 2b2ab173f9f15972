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
from pathlib import Path

logger = logging.getLogger(__name__)

PROGRAM = (sys.executable, "-P", "-m", "izwi_api.drawing.process")
_SOCKET = "drawing"
# Paths of sockets may have 104 bytes on macOS.
_MAX_FOLDER_CHARS = 70
_BACKLOG = 128
_GRACE_S = 5.0


class SupervisedProcess:
    """A thread that owns a listening socket, and the process that accepts from it.

    Args:
        listener: Listens; a job is a connection.
        command: (descriptor of the listener) -> how the process is started. Its standard input is a
            socket, to which it writes a byte when it accepts, and at whose end it ends.
    """

    def __init__(self, listener: socket.socket, command: Callable[[int], Sequence[str]]):
        self._listener, self._command = listener, command
        self._ours, self._theirs = socket.socketpair()  # closed to wake the thread
        self._process: subprocess.Popen[bytes] | None = None
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
        while self._is_waked_by(self._listener):
            if not self._run_process():
                return

    def _is_waked_by(self, stream: socket.socket) -> bool:
        """Wait until a stream can be read; returns False if `stop` comes first."""
        ready, _, _ = select.select((stream, self._theirs), (), ())
        return self._theirs not in ready

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
            accepts, goes_on = False, self._is_waked_by(control)
            while goes_on and _has_reported(control):
                accepts, goes_on = True, self._is_waked_by(control)
        _end(process)
        if not goes_on:
            return False
        logger.error("drawing: the process ended with status %d", process.returncode)
        if not accepts:
            self._refuse_waiting()
        return True

    def _refuse_waiting(self) -> None:
        """Close what nobody has accepted: another process would not start, either."""
        self._listener.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                self._listener.accept()[0].close()


def _has_reported(control: socket.socket) -> bool:
    """Read the process's report that it accepts jobs; returns False if it has ended."""
    try:
        return bool(control.recv(1))
    except ConnectionError:
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait for a process whose input is closed; kill it if it does not end."""
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def drawing_process(folder: Path, device: str) -> Iterator[Path]:
    """Accept jobs, and yield the path of the socket for them. No process runs before the first.

    Args:
        folder: The pipeline's.
        device: See `Pipeline`.
    """
    with _listening() as (path, listener):
        process = SupervisedProcess(
            listener, lambda number: (*PROGRAM, str(number), str(folder), device)
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
