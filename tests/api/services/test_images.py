"""Images are decoded in limited processes: what is too large, broken or hostile harms no other."""

from __future__ import annotations

import asyncio
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

from izwi.errors import InvalidImage, TooLarge
from izwi.inputs.images import ImageSizing
from izwi.sandbox.client import JobStopped
from izwi.sandbox.image_decode import MAX_PIXELS, decode_image
from izwi.sandbox.image_worker import BLOCK, REFUSED, SIZE
from izwi_api.services import images
from izwi_api.services.images import ImageDecoder
from tests.images import png_of
from tests.models.tiny_vl import drawn_image

Image = pytest.importorskip("PIL.Image")

SIZING = ImageSizing(32, 32 * 32, 512 * 512)


def bomb(width: int, height: int) -> bytes:
    """A valid PNG of one bit a pixel, thousands of times smaller than its pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    head = struct.pack(">2I5B", width, height, 1, 0, 0, 0, 0)
    rows = zlib.compressobj(9)
    data = b"".join(rows.compress(bytes(1 + -(-width // 8))) for _ in range(height)) + rows.flush()
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


@pytest.fixture(scope="module")
def decoder():
    made = ImageDecoder()
    yield made
    made.stop()


def decode(decoder: ImageDecoder, content: bytes, sizing: ImageSizing = SIZING) -> np.ndarray:
    return asyncio.run(decoder.decode(content, sizing))


def test_a_process_decodes_what_this_one_would(decoder):
    drawn = drawn_image(333, 222, 3)
    for kind in ("PNG", "JPEG", "WEBP", "GIF"):
        file = png_of(drawn, kind)
        assert np.array_equal(decode(decoder, file), decode_image(file, SIZING))
    assert decode(decoder, png_of(drawn)).shape == (224, 320, 3)
    kept = decode(decoder, png_of(drawn))
    assert kept is decode(decoder, png_of(drawn))
    with pytest.raises(ValueError, match="read-only"):
        kept[0] = 0
    (process,) = decoder._queue.pool.processes
    limits = Path(f"/proc/{process.pid}/limits").read_text("ascii")
    assert "Max open files            3" in limits
    assert "Max file size             0" in limits


@pytest.mark.parametrize(
    ("content", "error", "words"),
    [
        (b"", InvalidImage, "PNG, JPEG"),
        (b"GIF89a" + bytes(50), InvalidImage, "PNG, JPEG"),
        (png_of(drawn_image(40, 40, 1))[:-30], InvalidImage, "whole"),
        (png_of(drawn_image(40, 40, 1), "BMP"), InvalidImage, "PNG, JPEG"),
        (png_of(drawn_image(40, 40, 1), "TIFF"), InvalidImage, "PNG, JPEG"),
        (png_of(drawn_image(2, 500, 1)), InvalidImage, "too narrow"),
        (bomb(20_000, 20_000), TooLarge, str(MAX_PIXELS)),
    ],
)
def test_what_is_no_image_or_too_large_is_refused(decoder, content, error, words):
    with pytest.raises(error, match=words):
        decode(decoder, content)
    assert len(content) < 1 << 20
    assert decode(decoder, png_of(drawn_image(64, 64, 1))).shape == (64, 64, 3)


def test_the_largest_accepted_image_fits_into_the_memory(decoder):
    content = bomb(10_000, MAX_PIXELS // 10_000)
    assert len(content) < 100_000
    height, width, _ = decode(decoder, content).shape
    assert height * width <= SIZING.max_pixels
    small = ImageDecoder(memory_bytes=16 << 20)
    with pytest.raises(TooLarge, match="memory"):
        decode(small, content)
    small.stop()


def test_images_are_turned_upright_and_transparency_is_white():
    drawn = drawn_image(96, 64, 2)
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    turned = decode_image(png_of(drawn, exif=exif.tobytes()), SIZING)
    assert turned.shape == (96, 64, 3)
    assert np.array_equal(turned, np.rot90(drawn, -1))
    clear = np.dstack([drawn, np.full(drawn.shape[:2], 255, np.uint8)])
    clear[:32, :, 3] = 0
    seen = decode_image(png_of(clear), SIZING)
    assert (seen[:32] == 255).all()
    assert np.array_equal(seen[32:], drawn[32:])


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [(SIZE, b'{"height": 64, "width": 64}')],
        [(SIZE, b'{"height": 64, "width": 65}'), (BLOCK, bytes(64 * 65 * 3))],
        [(SIZE, b'{"height": 32000, "width": 32000}')],
        [(SIZE, b'{"height": 32, "width": 32}'), (BLOCK, bytes(4000))],
        [(BLOCK, b"x")],
        [(SIZE, b'{"height": 32, "width": 32}'), (REFUSED, b'{"is_too_large":false,"message":""}')],
        [(b"?", b"")],
    ],
)
def test_what_a_process_must_not_send_is_no_image(frames):
    with pytest.raises(JobStopped):
        images._read(SIZING, iter([(kind, bytearray(content)) for kind, content in frames]))


def test_no_process_starts_before_the_first_image():
    made = ImageDecoder()
    assert made._queue is None
    made.stop()


def test_mask_is_white_where_it_is_transparent(decoder):
    drawn = drawn_image(96, 64, 2)
    alpha = np.full(drawn.shape[:2], 255, np.uint8)
    alpha[:32] = 0
    content = png_of(np.dstack([drawn, alpha]))
    seen = asyncio.run(decoder.decode(content, SIZING, is_mask=True))
    assert (seen[:32] == 255).all()
    assert (seen[32:] == 0).all()
    assert np.array_equal(decode(decoder, content)[32:], drawn[32:])  # the same file, as an image
    with pytest.raises(InvalidImage, match="transparent"):
        asyncio.run(decoder.decode(png_of(drawn), SIZING, is_mask=True))
