"""A video file of frames, by PyAV."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

import av
import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image

# Lower is better and larger; 18 looks like the frames.
_CRF = "18"


def mp4_of(frames: Sequence[Image], frames_per_s: int) -> bytes:
    """Return an MP4 file with H.264, which browsers play.

    Args:
        frames: Images of one size, whose sides are even.
        frames_per_s: How fast they follow each other.
    """
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=frames_per_s, options={"crf": _CRF})
        stream.width, stream.height = frames[0].size
        stream.pix_fmt = "yuv420p"
        for image in frames:
            pixels = np.asarray(image.convert("RGB"))
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    return file.getvalue()
