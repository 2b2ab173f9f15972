"""Weights in 8 bits with one scale for each output: half the bytes that a decode step reads.

Activations stay as they are, so that a product is that of the rounded weights, exactly summed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from izwi.config import WEIGHTS
from izwi.errors import InvalidRequest

_LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
# Outputs that are rounded at once: float32 copies of a whole head would take gigabytes.
_BLOCK = 4096
# Of a CUDA device whose kernels read e4m3.
_FP8_CAPABILITY = (8, 9)


@dataclass(frozen=True, slots=True, eq=False)
class NarrowWeight:
    """A (out, in) weight that only products take: values * scale[:, None].

    Attributes:
        values: (out, in) int8 or float8_e4m3fn, contiguous.
        scale: (out,) float32.
    """

    values: Tensor
    scale: Tensor

    @property
    def shape(self) -> torch.Size:
        """(out, in)."""
        return self.values.shape

    @property
    def nbytes(self) -> int:
        """Bytes of values and scales."""
        return self.values.nbytes + self.scale.nbytes

    def wide(self, dtype: torch.dtype) -> Tensor:
        """The weight in another dtype, (out, in): every number rounded once more."""
        # one output in place of two buffers: this runs for every product of many rows
        return self.values.to(dtype).mul_(self.scale[:, None])


Weight: TypeAlias = Tensor | NarrowWeight


def narrowed(weight: Tensor, stored: torch.dtype) -> NarrowWeight:
    """Round a weight to 8 bits; the largest number of each output decides its scale.

    Args:
        weight: (out, in), finite.
        stored: torch.int8 or torch.float8_e4m3fn.
    """
    largest = _LARGEST[stored]
    values = torch.empty(weight.shape, dtype=stored, device=weight.device)
    scale = torch.empty(weight.shape[0], dtype=torch.float32, device=weight.device)
    for start in range(0, weight.shape[0], _BLOCK):
        rows = slice(start, start + _BLOCK)
        block = weight[rows].float()
        peak = block.abs().amax(1)
        scale[rows] = torch.where(peak > 0, peak / largest, 1.0)
        scaled = (block / scale[rows, None]).clamp_(-largest, largest)
        values[rows] = (scaled.round_() if stored == torch.int8 else scaled).to(stored)
    return NarrowWeight(values, scale)


def widen(weight: Weight, dtype: torch.dtype) -> Tensor:
    """A weight as the library's products take it."""
    return weight if isinstance(weight, Tensor) else weight.wide(dtype)


def narrow_dtype(weights: str, device: torch.device) -> torch.dtype | None:
    """The dtype in which weights of products are kept, or None to leave them as they are.

    Args:
        weights: One of WEIGHTS. "int8" works on every device; "fp8" (e4m3) on CUDA devices of
            capability 8.9 and up and, by conversion, on a CPU.
        device: Where they are.

    Raises:
        InvalidRequest: It is unknown, or the device cannot hold it.
    """
    if weights not in WEIGHTS:
        raise InvalidRequest(
            f"weights must be one of {', '.join(WEIGHTS)}, got {weights!r}", param="weights"
        )
    if weights == "fp8" and not _has_fp8(device):
        raise InvalidRequest("weights 'fp8' are not available on this device", param="weights")
    return {"auto": None, "int8": torch.int8, "fp8": torch.float8_e4m3fn}[weights]


def _has_fp8(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= _FP8_CAPABILITY
    return device.type == "cpu"
