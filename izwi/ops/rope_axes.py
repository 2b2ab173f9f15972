"""Rotation by three axes (M-RoPE): which frequency of a head turns by time, height or width.

Source: transformers 5.23, models/qwen3_vl, `Qwen3VLTextRotaryEmbedding`.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

TIME, HEIGHT, WIDTH = 0, 1, 2


@lru_cache(maxsize=16)
def frequency_axes(sections: tuple[int, ...], num_frequencies: int) -> npt.NDArray[np.int64]:
    """Return the axis of each frequency, (num_frequencies,) int64.

    Axes are interleaved: time, height, width, time, ... from the highest frequency on, as long as
    an axis has frequencies left; time has the rest.

    Args:
        sections: Number of frequencies of time, height and width.
        num_frequencies: Half of the width of a head.
    """
    axes = np.full(num_frequencies, TIME, np.int64)
    for axis in (HEIGHT, WIDTH):
        axes[axis : 3 * sections[axis] : 3] = axis
    axes.flags.writeable = False  # shared
    return axes
