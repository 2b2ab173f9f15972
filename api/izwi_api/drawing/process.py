"""The process that draws: `python -m izwi_api.drawing.process LISTENER FOLDER DEVICE`.

LISTENER is the descriptor of a listening Unix socket. The standard input is a socket, too: the
process writes a byte to it before it accepts jobs, and ends when the other side is closed, which
the server's end does in any case.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
import threading
from pathlib import Path

from izwi_api.drawing.job_server import JobServer

MAX_WAITING = 8

logger = logging.getLogger("izwi_api.drawing.process")  # run as __main__


def _end_with_the_server() -> None:
    os.read(0, 1)
    os._exit(0)


def _let_speech_go_first() -> None:
    """If memory or processors are short, this process suffers, and not one that speaks."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("900", "ascii")
    with contextlib.suppress(OSError):
        os.nice(10)


def main() -> None:
    """Run jobs until the server ends, or memory does not suffice."""
    number, folder, device = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    threading.Thread(target=_end_with_the_server, daemon=True).start()
    _let_speech_go_first()
    # only here: it imports torch and diffusers, which take seconds
    from izwi_api.drawing.pipeline import Pipeline

    pipeline = Pipeline(Path(folder), device)
    with socket.socket(fileno=int(number)) as listener:
        os.write(0, b"R")
        asyncio.run(JobServer(pipeline, MAX_WAITING).serve(listener))
    logger.error("memory did not suffice: the next job starts another process")
    sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    main()
