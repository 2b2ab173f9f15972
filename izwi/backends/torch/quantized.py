"""Quantized weights (8 or 4 bits), so that a decode step reads half or a quarter of the bytes.

8-bit weights have one scale per output; 4-bit weights, and those of checkpoints, may have one per
group of inputs. Activations are not quantized: the only error is the rounding of the weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from izwi.config import WEIGHTS, require_one_of
from izwi.errors import InvalidRequest

_LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
# Storage dtype of 4-bit values: two per byte.
FOUR_BITS = torch.uint8
# Maximum inputs per group: with a float32 scale for each group, a weight takes 4.5 bits.
_GROUP = 64
# Outputs quantized at once: a float32 copy of a whole head would take gigabytes.
_BLOCK = 4096
# Minimum compute capability of CUDA devices whose kernels read e4m3.
_FP8_CAPABILITY = (8, 9)


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedWeight:
    """A quantized (out, in) weight for matrix products: values * scale[:, None].

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
        """Size of values and scales in bytes."""
        return self.values.nbytes + self.scale.nbytes

    def wide(self, dtype: torch.dtype) -> Tensor:
        """The weight in another dtype, (out, in): every number rounded once more."""
        # one buffer instead of two: this runs for every product of many rows
        return self.values.to(dtype).mul_(self.scale[:, None])


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeight(QuantizedWeight):
    """An (out, in) weight in groups of inputs: values * scale + offset, in 4 or 8 bits.

    Attributes:
        values: 8 bits: (out, in) int8 or float8_e4m3fn. 4 bits: (out, in / 2) uint8; byte j holds
            input j in its lower half and input in / 2 + j in its upper half, each plus 8. Adjacent
            bytes hold adjacent inputs, so that a product can use each half without reordering.
            Contiguous.
        scale: (out, groups) float32; input k is in group k // group, and in 4 bits no group has
            inputs of both halves.
        offset: (out, groups) float32, or None for none.
    """

    offset: Tensor | None = None

    @property
    def per_byte(self) -> int:
        """Values in a byte: 2 or 1."""
        return 2 if self.values.dtype == FOUR_BITS else 1

    @property
    def shape(self) -> torch.Size:
        """(out, in)."""
        outputs, width = self.values.shape
        return torch.Size((outputs, self.per_byte * width))

    @property
    def nbytes(self) -> int:
        """Size of all arrays in bytes."""
        offsets = 0 if self.offset is None else self.offset.nbytes
        return self.values.nbytes + self.scale.nbytes + offsets

    @property
    def group(self) -> int:
        """Number of inputs that share a scale; a power of two."""
        return self.shape[1] // self.scale.shape[1]

    def wide(self, dtype: torch.dtype) -> Tensor:
        """The weight in another dtype, (out, in): every number rounded once more."""
        if self.per_byte == 1:
            whole = self.values.to(dtype)
        else:
            whole = torch.cat([self.values & 15, self.values >> 4], 1).to(dtype).sub_(8)
        grouped = whole.view(*self.scale.shape, self.group)
        if self.offset is None:
            return grouped.mul_(self.scale[..., None]).flatten(1)
        # in float32, or the sum would be rounded twice
        shifted = grouped.float().mul_(self.scale[..., None]).add_(self.offset[..., None])
        return shifted.to(dtype).flatten(1)


# What our kernels multiply.
KernelWeight: TypeAlias = Tensor | QuantizedWeight


def quantized_weight(weight: Tensor, stored: torch.dtype) -> QuantizedWeight:
    """Quantize a weight; the largest magnitude of each output or group sets its scale.

    Args:
        weight: (out, in), finite.
        stored: torch.int8, torch.float8_e4m3fn, or FOUR_BITS.

    Raises:
        ValueError: 4 bits need an even number of inputs.
    """
    if stored == FOUR_BITS:
        return _packed(weight)
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
    return QuantizedWeight(values, scale)


def _packed(weight: Tensor) -> PackedWeight:
    outputs, inputs = weight.shape
    if inputs % 2:
        raise ValueError(f"{inputs} inputs cannot be packed two into a byte: use an even number")
    half = inputs // 2
    group = min(_GROUP, half & -half)  # the largest power of two that divides a half
    values = torch.empty((outputs, half), dtype=torch.uint8, device=weight.device)
    scale = torch.empty((outputs, inputs // group), dtype=torch.float32, device=weight.device)
    for start in range(0, outputs, _BLOCK):
        rows = slice(start, start + _BLOCK)
        block = weight[rows].float().view(-1, inputs // group, group)
        # the range has one more number below 0 than above: the largest magnitude maps to it
        peak = block.gather(2, block.abs().argmax(2, keepdim=True))[..., 0]
        scale[rows] = torch.where(peak != 0, peak / -8, 1.0)
        whole = (block / scale[rows, :, None]).round_().clamp_(-8, 7).add_(8).flatten(1)
        lower, upper = whole.to(torch.uint8).chunk(2, 1)
        values[rows] = lower | upper << 4
    return PackedWeight(values, scale)


def quantized_dtype(weights: str, device: torch.device) -> torch.dtype | None:
    """Return the dtype in which to store weights, or None to leave them unquantized.

    Args:
        weights: One of WEIGHTS. "int8" and "int4" work on every device; "fp8" (e4m3) on CUDA
            devices of capability 8.9 and up and, by conversion, on a CPU.
        device: Device of the weights.

    Raises:
        InvalidRequest: `weights` is unknown, or the device does not support it.
    """
    require_one_of("weights", weights, WEIGHTS)
    if weights == "fp8" and not has_fp8(device):
        raise InvalidRequest("weights 'fp8' are not available on this device", param="weights")
    kinds = {"int8": torch.int8, "fp8": torch.float8_e4m3fn, "int4": FOUR_BITS}
    return kinds.get(weights)


def has_fp8(device: torch.device) -> bool:
    """Return whether products read e4m3 there: our kernels on CUDA, or a conversion on a CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= _FP8_CAPABILITY
    return device.type == "cpu"
