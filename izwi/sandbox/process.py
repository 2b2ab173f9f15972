"""Processes for untrusted work, with limited memory and time, and without files or secrets.

The parent (`izwi.sandbox.client`) talks to such a process over a socket, its standard input, in
frames: one byte for the kind, the length in 4 bytes (little-endian), and the content.

    in    J  a job's description, and whatever the process expects behind it
    out   R  it is ready, empty; once, at its start
          A  it has read a job and begins it, empty
             frames of its own: the answer
          E  the job is over, empty

A process that ends before A had no part in the job. It ends when its socket is closed.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

HEAD = struct.Struct("<cI")
JOB, READY, BEGUN, END = b"J", b"R", b"A", b"E"


def exit_codes(*signals: str) -> tuple[int, ...]:
    """Return the exit codes of processes that signals end; without those the platform lacks."""
    return tuple(-getattr(signal, name) for name in signals if hasattr(signal, name))


# Those of processes that exceeded their limit of processor time, and that something else killed.
OUT_OF_TIME, KILLED = exit_codes("SIGPROF", "SIGXCPU"), exit_codes("SIGKILL")

# Environment variables that are passed on; no keys, tokens or proxies.
_ENVIRONMENT = (
    *("PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"),
    *("DYLD_FALLBACK_LIBRARY_PATH", "LANG", "LC_ALL", "TMPDIR", "TZ", "SYSTEMROOT"),
)


def start_process(module: str, memory_bytes: int) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Start `python -P -m module memory_bytes`; return our side of its socket, and the process."""
    ours, theirs = socket.socketpair()
    kept = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, str(memory_bytes)],
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # each thread of a numerical library reserves address space
            env=kept | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            # Ctrl+C in the terminal is for the server, which drains
            start_new_session=True,
        )
    return ours, process


def read_frame(stream: socket.socket) -> tuple[bytes, bytearray]:
    """Read a frame; return its kind and its content. Raises EOFError as `read_exactly`."""
    kind, size = HEAD.unpack(read_exactly(stream, HEAD.size))
    return kind, read_exactly(stream, size)


def send_frame(stream: socket.socket, kind: bytes, content: bytes = b"") -> None:
    """Send a frame. Raises OSError if the other side has closed the socket."""
    stream.sendall(HEAD.pack(kind, len(content)) + content)


def begin_job(stream: socket.socket, cpu_s: float) -> None:
    """Limit the processor time of a job that has been read, and report that it begins."""
    limit_time(cpu_s)
    send_frame(stream, BEGUN)


def end_job(stream: socket.socket) -> None:
    """Report that a job is over, and end its limit of processor time."""
    with contextlib.suppress(AttributeError, OSError):
        signal.setitimer(signal.ITIMER_PROF, 0)
    send_frame(stream, END)


def read_exactly(stream: socket.socket, num_bytes: int) -> bytearray:
    """Read `num_bytes` bytes. Raises EOFError if the other side has closed the socket."""
    content = bytearray(num_bytes)
    view = memoryview(content)
    while view:
        num_read = stream.recv_into(view)
        if num_read == 0:
            raise EOFError
        view = view[num_read:]
    return content


def limit_process(memory_bytes: int) -> None:
    """Limit this process to what untrusted work needs: files, processes, core dumps, memory.

    Platforms differ; limits that they do not support are skipped.

    Args:
        memory_bytes: Address space in addition to the current one.
    """
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", "ascii")
    try:
        import resource
    except ImportError:
        return
    used_bytes = 0
    with contextlib.suppress(OSError):
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
        used_bytes = pages * os.sysconf("SC_PAGE_SIZE")
    wanted = {
        "RLIMIT_AS": used_bytes + memory_bytes,
        "RLIMIT_CORE": 0,
        "RLIMIT_FSIZE": 0,
        "RLIMIT_NPROC": 0,
        "RLIMIT_NOFILE": 3,
    }
    for name, value in wanted.items():
        with contextlib.suppress(AttributeError, OSError, ValueError):
            resource.setrlimit(getattr(resource, name), (value, value))


def limit_time(cpu_s: float) -> None:
    """Let the system end this process when it has taken so much more of the processor.

    A timer ends it by SIGPROF. Should that be ended, the limit of whole seconds does, by SIGXCPU.
    """
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        until_s = math.ceil(time.process_time() + cpu_s)
        resource.setrlimit(resource.RLIMIT_CPU, (until_s, resource.RLIM_INFINITY))
    with contextlib.suppress(AttributeError, OSError):
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
