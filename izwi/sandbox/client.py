"""Ask limited processes (`izwi.sandbox.process`) to do jobs, which may crash them or never end.

A process that ended while it was idle, for example killed by a system that is out of memory, is
replaced before a job notices. A job is stopped with its process: by its limits, by the process's
crash, or because its caller has left. What a process sends is checked like untrusted input, because
a compromised process may send anything.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import socket
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from izwi.errors import EngineStopped, IzwiError
from izwi.sandbox.process import (
    BEGUN,
    END,
    HEAD,
    JOB,
    KILLED,
    OUT_OF_TIME,
    READY,
    read_exactly,
    send_frame,
    start_process,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")
Frames = Iterator[tuple[bytes, bytearray]]

_START_LIMIT_S = 60.0
# Starts for one job, because one process may be killed while it starts.
_MAX_STARTS = 2


@dataclass(frozen=True, slots=True)
class ProcessKind:
    """What processes are started, and how long they are kept.

    Attributes:
        module: Module that a process runs.
        purpose: What it does, for messages: "decodes files".
        memory_bytes: Memory that it may take in addition to that at its start.
        first: Frames that it is sent once, before its first job: kind and content.
        max_jobs: Number of jobs after which it is replaced, because libraries leak; 0 for no limit.
    """

    module: str
    purpose: str
    memory_bytes: int
    first: tuple[tuple[bytes, bytes], ...] = ()
    max_jobs: int = 0


@dataclass(frozen=True, slots=True)
class LimitedJob:
    """What a process is sent, and what it may send back.

    Attributes:
        head: Content of the first frame.
        time_limit_s: Wall time, on a busy machine. The process limits its processor time itself.
        body: Bytes behind the first frame.
        max_frame_bytes: Maximum size of a frame of the answer.
    """

    head: bytes
    time_limit_s: float
    body: bytes = b""
    max_frame_bytes: int = 1 << 16


_all = weakref.WeakSet["LimitedProcess"]()
_all_lock = threading.Lock()


class JobStopped(Exception):
    """A job ended without an answer: it crashed its process, or exceeded a limit.

    Attributes:
        exit_code: Negative number of the signal that ended the process; None if the process did
            not end by itself.
    """

    def __init__(self, message: str, exit_code: int | None = None):
        super().__init__(message)
        self.exit_code = exit_code


class Call:
    """A job's caller, who may leave: `LimitedPool.leave`."""

    __slots__ = ("has_left", "process")

    def __init__(self) -> None:
        self.has_left = False
        self.process: LimitedProcess | None = None


class LimitedProcess:
    """One process, asked by one thread at a time.

    Raises:
        IzwiError: It cannot be started.
    """

    def __init__(self, kind: ProcessKind):
        self._kind = kind
        _reap()
        try:
            self._stream, self._process = start_process(kind.module, kind.memory_bytes)
        except OSError as error:
            raise _no_start(kind) from error
        # with the pool's last reference, and when the interpreter exits
        self.end = weakref.finalize(self, _end, self._stream, self._process)
        self._num_jobs = 0
        self._is_idle = True
        self.is_ready = False
        with _all_lock:
            _all.add(self)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def can_go_on(self) -> bool:
        """Whether its last answer was read to the end, and it may do another job."""
        return self._is_idle and not 0 < self._kind.max_jobs <= self._num_jobs

    def start_job(self, job: LimitedJob) -> float:
        """Send a job, wait until the process begins it, and return when it must be done.

        Returns:
            The end of the job's time, on the monotonic clock.

        Raises:
            OSError, EOFError: The process has ended; it had no part in the job.
        """
        self._is_idle = False
        if not self.is_ready:
            self._stream.settimeout(_START_LIMIT_S)
            if HEAD.unpack(read_exactly(self._stream, HEAD.size)) != (READY, 0):
                raise EOFError
            for kind, content in self._kind.first:
                send_frame(self._stream, kind, content)
            self.is_ready = True
        self._num_jobs += 1
        until_s = time.monotonic() + job.time_limit_s
        self._stream.settimeout(job.time_limit_s)
        send_frame(self._stream, JOB, job.head)
        if job.body:
            self._stream.sendall(job.body)  # it reads all of it before it begins
        if HEAD.unpack(self._read(HEAD.size, until_s)) != (BEGUN, 0):
            raise EOFError
        return until_s

    def frames(self, job: LimitedJob, until_s: float) -> Frames:
        """Yield the frames of the answer, kind and content, as they come.

        Raises:
            OSError, EOFError: The process ended or was too slow.
            JobStopped: It sent what it must not send.
        """
        while True:
            kind, size = HEAD.unpack(self._read(HEAD.size, until_s))
            if kind == END and size == 0:
                self._is_idle = True
                return
            if kind == END or size > job.max_frame_bytes:
                raise JobStopped(f"the process sent {kind!r} of {size} bytes")
            yield kind, self._read(size, until_s)

    def kill(self) -> None:
        """Make it end. The thread that waits for it notices; any thread may call this."""
        self._process.kill()

    def reap(self) -> None:
        """Let the system forget the process if it has ended."""
        self._process.poll()

    def exit_code(self) -> int:
        """Make it end, and return its exit code, negative for the signal that ended it."""
        self._process.kill()  # does nothing to a process that has ended
        return self._process.wait()

    def _read(self, num_bytes: int, until_s: float) -> bytearray:
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._stream.settimeout(left_s)
        return read_exactly(self._stream, num_bytes)


