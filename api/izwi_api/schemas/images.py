"""The body of POST /v1/images/generations in OpenAI's format. An unknown key is an error."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field

from izwi.errors import InvalidValue, UnsupportedParameter
from izwi_api.schemas.chat import INT64_MAX
from izwi_api.schemas.chat_messages import Strict

MAX_IMAGES = 10
MAX_STEPS = 200
MAX_SIDE, MAX_PIXELS = 4096, 4 << 20
# The images of one request have seeds that count up.
MAX_SEED = INT64_MAX - MAX_IMAGES
_SIDE_STEP = 16
_SIZE = re.compile(r"(\d{1,5})x(\d{1,5})", re.ASCII)

Quality = Literal["auto", "low", "medium", "high", "standard", "hd"]


class ImagesBody(Strict):
    """Images to draw."""

    prompt: str = Field(min_length=1, max_length=32_000)
    model: str | None = None
    n: int = Field(default=1, ge=1, le=MAX_IMAGES)
    size: str = "auto"
    quality: Quality = "auto"
    output_format: Literal["png", "jpeg", "webp"] = "png"
    output_compression: int | None = Field(default=None, ge=0, le=100)

    # Not OpenAI's.
    seed: int | None = Field(default=None, ge=0, le=MAX_SEED)
    steps: int | None = Field(default=None, ge=1, le=MAX_STEPS)

    # Taken with the value that changes nothing.
    response_format: Literal["b64_json"] | None = None
    background: Literal["auto", "opaque"] | None = None
    stream: Literal[False] | None = None
    partial_images: Literal[0] | None = None

    # They change nothing here.
    moderation: Literal["auto", "low"] | None = None
    user: str | None = None


def size_of(body: ImagesBody) -> tuple[int, int] | None:
    """Return width and height in pixels, or None for the model's own. Raises InvalidValue."""
    if body.size == "auto":
        return None
    found = _SIZE.fullmatch(body.size)
    width, height = (int(found[1]), int(found[2])) if found else (0, 0)
    are_sides = all(0 < side <= MAX_SIDE and side % _SIDE_STEP == 0 for side in (width, height))
    if not are_sides or width * height > MAX_PIXELS:
        raise InvalidValue(
            f"size must be auto or like 1024x1024, in multiples of {_SIDE_STEP} up to {MAX_SIDE} "
            f"and at most {MAX_PIXELS:,} pixels, got {body.size[:32]!r}",
            param="size",
        )
    return width, height


def compression_of(body: ImagesBody) -> int:
    """Return the quality of jpeg and webp. Raises UnsupportedParameter for png."""
    if body.output_compression is None:
        return 100
    if body.output_format == "png" and body.output_compression != 100:
        raise UnsupportedParameter(
            "output_compression is for jpeg and webp; png loses nothing",
            param="output_compression",
        )
    return body.output_compression
