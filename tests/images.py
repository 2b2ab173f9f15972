"""Image files for tests."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt


def png_of(pixels: npt.NDArray[np.uint8], kind: str = "PNG", **options: Any) -> bytes:
    """Return a file of (height, width, 3) or (height, width, 4) pixels."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()
