"""G.711: 8-bit logarithmic samples at 8 kHz, mu-law and A-law (ITU-T G.711). Knows no container."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from izwi.arrays import Float32

SAMPLE_RATE = 8000
Law = Literal["mu", "a"]


def decode_g711(data: bytes, law: Law) -> Float32:
    """Return (n,) float32 samples in [-1, 1) of n bytes."""
    decoded: Float32 = _DECODED[law][np.frombuffer(data, np.uint8)]
    return decoded


def encode_g711(samples: Float32, law: Law) -> bytes:
    """Encode (n,) float samples in [-1, 1], each as the nearest value; louder ones are clipped."""
    scaled = np.rint(np.clip(samples, -1.0, 1.0) * 32767.0).astype(np.int32)
    return bytes(_ENCODED[law][scaled + 32768].tobytes())


def _decode_table(law: Law) -> npt.NDArray[np.int32]:
    """(256,) 16-bit values of all bytes; tables 1a to 2b of the recommendation."""
    byte = np.arange(256)
    byte = byte ^ (0xFF if law == "mu" else 0x55)
    exponent, mantissa = (byte >> 4) & 7, byte & 15
    if law == "mu":
        size = (((mantissa << 3) + 132) << exponent) - 132
        signed = np.where(byte & 0x80, -size, size)
    else:
        segment = np.maximum(exponent, 1) - 1
        size = ((mantissa << 4) + 8 + 256 * (exponent > 0)) << segment
        signed = np.where(byte & 0x80, size, -size)
    return signed.astype(np.int32)


def _encode_table(values: npt.NDArray[np.int32]) -> npt.NDArray[np.uint8]:
    """(65536,) bytes of all 16-bit values, from -32768."""
    order = np.argsort(values, kind="stable")
    borders = (values[order][1:] + values[order][:-1]) / 2
    places = np.searchsorted(borders, np.arange(-32768, 32768), side="right")
    return order[places].astype(np.uint8)


_LAWS: tuple[Law, Law] = ("mu", "a")
_VALUES = {law: _decode_table(law) for law in _LAWS}
_DECODED = {law: (values / 32768.0).astype(np.float32) for law, values in _VALUES.items()}
_ENCODED = {law: _encode_table(values) for law, values in _VALUES.items()}