class LimitedPool:
    """Processes of one kind, which are started when they are needed and kept.

    There are as many as threads that call `run` at the same time.
    """

    def __init__(self, kind: ProcessKind):
        self._kind = kind
        self._idle: queue.LifoQueue[LimitedProcess] = queue.LifoQueue()
        self._busy: set[LimitedProcess] = set()
        self._lock = threading.Lock()
        self._is_stopped = False

    @property
    def processes(self) -> list[LimitedProcess]:
        """All processes, idle and busy."""
        with self._lock:
            return [*self._idle.queue, *self._busy]

    def start(self) -> None:
        """Start one process ahead, so that the first job need not wait; `run` works without."""
        if self._is_stopped or not self._idle.empty():
            return
        process = LimitedProcess(self._kind)
        with self._lock:
            if not self._is_stopped:
                self._idle.put(process)
                return
        process.end()

    def run(self, job: LimitedJob, read: Callable[[Frames], T], call: Call | None = None) -> T:
        """Have a process do a job, and return what `read` makes of its answer. Blocks.

        Args:
            job: The job.
            read: Reads the frames of the answer to their end, or raises. It runs again from the
                start if something outside kills the process.
            call: The caller, if it may leave.

        Raises:
            JobStopped: The job crashed its process, exceeded a limit, or its caller has left.
            EngineStopped: The pool was stopped.
            IzwiError: No process can be started.
        """
        call = call or Call()
        try:
            return self._run_once(job, read, call)
        except _Killed:
            try:
                return self._run_once(job, read, call)
            except _Killed as again:
                raise JobStopped("the process was killed twice") from again

    def leave(self, call: Call) -> None:
        """Stop a job whose caller has left, or do not start it; any thread may call this."""
        with self._lock:
            call.has_left = True
            if call.process is not None:
                call.process.kill()  # its thread does the cleanup

    def end_idle(self) -> None:
        """End idle processes; others start when they are needed."""
        while True:
            try:
                self._idle.get_nowait().end()
            except queue.Empty:
                return

    def stop(self) -> None:
        """End all processes; jobs in progress fail, and no more begin."""
        with self._lock:
            self._is_stopped = True
            for process in self._busy:
                process.kill()
        self.end_idle()

    def _run_once(self, job: LimitedJob, read: Callable[[Frames], T], call: Call) -> T:
        process, until_s = self._start_job(job, call)
        try:
            return read(process.frames(job, until_s))
        except (OSError, EOFError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            code = process.exit_code()
            lost = f"{type(error).__name__}, exit code {code}"
            if not call.has_left and not self._is_stopped:
                level = logging.INFO if code in OUT_OF_TIME else logging.WARNING
                logger.log(level, "a process that %s was lost: %s", self._kind.purpose, lost)
                if isinstance(error, EOFError) and code in KILLED:
                    raise _Killed from error
            # a process that was too slow, or sent nonsense, is killed here
            raise JobStopped(lost, None if code in KILLED else code) from error
        finally:
            self._release(process, call)

    def _start_job(self, job: LimitedJob, call: Call) -> tuple[LimitedProcess, float]:
        """Send a job to a process; skip processes that ended while they were idle."""
        num_starts = 0
        while True:
            process, is_new = self._acquire(call)
            num_starts += is_new
            try:
                return process, process.start_job(job)
            except (OSError, EOFError) as error:
                self._discard(process, call)
                if call.has_left:
                    raise JobStopped("its caller has left") from error
                is_slow = process.is_ready and isinstance(error, TimeoutError)
                if is_slow or (is_new and process.is_ready):
                    raise JobStopped("the process did not begin the job") from error
                if num_starts == _MAX_STARTS:
                    raise _no_start(self._kind) from error
                logger.info("a process that %s ended while it was idle", self._kind.purpose)
            except BaseException:
                self._discard(process, call)
                raise

    def _acquire(self, call: Call) -> tuple[LimitedProcess, bool]:
        """Return an idle process or a new one, and whether it is new."""
        try:
            process, is_new = self._idle.get_nowait(), False
        except queue.Empty:
            process, is_new = LimitedProcess(self._kind), True
        with self._lock:
            if not call.has_left and not self._is_stopped:
                self._busy.add(process)
                call.process = process
                return process, is_new
        process.end()
        if self._is_stopped:
            raise EngineStopped("the server is stopping")
        raise JobStopped("its caller has left")

    def _release(self, process: LimitedProcess, call: Call) -> None:
        """Keep a process for the next job, or start another so that it is ready for that."""
        with self._lock:
            if process.can_go_on and not call.has_left and not self._is_stopped:
                call.process = None
                self._busy.discard(process)
                self._idle.put(process)
                return
        self._discard(process, call)
        with contextlib.suppress(IzwiError):  # then the next job tries again, and reports it
            self.start()

    def _discard(self, process: LimitedProcess, call: Call) -> None:
        with self._lock:
            call.process = None
            self._busy.discard(process)
        process.end()


def only_frame(frames: Frames) -> tuple[bytes, bytearray]:
    """Read an answer of one frame; return its kind and its content.

    Raises:
        JobStopped: The answer has none, or more.
    """
    frame = next(frames, None)
    if frame is None or next(frames, None) is not None:
        raise JobStopped("the process did not send one frame")
    return frame


class _Killed(Exception):
    """Something outside killed a process while it did a job."""


def _no_start(kind: ProcessKind) -> IzwiError:
    return IzwiError(f"the process that {kind.purpose} does not start")


def _reap() -> None:
    """Reap processes that ended while idle, of every pool: theirs may have no job for hours."""
    with _all_lock:
        for process in _all:
            process.reap()


def _end(stream: socket.socket, process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    stream.close()
