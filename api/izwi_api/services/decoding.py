"""Decode untrusted files in separate, limited processes, which may run out of memory or crash.

Samples are collected as they come, and kept on disk if there are many. What a process sends is
checked like untrusted input, because a compromised decoder may send anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np

from izwi.arrays import Float32
from izwi.audio.decode import decode_audio, decode_blocks
from izwi.audio.decoded_audio import DecodedAudio
from izwi.audio.limits import DecodeLimits
from izwi.audio.resample import Resampling
from izwi.errors import InvalidAudio, TooLarge
from izwi.sandbox.client import Frames, JobStopped, LimitedJob, ProcessKind
from izwi.sandbox.decode_worker import BLOCK, REFUSED, DecodeJob, Refusal
from izwi.sandbox.queue import LimitedQueue

MEMORY_BYTES = 512 << 20
TIME_LIMIT_S = 60.0
# Each waiting file is held in memory.
MAX_WAITING = 32
# To decode nothing costs as much as this number of bytes.
_LEAST_SIZE = 16 << 10

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
        self._folder, self._time_limit_s = folder, time_limit_s
        self._queue = LimitedQueue(
            ProcessKind(
                "izwi.sandbox.decode_worker",
                "decodes files",
                memory_bytes,
                max_jobs=_FILES_A_PROCESS,
            ),
            num_workers,
            MAX_WAITING,
            "too many files wait to be decoded",
        )

    def start(self) -> None:
        """Start one process; more follow when files arrive at the same time."""
        self._queue.start()

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
        job = _job(content, rate, limits, resampling, self._time_limit_s)
        read = partial(self._spool, rate, limits)
        try:
            return await self._queue.run(job, read, _LEAST_SIZE + len(content))
        except JobStopped as error:
            raise InvalidAudio(
                "the file crashed the decoder, or needs more time or memory than is allowed",
                param="file",
            ) from error

    def stop(self) -> None:
        """End the processes; decoding in progress fails."""
        self._queue.stop()

    def _spool(self, rate: int, limits: DecodeLimits, frames: Frames) -> DecodedAudio:
        return DecodedAudio(self._folder).write_all(_blocks(rate, limits, frames))


def _job(
    content: bytes, rate: int, limits: DecodeLimits, resampling: Resampling, time_limit_s: float
) -> LimitedJob:
    head = DecodeJob(
        num_bytes=len(content),
        rate=rate,
        max_audio_s=limits.max_audio_s,
        max_decoded_bytes=limits.max_decoded_bytes,
        cpu_s=max(1, round(time_limit_s)),
        resampling=resampling,
    )
    return LimitedJob(msgspec.json.encode(head), time_limit_s, content, _MAX_BLOCK_BYTES)


def _blocks(rate: int, limits: DecodeLimits, frames: Frames) -> Iterator[Float32]:
    """Yield the samples of a process's answer.

    Raises:
        JobStopped: The process sent what it must not send.
        InvalidAudio, TooLarge: It refused the file.
    """
    # The resampler rounds up.
    num_bytes, most_bytes = 0, int(limits.max_audio_s * rate + rate) * 4
    refused: InvalidAudio | TooLarge | None = None
    for kind, content in frames:
        if refused is not None:
            raise JobStopped("the process goes on after a refusal")
        if kind == REFUSED:
            refusal = msgspec.json.decode(content, type=Refusal)
            cls = TooLarge if refusal.is_too_large else InvalidAudio
            refused = cls(refusal.message, param="file")
            continue
        num_bytes += len(content)
        if kind != BLOCK or len(content) % 4 or num_bytes > most_bytes:
            raise JobStopped(f"the process sent {kind!r} of {len(content)} bytes")
        block = np.frombuffer(content, "<f4").astype(np.float32, copy=False)
        if not np.isfinite(block).all():
            raise JobStopped("the process sent samples that are not finite")
        yield block
    if refused is not None:
        raise refused
    if not num_bytes:
        raise JobStopped("the process sent no samples")
