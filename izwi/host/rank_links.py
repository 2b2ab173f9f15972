"""The processes of an engine's other ranks, and connections to them: messages over socket pairs.

Rank 0 starts them and tells them what to run. If either side dies, the other reads the end.
"""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

Frame = bytes | memoryview
_PR_SET_PDEATHSIG = 1  # of linux/prctl.h
_END_S = 5.0  # that a rank may take to end


class Link:
    """One end of a connection: messages of one or more frames. One thread sends, one receives."""

    def __init__(self, stream: socket.socket):
        self._stream = stream

    @classmethod
    def of_this_process(cls) -> Link:
        """Return the end that is this process's standard input; its children do not inherit it."""
        stream = socket.socket(fileno=os.dup(0))
        with Path(os.devnull).open("rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        return cls(stream)

    def send(self, frames: Sequence[Frame]) -> None:
        """Send a message. Raises OSError if the other side is gone."""
        sizes = [len(frame) for frame in frames]
        head = struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
        self._stream.sendall(b"".join([head, *frames]))

    def receive(self) -> list[bytes]:
        """Wait for a message. Raises EOFError if the other side is gone."""
        (count,) = struct.unpack("<I", self._read(4))
        sizes = struct.unpack(f"<{count}Q", self._read(8 * count))
        return [self._read(size) for size in sizes]

    def _read(self, size: int) -> bytes:
        content = bytearray(size)
        view, done = memoryview(content), 0
        while done < size:
            try:
                got = self._stream.recv_into(view[done:])
            except ConnectionError:
                got = 0
            if not got:
                raise EOFError("the other side is gone")
            done += got
        return bytes(content)

    def close(self) -> None:
        """Close this end."""
        self._stream.close()


class FollowerLink:
    """Rank 0, as another rank sees it.

    This process ends as soon as rank 0 is gone: it may wait for it in an operation of the device,
    from which nothing else would wake it.
    """

    def __init__(self) -> None:
        """Use this process's standard input."""
        _end_with_parent()
        self._link = Link.of_this_process()
        self._orders: queue.SimpleQueue[list[bytes]] = queue.SimpleQueue()
        threading.Thread(target=self._read, name="izwi-rank-0", daemon=True).start()

    def _read(self) -> None:
        try:
            while True:
                self._orders.put(self._link.receive())
        except EOFError:
            os._exit(0)

    def receive(self) -> list[bytes]:
        """Wait for a message."""
        return self._orders.get()

    def send(self, frames: Sequence[Frame]) -> None:
        """Reply."""
        self._link.send(frames)


def _end_with_parent() -> None:
    """Let the system kill this process with rank 0, also when no thread of it runs.

    On Linux alone; elsewhere only the end of the connection ends it.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class FollowerProcesses:
    """The processes of ranks 1, 2, ... of an engine, which rank 0 starts."""

    def __init__(self, command: Sequence[str], firsts: Sequence[bytes]):
        """Start a process for each message.

        Args:
            command: The program and its arguments; its standard input is its `Link`.
            firsts: The first message of each.
        """
        self._num_models = 0
        self._is_closed = False
        self._has_run = False
        self._links: list[Link] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        for first in firsts:
            ours, theirs = socket.socketpair()
            with theirs:
                process = subprocess.Popen(
                    list(command), stdin=theirs.fileno(), start_new_session=True
                )
            self._processes.append(process)
            self._links.append(Link(ours))
            self._links[-1].send([first])

    def add_model(self) -> int:
        """Return the number of one more model; the ranks count theirs in the same order."""
        self._num_models += 1
        return self._num_models - 1

    @property
    def has_run(self) -> bool:
        """Whether they have been sent more than the first message."""
        return self._has_run

    @property
    def pids(self) -> list[int]:
        """Their process ids."""
        return [process.pid for process in self._processes]

    def watch(self, died: Callable[[int, int], object]) -> None:
        """Call a function with rank and exit code when one of them ends, on a thread of its own."""
        for rank, process in enumerate(self._processes, 1):

            def wait(rank: int = rank, process: subprocess.Popen[bytes] = process) -> None:
                code = process.wait()
                if not self._is_closed:
                    died(rank, code)

            threading.Thread(target=wait, name=f"izwi-rank-{rank}", daemon=True).start()

    def send(self, frames: Sequence[Frame]) -> None:
        """Send all of them a message. Raises OSError if one is gone."""
        self._has_run = True
        for link in self._links:
            link.send(frames)

    def replies(self) -> list[list[bytes]]:
        """Wait for a message of each. Raises EOFError if one is gone."""
        return [link.receive() for link in self._links]

    def close(self) -> None:
        """End them, and wait until they have."""
        self._is_closed = True
        for link in self._links:
            link.close()
        for process in self._processes:
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
