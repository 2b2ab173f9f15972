"""A process that decodes images for another one, so that a crash of the decoder is contained.

    python -P -m izwi.sandbox.image_worker MEMORY_BYTES

It uses the frames of `izwi.sandbox.process`, and has the limits of `izwi.sandbox.decode_worker`.

    in    J  an `ImageJob` in JSON, followed by the file's bytes
    out   S  an `ImageSize` in JSON
          B  a block of pixels, RGB, row by row
          X  an `ImageRefusal` in JSON, instead of all others
"""

from __future__ import annotations

import contextlib
import io
import socket
import sys

import msgspec

from izwi.errors import InvalidRequest, TooLarge
from izwi.inputs.images import ImageSizing
from izwi.sandbox.image_decode import FORMATS, decode_image
from izwi.sandbox.process import (
    JOB,
    READY,
    begin_job,
    end_job,
    limit_process,
    read_exactly,
    read_frame,
    send_frame,
)

SIZE, BLOCK, REFUSED = b"S", b"B", b"X"
BLOCK_BYTES = 1 << 20


class ImageJob(msgspec.Struct, frozen=True):
    """An image to decode.

    Attributes:
        num_bytes: Size of the file, which follows.
        cpu_s: Processor time limit.
        sizing: To what size it is scaled.
        is_mask: Only its transparency counts.
    """

    num_bytes: int
    cpu_s: int
    sizing: ImageSizing
    is_mask: bool = False


class ImageSize(msgspec.Struct, frozen=True):
    """Size of the pixels that follow."""

    height: int
    width: int


class ImageRefusal(msgspec.Struct, frozen=True):
    """The reason why an image was not decoded.

    Attributes:
        is_too_large: It exceeds a limit; otherwise it is not a valid image.
        message: Message for the caller.
    """

    is_too_large: bool
    message: str


def main(memory_bytes: int) -> None:
    """Decode images until the socket closes."""
    from PIL import Image

    stream = socket.socket(fileno=0)
    # Modules and codecs are loaded on first use, which must be before files are forbidden.
    for kind in FORMATS:
        file = io.BytesIO()
        Image.new("RGB", (40, 40)).save(file, kind)
        decode_image(file.getvalue(), ImageSizing(8, 64, 64))
    with contextlib.suppress(InvalidRequest):
        decode_image(b"this is not an image", ImageSizing(8, 64, 64))
    limit_process(memory_bytes)
    send_frame(stream, READY)
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            _answer(stream)


def _answer(stream: socket.socket) -> None:
    kind, content = read_frame(stream)
    assert kind == JOB
    job = msgspec.json.decode(content, type=ImageJob)
    file = bytes(read_exactly(stream, job.num_bytes))
    begin_job(stream, job.cpu_s)
    try:
        pixels = decode_image(file, job.sizing, is_mask=job.is_mask)
        height, width, _ = pixels.shape
        send_frame(stream, SIZE, msgspec.json.encode(ImageSize(height, width)))
        flat = pixels.tobytes()
        for start in range(0, len(flat), BLOCK_BYTES):
            send_frame(stream, BLOCK, flat[start : start + BLOCK_BYTES])
    except InvalidRequest as error:
        refusal = ImageRefusal(isinstance(error, TooLarge), str(error))
        send_frame(stream, REFUSED, msgspec.json.encode(refusal))
    end_job(stream)


if __name__ == "__main__":
    main(int(sys.argv[1]))
