"""Convert between float samples and PCM. Knows no container."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from izwi.arrays import Float32

# Integer PCM of n bits covers [-2^(n-1), 2^(n-1)), so full scale is a power of two when read.
_FULL_SCALE = {"i2": 2.0**15, "i4": 2.0**31}


def to_s16le(samples: Float32) -> bytes:
    """Encode float samples in [-1, 1] as little-endian 16-bit PCM; louder samples are clipped."""
    scaled = np.rint(np.clip(samples, -1.0, 1.0) * 32767.0)
    return bytes(scaled.astype("<i2").tobytes())


def from_s16le(pcm: bytes) -> Float32:
    """Decode little-endian 16-bit PCM to float32 in [-1, 1); an odd last byte is dropped."""
    whole = len(pcm) - len(pcm) % 2
    return np.frombuffer(pcm[:whole], dtype="<i2").astype(np.float32) / np.float32(2.0**15)


def to_float(samples: npt.NDArray[Any]) -> Float32:
    """Scale samples of any PCM type (u8, s16, s32, float) to float32 in [-1, 1]."""
    if samples.dtype == np.uint8:
        return (samples.astype(np.float32) - np.float32(128.0)) / np.float32(128.0)
    if samples.dtype.kind == "i":
        scale = _FULL_SCALE[samples.dtype.str[1:]]
        return (samples / scale).astype(np.float32)
    return samples.astype(np.float32)
