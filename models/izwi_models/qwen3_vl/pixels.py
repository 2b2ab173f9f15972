"""Pixels to the encoder's patches, and where the patches of an image stand. Numpy only.

Source: transformers 5.23, `Qwen2VLImageProcessorPil` (which Qwen3-VL uses), vision_utils.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from izwi.arrays import Float32, Int64
from izwi_models.qwen3_vl.config import PixelConfig, VisionConfig

UInt8 = npt.NDArray[np.uint8]


def patches_of(config: VisionConfig, pixels: UInt8) -> UInt8:
    """Cut an image into patches; those that become one token stand together.

    Args:
        config: Sizes of the encoder.
        pixels: (height, width, 3), both multiples of `config.token_pixels`.

    Returns:
        (rows, columns, 3 * patch_size ** 2), contiguous. Its shape tells images of other
        proportions apart; flattened to (patches, ...), it has the encoder's order: token by token,
        and within a token by row and column.
    """
    size, merge = config.patch_size, config.spatial_merge_size
    height, width, channels = pixels.shape
    rows, columns = height // size, width // size
    cut = pixels.reshape(rows // merge, merge, size, columns // merge, merge, size, channels)
    cut = cut.transpose(0, 3, 1, 4, 6, 2, 5)  # (token rows, columns, rows, columns, 3, y, x)
    return np.ascontiguousarray(cut).reshape(rows, columns, channels * size * size)


def normalized(config: PixelConfig, patches: UInt8) -> Float32:
    """Return patches as the encoder takes them: (..., 3 * patch_size ** 2) float32.

    Bit for bit those of the reference, which scales, subtracts and divides one after the other.
    """
    levels = np.arange(256, dtype=np.float64) * (1 / 255)
    # as it rounds: after the scaling, the subtraction and the division
    scaled = levels.astype(np.float32)
    mean, std = (np.array(x, np.float32)[:, None] for x in (config.mean, config.std))
    table = (scaled - mean) / std  # (3, 256)
    channels = patches.reshape(*patches.shape[:-1], 3, -1)
    values: Float32 = table[np.arange(3)[:, None], channels].reshape(patches.shape)
    return values


def token_rows(config: VisionConfig, rows: int, columns: int) -> tuple[Int64, Int64]:
    """Return row and column of each patch in the encoder's order, (patches,) int64 each."""
    merge = config.spatial_merge_size
    blocks = (rows // merge, merge, columns // merge, merge)
    grid = np.indices((rows, columns)).reshape(2, *blocks).transpose(0, 1, 3, 2, 4)
    at_row, at_column = grid.reshape(2, -1)
    return at_row, at_column


@lru_cache(maxsize=32)
def learned_positions(config: VisionConfig, rows: int, columns: int) -> tuple[Int64, Float32]:
    """Return how the learned square of positions is resampled to an image, bilinearly.

    Returns:
        (patches, 4) int64 rows of the table, and (patches, 4) float32 weights.
    """
    taps, weights = [], []
    for at, count in zip(token_rows(config, rows, columns), (rows, columns), strict=True):
        source = at.astype(np.float32) * np.float32(config.side - 1) / np.float32(max(count - 1, 1))
        low = np.floor(source)
        both = low.astype(np.int64)[:, None] + np.arange(2)
        taps.append(both.clip(0, config.side - 1))
        far = np.abs(source[:, None] - low[:, None] - np.arange(2, dtype=np.float32))
        weights.append((1 - far).clip(0, None).astype(np.float32))
    index = taps[0][:, :, None] * config.side + taps[1][:, None, :]
    weight = weights[0][:, :, None] * weights[1][:, None, :]
    return index.reshape(-1, 4), weight.reshape(-1, 4)


@lru_cache(maxsize=32)
def axial_angles(config: VisionConfig, rows: int, columns: int) -> Float32:
    """Return the angles by which each patch's queries and keys turn: (patches, head_dim / 2).

    Half of the frequencies turn by the row, half by the column.
    """
    width = config.head_dim // 2
    exponents = np.arange(0, width, 2, dtype=np.float32) / np.float32(width)
    frequencies = np.float32(1.0) / np.power(np.float32(10_000.0), exponents)
    at = np.stack(token_rows(config, rows, columns), 1).astype(np.float32)
    angles: Float32 = (at[:, :, None] * frequencies).reshape(rows * columns, width)
    return angles
