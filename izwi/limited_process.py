"""Processes that do untrusted work with little memory, little time, no files and no secrets.

The parent talks to one over the socket that is its standard input, in frames: a byte that says
which kind, the length in 4 bytes, little end first, and the content. It ends when its socket does.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

HEAD = struct.Struct("<cI")
READY = b"R"  # sent once, empty, when a process has started and limited itself

# Of this process's environment; no key, no token, no proxy.
_ENVIRONMENT = (
    *("PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"),
    *("DYLD_FALLBACK_LIBRARY_PATH", "LANG", "LC_ALL", "TMPDIR", "TZ", "SYSTEMROOT"),
)


def start_process(module: str, memory_bytes: int) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Start `python -P -m module memory_bytes`; returns our side of its socket, and the process."""
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
            # Ctrl+C in the terminal is for the server, which lets its work finish
            start_new_session=True,
        )
    return ours, process


def read_exactly(stream: socket.socket, num_bytes: int) -> bytearray:
    """Read so many bytes. Raises EOFError where the other side has left."""
    content = bytearray(num_bytes)
    view = memoryview(content)
    while view:
        num_read = stream.recv_into(view)
        if num_read == 0:
            raise EOFError
        view = view[num_read:]
    return content


def limit_process(memory_bytes: int) -> None:
    """Give up what untrusted work does not need: files, processes, core dumps, memory.

    Platforms differ; what they cannot limit stays free.

    Args:
        memory_bytes: Address space beyond what is used now.
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


def limit_time(cpu_s: int) -> None:
    """Let the system end this process when it has taken so much more of the processor."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        until_s = math.ceil(time.process_time()) + cpu_s
        resource.setrlimit(resource.RLIMIT_CPU, (until_s, resource.RLIM_INFINITY))
