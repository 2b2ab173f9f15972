"""Decode an image file and scale it for a model, with Pillow, which is imported when it is used."""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from izwi.errors import InvalidImage, TooLarge
from izwi.inputs.images import ImageSizing

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
# Before it is scaled: photographs of telephones have 50 million pixels.
MAX_PIXELS = 50_000_000


def decode_image(
    content: bytes, sizing: ImageSizing, *, is_mask: bool = False
) -> npt.NDArray[np.uint8]:
    """Decode an image and scale it.

    It is turned upright as its metadata say, transparency becomes white, and of an animation the
    first picture is taken. Scaling is Pillow's bicubic filter on 8 bits, as in the reference.

    Args:
        content: A file in one of FORMATS.
        sizing: To what size.
        is_mask: Only its transparency counts.

    Returns:
        (height, width, 3) RGB; of a mask white where it is transparent, else black.

    Raises:
        InvalidImage: It is not such a file, is broken or too narrow, or a mask that is opaque.
        TooLarge: It has more than MAX_PIXELS, whatever the size of the file.
    """
    from PIL import Image, ImageOps

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about sizes and metadata; the first is checked here
            with Image.open(io.BytesIO(content), formats=FORMATS) as image:
                _check_size(image.width, image.height)
                size = sizing.fit(*_upright_size(image))
                image.load()
                ImageOps.exif_transpose(image, in_place=True)
                upright = _mask(image) if is_mask else _rgb(image)
    except (InvalidImage, TooLarge):
        raise
    except MemoryError as error:
        raise TooLarge("the image needs more memory than is allowed") from error
    except Image.DecompressionBombError as error:
        raise TooLarge(_too_many("more")) from error
    except Exception as error:  # decoders raise errors of many kinds
        kinds = "PNG, JPEG, WebP or GIF"
        raise InvalidImage(f"the image cannot be read: it must be a whole {kinds} file") from error
    height, width = size
    if (upright.height, upright.width) != size:
        upright = upright.resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(upright, np.uint8)


def _check_size(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise TooLarge(_too_many(f"{width} x {height}"))


def _too_many(size: str) -> str:
    return f"the image has {size} pixels; at most {MAX_PIXELS} are accepted"


def _upright_size(image: Any) -> tuple[int, int]:
    """Return height and width once it is turned as its metadata say."""
    turned = image.getexif().get(0x0112, 1) in (5, 6, 7, 8)  # by a quarter
    return (image.width, image.height) if turned else (image.height, image.width)


def _is_transparent(image: Any) -> bool:
    return image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info


def _mask(image: Any) -> Any:
    """Return white where the image is transparent, and black elsewhere. Raises InvalidImage."""
    from PIL import Image, ImageOps

    if not _is_transparent(image):
        raise InvalidImage("the mask must be transparent where the image shall change")
    opacity = image.convert("RGBA").getchannel("A")
    return Image.merge("RGB", [ImageOps.invert(opacity)] * 3)


def _rgb(image: Any) -> Any:
    """Return the image in RGB, on white where it is transparent."""
    from PIL import Image

    if _is_transparent(image):
        layer = image if image.mode == "RGBA" else image.convert("RGBA")
        white = Image.new("RGB", layer.size, (255, 255, 255))
        white.paste(layer, mask=layer)
        return white
    return image.convert("RGB")
