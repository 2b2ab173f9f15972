"""Decode untrusted files in separate, limited processes, which may run out of memory or crash.

A `DecoderPool` has as many threads as processes. A thread sends a file to a process and collects
the samples, which are kept on disk if there are many. The output of a process is checked like
untrusted input, because a compromised decoder may send anything.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np

from izwi.arrays import Float32
from izwi.audio.decode import decode_audio, decode_blocks
from izwi.audio.decode_worker import BLOCK, END, JOB, REFUSED, Job, Refusal
from izwi.audio.decoded_audio import DecodedAudio
from izwi.audio.limits import DecodeLimits
from izwi.audio.resample import Resampling
from izwi.errors import EngineStopped, InvalidAudio, IzwiError, Overloaded, TooLarge
from izwi.limited_process import HEAD, READY, read_exactly, start_process

logger = logging.getLogger(__name__)

MEMORY_BYTES = 512 << 20
TIME_LIMIT_S = 60.0
# Each waiting file is held in memory.
MAX_WAITING = 32

_START_LIMIT_S = 60.0
_MAX_REFUSAL_BYTES = 4096
_MAX_BLOCK_BYTES = 4 << 20
# FFmpeg may leak memory, so a process decodes only so many files.
_FILES_A_PROCESS = 500


class Decoder(Protocol):
    """Decodes files."""

    def start(self) -> None:
        """Prepare, so that the first file need not wait; `decode` works without."""
        ...

    async def decode(
        self,
        content: bytes,
        rate: int,
        limits: DecodeLimits,
        resampling: Resampling = Resampling.LIBROSA,
    ) -> Float32:
        """Decode a file to mono samples.

        Args:
            content: The file's bytes.
            rate: Sample rate of the output in Hz.
            limits: Limits of the decoded audio.
            resampling: The filter to use if the file has another rate.

        Returns:
            (samples,) float32.

        Raises:
            InvalidAudio: As `decode_audio`; also if the file crashed the decoder.
            TooLarge: The audio exceeds a limit.
            Overloaded: Too many files are waiting.
        """
        ...

    async def spool(
        self,
        content: bytes,
        rate: int,
        limits: DecodeLimits,
        resampling: Resampling = Resampling.LIBROSA,
    ) -> DecodedAudio:
        """Decode a file of any length; long audio is kept on disk.

        Returns:
            The audio, as from `decode`; the caller closes it.

        Raises:
            Overloaded: Too many files are waiting, or the disk is full.
            IzwiError: As `decode`, or the audio cannot be written to disk.
        """
        ...

    def stop(self) -> None:
        """Stop decoding."""
        ...


class InProcess:
    """Decodes in this process, for files that the user of this process chose.

    Args:
        folder: For long audio; see `DecodedAudio`.
    """

    def __init__(self, folder: Path | None = None):
        self._folder = folder

    def start(self) -> None:
        """Do nothing."""

    async def decode(
        self,
        content: bytes,
        rate: int,
        limits: DecodeLimits,
        resampling: Resampling = Resampling.LIBROSA,
    ) -> Float32:
        """Decode a file, as `Decoder`; a file that crashes the decoder crashes this process."""
        return await asyncio.to_thread(
            decode_audio, content, rate, limits=limits, resampling=resampling
        )

    async def spool(
        self,
        content: bytes,
        rate: int,
        limits: DecodeLimits,
        resampling: Resampling = Resampling.LIBROSA,
    ) -> DecodedAudio:
        """Decode a file of any length, as `Decoder`."""
        blocks = decode_blocks(content, rate, limits, resampling)
        return await asyncio.to_thread(DecodedAudio(self._folder).write_all, blocks)

    def stop(self) -> None:
        """Do nothing."""


class DecoderPool:
    """Decodes in separate processes, which start when they are needed and are kept.

    Args:
        num_workers: Maximum number of processes.
        time_limit_s: Per file, both of wall-clock and of processor time.
        memory_bytes: Memory that a process may use for one file.
        folder: For long audio; see `DecodedAudio`.
    """

    def __init__(
        self,
        num_workers: int,
        folder: Path | None = None,
        *,
        time_limit_s: float = TIME_LIMIT_S,
        memory_bytes: int = MEMORY_BYTES,
    ):
        self._num_workers, self._folder = num_workers, folder
        self._time_limit_s, self._memory_bytes = time_limit_s, memory_bytes
        self._threads = ThreadPoolExecutor(num_workers, thread_name_prefix="izwi-decode")
        self._idle: queue.LifoQueue[_Worker] = queue.LifoQueue()
        self._busy: set[_Worker] = set()
        self._lock = threading.Lock()
        self._num_asked = 0
        self._is_stopped = False

    def start(self) -> None:
        """Start one process; more follow when files arrive at the same time."""
        self._idle.put(_Worker(self._memory_bytes))

    async def decode(
        self,
        content: bytes,
        rate: int,
        limits: DecodeLimits,
        resampling: Resampling = Resampling.LIBROSA,
    ) -> Float32:
        """Decode a file, as `Decoder`."""
        with await self.spool(content, rate, limits, resampling) as audio:
            return audio[:]

    async def spool(
        self,
        content: bytes,
        rate: int,
        limits: DecodeLimits,
        resampling: Resampling = Resampling.LIBROSA,
    ) -> DecodedAudio:
        """Decode a file of any length, as `Decoder`."""
        with self._lock:
            if self._is_stopped:
                raise EngineStopped("the server is stopping")
            if self._num_asked >= self._num_workers + MAX_WAITING:
                raise Overloaded("too many files wait to be decoded", retry_after_s=5)
            self._num_asked += 1
        left = threading.Event()
        job = self._threads.submit(self._decode, content, rate, limits, resampling, left)
        job.add_done_callback(self._count_out)
        try:
            return await asyncio.wrap_future(job)
        except asyncio.CancelledError:
            left.set()
            raise

    def stop(self) -> None:
        """End the processes; decoding in progress fails."""
        with self._lock:
            self._is_stopped = True
            for worker in self._busy:
                worker.kill()  # its thread does the cleanup
        self._threads.shutdown(wait=False, cancel_futures=True)
        while not self._idle.empty():
            self._idle.get_nowait().end()

    def _count_out(self, _: Future[DecodedAudio]) -> None:
        with self._lock:
            self._num_asked -= 1

    def _decode(
        self,
        content: bytes,
        rate: int,
        limits: DecodeLimits,
        resampling: Resampling,
        left: threading.Event,
    ) -> DecodedAudio:
        if left.is_set():
            raise InvalidAudio("the caller has left", param="file")
        worker = self._ask_one(content, rate, limits, resampling)
        try:
            blocks = worker.blocks(rate, limits, self._time_limit_s, left)
            audio = DecodedAudio(self._folder).write_all(blocks)
        except _WorkerLost as lost:
            logger.warning("a decoder was lost: %s", lost)
            self._replace(worker)
            raise InvalidAudio(
                "the file crashed the decoder, or needs more time or memory than is allowed",
                param="file",
            ) from lost
        except (InvalidAudio, TooLarge):
            self._give_back(worker)
            raise
        except BaseException:
            self._replace(worker)
            raise
        self._give_back(worker)
        return audio

    def _ask_one(
        self, content: bytes, rate: int, limits: DecodeLimits, resampling: Resampling
    ) -> _Worker:
        """Send a file to a process; skip a process that ended while it was idle."""
        while True:
            try:
                worker, is_new = self._idle.get_nowait(), False
            except queue.Empty:
                worker, is_new = _Worker(self._memory_bytes), True
            with self._lock:
                self._busy.add(worker)
                if self._is_stopped:
                    worker.kill()
            try:
                worker.ask(content, rate, limits, resampling, self._time_limit_s)
            except (OSError, EOFError) as error:
                with self._lock:
                    self._busy.discard(worker)
                worker.end()
                if is_new:
                    raise IzwiError("the process that decodes files does not start") from error
            else:
                return worker

    def _give_back(self, worker: _Worker) -> None:
        if worker.num_files >= _FILES_A_PROCESS:
            self._replace(worker)
            return
        with self._lock:
            self._busy.discard(worker)
            if not self._is_stopped:
                self._idle.put(worker)
                return
        worker.end()

    def _replace(self, worker: _Worker) -> None:
        """End a process and start another, so that it is ready for the next file."""
        worker.end()
        with self._lock:
            self._busy.discard(worker)
            if not self._is_stopped:
                self._idle.put(_Worker(self._memory_bytes))


class _WorkerLost(Exception):
    """The process ended, was too slow, or said something that it must not say."""


class _Worker:
    """One process, asked by one thread at a time."""

    def __init__(self, memory_bytes: int):
        self._stream, self._process = start_process("izwi.audio.decode_worker", memory_bytes)
        self.num_files = 0
        self._is_ready = False

    def ask(
        self,
        content: bytes,
        rate: int,
        limits: DecodeLimits,
        resampling: Resampling,
        time_limit_s: float,
    ) -> None:
        """Give it a file. Raises OSError and EOFError where it has ended, or never began."""
        if not self._is_ready:
            self._stream.settimeout(_START_LIMIT_S)
            self._is_ready = HEAD.unpack(read_exactly(self._stream, HEAD.size)) == (READY, 0)
        self.num_files += 1
        job = Job(
            num_bytes=len(content),
            rate=rate,
            max_audio_s=limits.max_audio_s,
            max_decoded_bytes=limits.max_decoded_bytes,
            cpu_s=max(1, round(time_limit_s)),
            resampling=resampling,
        )
        head = msgspec.json.encode(job)
        self._stream.settimeout(time_limit_s)
        self._stream.sendall(HEAD.pack(JOB, len(head)) + head)
        self._stream.sendall(content)  # it reads all of it before it begins

    def blocks(
        self, rate: int, limits: DecodeLimits, time_limit_s: float, left: threading.Event
    ) -> Iterator[Float32]:
        """Yield the samples as they come, or stop when `left` is set.

        Raises:
            _WorkerLost: It is of no use any more.
            IzwiError: As `Decoder`.
        """
        blocks = self._blocks(rate, limits, time.monotonic() + time_limit_s, left)
        try:
            yield from blocks
        except (OSError, EOFError, msgspec.MsgspecError) as error:
            self._process.kill()
            raise _WorkerLost(
                f"{type(error).__name__}, exit code {self._process.wait()}"
            ) from error

    def kill(self) -> None:
        """Make it end; what waits for it finds out."""
        self._process.kill()

    def end(self) -> None:
        """Make it end, and forget it."""
        self._process.kill()
        self._process.wait()
        self._stream.close()

    def _blocks(
        self, rate: int, limits: DecodeLimits, until_s: float, left: threading.Event
    ) -> Iterator[Float32]:
        # The resampler rounds up.
        num_bytes, most_bytes = 0, int(limits.max_audio_s * rate + rate) * 4
        while True:
            kind, size = HEAD.unpack(self._read(HEAD.size, until_s))
            if kind == END and size == 0 and num_bytes:
                return
            if kind == REFUSED and size <= _MAX_REFUSAL_BYTES:
                refusal = msgspec.json.decode(self._read(size, until_s), type=Refusal)
                cls = TooLarge if refusal.is_too_large else InvalidAudio
                raise cls(refusal.message, param="file")
            fits = size <= _MAX_BLOCK_BYTES and num_bytes + size <= most_bytes
            if kind != BLOCK or size % 4 or not fits:
                raise _WorkerLost(f"it said {kind!r} of {size} bytes")
            if left.is_set():
                raise _WorkerLost("its client has left")
            block = np.frombuffer(self._read(size, until_s), "<f4").astype(np.float32, copy=False)
            if not np.isfinite(block).all():
                raise _WorkerLost("it sent samples that are not finite")
            num_bytes += size
            yield block

    def _read(self, num_bytes: int, until_s: float) -> bytearray:
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            raise _WorkerLost("it took too long")
        self._stream.settimeout(left_s)
        return read_exactly(self._stream, num_bytes)
