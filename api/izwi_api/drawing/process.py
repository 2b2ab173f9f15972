"""The process that draws: `python -m izwi_api.drawing.process LISTENER OPTIONS`.

LISTENER is the descriptor of a listening Unix socket, OPTIONS are `PipelineOptions` in JSON. The
standard input is a socket, too. The process writes signs of life to it: IDLE before it accepts jobs
and after each, BUSY at the begin of a job and after each of its steps. It ends when the other side
is closed, which the server's end does in any case.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from izwi_api.drawing.job_server import JobServer
from izwi_api.drawing.jobs import DrawJob, Progress, Report, RunsJobs
from izwi_api.drawing.options import PipelineOptions
from izwi_api.drawing.supervised import IDLE

MAX_WAITING = 8
BUSY = b"B"

logger = logging.getLogger("izwi_api.drawing.process")  # run as __main__


class GivesSigns:
    """Runs jobs, and writes signs of life.

    Args:
        runner: What runs them.
        sign: Takes IDLE or BUSY.
    """

    def __init__(self, runner: RunsJobs, sign: Callable[[bytes], object]):
        self._runner, self._sign = runner, sign

    def run(self, job: DrawJob, report: Report, has_left: Callable[[], bool]) -> None:
        """Run a job. See `RunsJobs.run`."""

        def reported(event: Progress) -> None:
            self._sign(BUSY)
            report(event)

        self._sign(BUSY)
        try:
            self._runner.run(job, reported, has_left)
        finally:
            self._sign(IDLE)


def _end_with_the_server() -> None:
    os.read(0, 1)
    os._exit(0)


def _let_speech_go_first() -> None:
    """If memory or processors are short, this process suffers, and not one that speaks."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("900", "ascii")
    with contextlib.suppress(OSError):
        os.nice(10)


def _limit_host_memory(num_bytes: int) -> None:
    """Have allocations beyond a limit fail, where the system can."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (num_bytes, most))


def main() -> None:
    """Run jobs until the server ends, or memory does not suffice."""
    number, options = sys.argv[1], msgspec.json.decode(sys.argv[2], type=PipelineOptions)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    threading.Thread(target=_end_with_the_server, daemon=True).start()
    _let_speech_go_first()
    # only here: it imports torch and diffusers, which take seconds
    from izwi_api.drawing.pipeline import Pipeline

    pipeline = Pipeline(options)
    if options.memory_bytes and pipeline.device == "cpu":
        _limit_host_memory(options.memory_bytes)
    runner = GivesSigns(pipeline, partial(os.write, 0))
    with socket.socket(fileno=int(number)) as listener:
        os.write(0, IDLE)
        asyncio.run(JobServer(runner, MAX_WAITING).serve(listener))
    logger.error("memory did not suffice: the next job starts another process")
    sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    main()
