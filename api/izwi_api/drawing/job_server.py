"""Accept jobs, and run one at a time, callers in turn; a client that leaves cancels its own."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import msgspec

from izwi.errors import DeviceFull, IzwiError, Overloaded
from izwi.fairness.queue import FairQueue, may_queue
from izwi_api.drawing.jobs import (
    Begun,
    DrawJob,
    Ended,
    Event,
    Progress,
    RunsJobs,
    encode_frame,
    read_job,
    refusal_of,
)

logger = logging.getLogger(__name__)

_RETRY_AFTER_S = 10


class JobServer:
    """Runs the jobs that come over a listening socket.

    Args:
        runner: Runs them.
        max_waiting: Jobs that may wait while one is run; more are refused, but a caller with less
            than an equal part of them.
    """

    def __init__(self, runner: RunsJobs, max_waiting: int):
        self._runner, self._max_waiting = runner, max_waiting
        self._waiting: FairQueue[asyncio.Future[None]] = FairQueue()  # each is one job's turn
        self._is_busy = False
        self._num_jobs = Counter[str]()  # that wait or run, by caller
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="izwi-drawing")
        self._has_no_memory = asyncio.Event()

    async def serve(self, listener: socket.socket) -> None:
        """Accept connections until the memory did not suffice, or this task is cancelled."""
        # never closed: since Python 3.13 that removes the socket, which the next process needs
        await asyncio.start_unix_server(self._answer, sock=listener)
        await self._has_no_memory.wait()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError, msgspec.MsgspecError):
                await self._run_in_turn(await read_job(reader), reader, writer)
        finally:
            writer.close()

    async def _run_in_turn(
        self, job: DrawJob, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if not may_queue(self._num_jobs, job.caller, self._max_waiting + 1):
            message = f"{self._max_waiting} requests for images wait already; try again later"
            await _send(writer, refusal_of(Overloaded(message, retry_after_s=_RETRY_AFTER_S)))
            return
        self._num_jobs[job.caller] += 1
        leaving = asyncio.create_task(_until_left(reader))
        turn = self._turn_of(job)
        try:
            await asyncio.wait((leaving, turn), return_when=asyncio.FIRST_COMPLETED)
            if not leaving.done() and not self._has_no_memory.is_set():
                await self._run(job, writer, leaving)
        finally:
            self._num_jobs -= Counter([job.caller])
            leaving.cancel()
            if turn.done():
                self._pass_on()
            else:
                turn.cancel()

    def _turn_of(self, job: DrawJob) -> asyncio.Future[None]:
        """Queue a job; what is returned is done when it may run, and cancelled if it left."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.put(job.caller, job.count * (job.seconds or 1), turn)
        if not self._is_busy:
            self._pass_on()
        return turn

    def _pass_on(self) -> None:
        """Let the next job run that has not left."""
        self._is_busy = False
        while len(self._waiting) and not self._is_busy:
            turn = self._waiting.pop()
            if not turn.cancelled():
                turn.set_result(None)
                self._is_busy = True

    async def _run(
        self, job: DrawJob, writer: asyncio.StreamWriter, leaving: asyncio.Task[None]
    ) -> None:
        loop, left = asyncio.get_running_loop(), threading.Event()
        leaving.add_done_callback(lambda _: left.set())

        def report(event: Progress) -> None:
            loop.call_soon_threadsafe(writer.write, encode_frame(event))

        last: Event = Ended()
        await _send(writer, Begun())
        try:
            await loop.run_in_executor(self._thread, self._runner.run, job, report, left.is_set)
        except IzwiError as error:
            logger.warning("images are not drawn: %s", error)
            last, is_full = refusal_of(error), isinstance(error, DeviceFull)
        except Exception:
            logger.exception("images are not drawn: the pipeline failed")
            last, is_full = refusal_of(IzwiError("the pipeline failed")), False
        else:
            is_full = False
        await _send(writer, last)
        if is_full:  # its memory is in pieces: the next job gets another process
            self._has_no_memory.set()


async def _send(writer: asyncio.StreamWriter, event: Event) -> None:
    with suppress(ConnectionError):
        writer.write(encode_frame(event))
        await writer.drain()


async def _until_left(reader: asyncio.StreamReader) -> None:
    """Wait until the client closes the connection; it sends nothing more."""
    with suppress(ConnectionError):
        while await reader.read(1 << 12):
            pass
