"""Images in conversations: files as they came, and pixels at the size that a model takes."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from izwi.errors import InvalidImage

# A side may be at most so many times the other, as in the reference.
_MOST_ASPECT = 200
# Pixels of `detail: low`: 512 x 512.
_LOW_PIXELS = 1 << 18


class Detail(StrEnum):
    """How closely an image is looked at: fewer pixels take fewer tokens."""

    AUTO = "auto"
    LOW = "low"
    HIGH = "high"


class ChatImage(Struct, frozen=True, eq=False, omit_defaults=True):
    """An image of a message.

    Attributes:
        at: Number of characters of the message's text before it.
        url: Where the file is, or the file itself as a data: URL; empty once it is decoded.
        detail: How closely it is looked at.
        pixels: (height, width, 3) uint8 RGB, scaled for the model; None before it is decoded.
    """

    at: int
    url: str = ""
    detail: Detail = Detail.AUTO
    pixels: npt.NDArray[np.uint8] | None = None


class ImageSizing(Struct, frozen=True):
    """To what sizes a model takes images.

    Attributes:
        factor: Sides are multiples of it, in pixels.
        min_pixels: Smaller images are enlarged.
        max_pixels: Larger images are reduced.
    """

    factor: int
    min_pixels: int
    max_pixels: int

    def for_detail(self, detail: Detail) -> ImageSizing:
        """Return the limits for a caller's `detail`: 512 x 512 pixels for low, all otherwise."""
        if detail is not Detail.LOW:
            return self
        most = max(self.min_pixels, min(self.max_pixels, _LOW_PIXELS))
        return ImageSizing(self.factor, self.min_pixels, most)

    def fit(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width to which an image is scaled, in pixels.

        Both are multiples of `factor`, the product is within the limits where that is possible, and
        the ratio is nearly kept. Source: transformers 5.23, `smart_resize` of Qwen2-VL.

        Raises:
            InvalidImage: A side is more than 200 times the other.
        """
        if max(height, width) > _MOST_ASPECT * min(height, width):
            raise InvalidImage(
                f"an image of {width} x {height} pixels is too narrow: a side may be at most "
                f"{_MOST_ASPECT} times the other"
            )
        factor = self.factor
        sides = [round(side / factor) * factor for side in (height, width)]
        if sides[0] * sides[1] > self.max_pixels:
            scale = math.sqrt(height * width / self.max_pixels)
            sides = [
                max(factor, math.floor(side / scale / factor) * factor) for side in (height, width)
            ]
        elif sides[0] * sides[1] < self.min_pixels:
            scale = math.sqrt(self.min_pixels / (height * width))
            sides = [math.ceil(side * scale / factor) * factor for side in (height, width)]
        return sides[0], sides[1]


def parts_of(text: str, images: tuple[ChatImage, ...]) -> list[Any]:
    """Return the text around images, and the images, in order; empty text is left out."""
    parts: list[Any] = []
    start = 0
    for image in images:
        if image.at > start:
            parts.append(text[start : image.at])
        parts.append(image)
        start = image.at
    return [*parts, text[start:]] if text[start:] else parts
