"""Decode untrusted images in separate, limited processes, which start with the first image.

What a process sends is checked like untrusted input. The pixels of recent images are kept, because
each turn of a conversation sends all of them again.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from functools import partial
from importlib.util import find_spec

import msgspec
import numpy as np
import numpy.typing as npt

from izwi.errors import InvalidImage, InvalidRequest, TooLarge
from izwi.inputs.images import ImageSizing
from izwi.sandbox.client import Frames, JobStopped, LimitedJob, ProcessKind
from izwi.sandbox.image_worker import (
    BLOCK,
    BLOCK_BYTES,
    REFUSED,
    SIZE,
    ImageJob,
    ImageRefusal,
    ImageSize,
)
from izwi.sandbox.queue import LimitedQueue

UInt8 = npt.NDArray[np.uint8]
# The file's digest, and what is made of it.
_Key = tuple[bytes, ImageSizing, bool]

# An image of 50 million pixels takes 200 MB with transparency, and as much again on white.
MEMORY_BYTES = 640 << 20
TIME_LIMIT_S = 30.0
# Each waiting file is held in memory.
MAX_WAITING = 32
# To decode nothing costs as much as this number of bytes.
_LEAST_SIZE = 16 << 10
_FILES_A_PROCESS = 500
_MAX_KEPT_BYTES = 64 << 20


class ImageDecoder:
    """Decodes images.

    Args:
        num_workers: Maximum number of processes; 0 decodes in this process, for files that its own
            user chose.
        time_limit_s: Per file, both of wall-clock and of processor time.
        memory_bytes: Memory that a process may use for one file.
    """

    def __init__(
        self,
        num_workers: int = 1,
        *,
        time_limit_s: float = TIME_LIMIT_S,
        memory_bytes: int = MEMORY_BYTES,
    ):
        self._num_workers, self._time_limit_s = num_workers, time_limit_s
        self._memory_bytes = memory_bytes
        self._queue: LimitedQueue | None = None
        self._kept: OrderedDict[_Key, UInt8] = OrderedDict()
        self._kept_bytes = 0

    async def decode(self, content: bytes, sizing: ImageSizing, *, is_mask: bool = False) -> UInt8:
        """Decode an image and scale it.

        Args:
            content: The file's bytes.
            sizing: To what size.
            is_mask: Only its transparency counts.

        Returns:
            (height, width, 3) RGB, not to be written to; for a mask see `decode_image`.

        Raises:
            InvalidImage: As `decode_image`; also if the file crashed the decoder.
            TooLarge: It has too many pixels.
            Overloaded: Too many images are waiting.
            InvalidRequest: Pillow is not installed.
        """
        key = hashlib.blake2b(content, digest_size=16).digest(), sizing, is_mask
        if (kept := self._kept.get(key)) is not None:
            self._kept.move_to_end(key)
            return kept
        if find_spec("PIL") is None:
            raise InvalidRequest("this server lacks Pillow for images: pip install 'izwi[vision]'")
        pixels = await self._decode(content, sizing, is_mask)
        pixels.flags.writeable = False
        self._cache(key, pixels)
        return pixels

    def stop(self) -> None:
        """End the processes; decoding in progress fails."""
        if self._queue is not None:
            self._queue.stop()

    async def _decode(self, content: bytes, sizing: ImageSizing, is_mask: bool) -> UInt8:
        if not self._num_workers:
            from izwi.sandbox.image_decode import decode_image

            decoded = await asyncio.to_thread(decode_image, content, sizing, is_mask=is_mask)
            return decoded.copy()
        if self._queue is None:
            self._queue = LimitedQueue(
                ProcessKind(
                    "izwi.sandbox.image_worker",
                    "decodes images",
                    self._memory_bytes,
                    max_jobs=_FILES_A_PROCESS,
                ),
                self._num_workers,
                MAX_WAITING,
                "too many images wait to be decoded",
            )
        head = ImageJob(len(content), max(1, round(self._time_limit_s)), sizing, is_mask)
        job = LimitedJob(msgspec.json.encode(head), self._time_limit_s, content, BLOCK_BYTES)
        try:
            return await self._queue.run(job, partial(_read, sizing), _LEAST_SIZE + len(content))
        except JobStopped as error:
            raise InvalidImage(
                "the image crashed the decoder, or needs more time or memory than is allowed"
            ) from error

    def _cache(self, key: _Key, pixels: UInt8) -> None:
        if key in self._kept or pixels.nbytes > _MAX_KEPT_BYTES:
            return
        self._kept[key] = pixels
        self._kept_bytes += pixels.nbytes
        while self._kept_bytes > _MAX_KEPT_BYTES:
            _, dropped = self._kept.popitem(last=False)
            self._kept_bytes -= dropped.nbytes


def _read(sizing: ImageSizing, frames: Frames) -> UInt8:
    """Return the pixels of a process's answer.

    Raises:
        JobStopped: The process sent what it must not send.
        InvalidImage, TooLarge: It refused the file.
    """
    size: ImageSize | None = None
    refusal: ImageRefusal | None = None
    pixels, most = bytearray(), 0
    for kind, content in frames:
        if refusal is None and kind == REFUSED and size is None:
            refusal = msgspec.json.decode(content, type=ImageRefusal)
        elif refusal is None and kind == SIZE and size is None:
            size = msgspec.json.decode(content, type=ImageSize)
            most = _num_bytes(size, sizing)
        elif kind == BLOCK and len(pixels) + len(content) <= most:
            pixels += content
        else:
            raise JobStopped(f"the process sent {kind!r} of {len(content)} bytes")
    if refusal is not None:
        raise (TooLarge if refusal.is_too_large else InvalidImage)(refusal.message)
    if size is None or len(pixels) != most:
        raise JobStopped("the process did not send an image")
    return np.frombuffer(pixels, np.uint8).reshape(size.height, size.width, 3)


def _num_bytes(size: ImageSize, sizing: ImageSizing) -> int:
    """Return the bytes of pixels of a size. Raises JobStopped for one that no image has."""
    factor, sides = sizing.factor, (size.height, size.width)
    # a narrow image is larger than the limit by the side that cannot be smaller
    most = max(sizing.max_pixels, sizing.min_pixels) + 400 * factor * factor
    if any(side < factor or side % factor for side in sides) or sides[0] * sides[1] > 2 * most:
        raise JobStopped(f"the process sent an image of {sides}")
    return 3 * sides[0] * sides[1]
