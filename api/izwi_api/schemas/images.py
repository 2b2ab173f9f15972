"""The bodies of POST /v1/images/* in OpenAI's format. An unknown key is an error."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any, Literal

from pydantic import Field

from izwi.errors import InvalidValue, UnsupportedParameter
from izwi_api.schemas.chat import INT64_MAX
from izwi_api.schemas.chat_messages import Strict
from izwi_api.schemas.form import Form

MAX_IMAGES = 10
MAX_PARTIALS = 3
MAX_STEPS = 200
MAX_SIDE, MAX_PIXELS = 4096, 4 << 20
SIDE_STEP = 16
# The images of one request have seeds that count up.
MAX_SEED = INT64_MAX - MAX_IMAGES
_SIZE = re.compile(r"(\d{1,5})x(\d{1,5})", re.ASCII)
_NUMBERS = ("n", "output_compression", "partial_images", "seed", "steps")
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}

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
    response_format: Literal["b64_json", "url"] = "b64_json"
    stream: bool = False
    partial_images: int = Field(default=0, ge=0, le=MAX_PARTIALS)

    # Not OpenAI's.
    seed: int | None = Field(default=None, ge=0, le=MAX_SEED)
    steps: int | None = Field(default=None, ge=1, le=MAX_STEPS)

    # Taken with the value that changes nothing.
    background: Literal["auto", "opaque"] | None = None

    # They change nothing here.
    moderation: Literal["auto", "low"] | None = None
    user: str | None = None


class EditForm(ImagesBody):
    """The fields of a request to change an image, without its files."""

    # Not OpenAI's: how much of the image is lost.
    strength: float | None = Field(default=None, gt=0, le=1)


def parse_edit(form: Form) -> EditForm:
    """Read the fields of a form. Raises pydantic's ValidationError, InvalidRequest."""
    values: dict[str, Any] = form.values()
    for name in _NUMBERS:
        text = values.get(name, "")
        if text.isdecimal() and len(text) < 20:
            values[name] = int(text)
    if "stream" in values:
        values["stream"] = _BOOLEANS.get(values["stream"].lower(), values["stream"])
    if "strength" in values:
        with suppress(ValueError):  # the schema refuses what is no number
            values["strength"] = float(values["strength"])
    return EditForm.model_validate(values)


def size_of(body: ImagesBody) -> tuple[int, int] | None:
    """Return width and height in pixels, or None for the model's own. Raises InvalidValue."""
    return None if body.size == "auto" else read_size(body.size)


def read_size(text: str) -> tuple[int, int]:
    """Return width and height in pixels of a text like 1024x1024. Raises InvalidValue."""
    found = _SIZE.fullmatch(text)
    width, height = (int(found[1]), int(found[2])) if found else (0, 0)
    are_sides = all(0 < side <= MAX_SIDE and side % SIDE_STEP == 0 for side in (width, height))
    if not are_sides or width * height > MAX_PIXELS:
        raise InvalidValue(
            f"size must be auto or like 1024x1024, in multiples of {SIDE_STEP} up to {MAX_SIDE} "
            f"and at most {MAX_PIXELS:,} pixels, got {text[:32]!r}",
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


def check_stream(body: ImagesBody) -> None:
    """Raise UnsupportedParameter if what is asked for needs, or excludes, a stream."""
    if body.partial_images and not body.stream:
        raise UnsupportedParameter("partial_images needs stream: true", param="partial_images")
    if body.stream and body.response_format == "url":
        raise UnsupportedParameter("a stream has b64_json", param="response_format")
