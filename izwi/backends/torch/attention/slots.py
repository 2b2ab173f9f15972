"""Storage of keys and values in torch: unquantized, or in 8 bits with a scale.

A slot holds one position. A page is a run of slots. One extra slot, the padding slot, pads shorter
rows; it holds zeros and is never written.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from izwi.config import KV_DTYPES
from izwi.errors import InvalidRequest

# largest magnitude that a stored number can have
_LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
_SCALE = torch.float32  # half precision would lose small scales


class KVSlots(Protocol):
    """Keys and values of every layer."""

    page_size: int
    padding_slot: int
    device: torch.device
    planes: tuple[Tensor, ...]  # (layers, slots + 1, ...) each: all data of a slot

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Store keys and values, (tokens, kv_heads, head_dim), in slots (tokens,) int64."""
        ...

    def read(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Copy out keys and values of slots (rows, keys): (rows, keys, kv_heads, head_dim)."""
        ...


class PlainSlots:
    """Keys and values in the dtype of the model, bit for bit."""

    def __init__(
        self,
        shape: tuple[int, int, int, int],
        page_size: int,
        device: torch.device,
        dtype: torch.dtype,
    ):
        """Allocate.

        Args:
            shape: (layers, pages, kv_heads, head_dim).
            page_size: Slots of one page.
            device: Device of the arrays.
            dtype: Dtype of the keys and values of a step.
        """
        layers, pages, heads, head_dim = shape
        self.page_size, self.device = page_size, device
        self.padding_slot = pages * page_size
        size = (layers, self.padding_slot + 1, heads, head_dim)
        self._keys = torch.empty(size, device=device, dtype=dtype)
        self._values = torch.empty(size, device=device, dtype=dtype)
        self.planes: tuple[Tensor, ...] = (self._keys, self._values)
        for plane in self.planes:
            plane[:, self.padding_slot].zero_()

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        self._keys[layer][slots] = k
        self._values[layer][slots] = v

    def read(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        return _gather(self._keys[layer], slots), _gather(self._values[layer], slots)


class QuantizedSlots:
    """Keys and values in 8 bits, with one float32 scale for each (slot, head).

    The scale depends only on the position's own values, so the stored bits depend neither on
    prompt chunks nor on the batch. int8 is usually more accurate, because the values of one head
    have similar magnitudes; fp8 preserves small values beside large ones.
    """

    def __init__(
        self,
        shape: tuple[int, int, int, int],
        page_size: int,
        device: torch.device,
        dtype: torch.dtype,
        stored: torch.dtype,
    ):
        """Allocate.

        Args:
            shape: (layers, pages, kv_heads, head_dim).
            page_size: Slots of one page.
            device: Device of the arrays.
            dtype: Dtype of the keys and values of a step.
            stored: torch.int8 or torch.float8_e4m3fn.
        """
        layers, pages, heads, head_dim = shape
        self.page_size, self.device, self._dtype = page_size, device, dtype
        self.padding_slot = pages * page_size
        slots = (layers, self.padding_slot + 1, heads)
        self._keys, self._values = (
            torch.empty((*slots, head_dim), device=device, dtype=stored) for _ in range(2)
        )
        self._key_scales, self._value_scales = (
            torch.empty(slots, device=device, dtype=_SCALE) for _ in range(2)
        )
        self.planes: tuple[Tensor, ...] = (
            self._keys,
            self._values,
            self._key_scales,
            self._value_scales,
        )
        for plane in self.planes:
            plane[:, self.padding_slot].zero_()

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        for x, codes, scales in (
            (k, self._keys[layer], self._key_scales[layer]),
            (v, self._values[layer], self._value_scales[layer]),
        ):
            quantized, scale = quantize(x, codes.dtype)
            codes[slots] = quantized
            scales[slots] = scale

    def read(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        return (
            self._dequantized(self._keys[layer], self._key_scales[layer], slots),
            self._dequantized(self._values[layer], self._value_scales[layer], slots),
        )

    def _dequantized(self, codes: Tensor, scales: Tensor, slots: Tensor) -> Tensor:
        return dequantize(_gather(codes, slots), _gather(scales, slots), self._dtype)


def quantize(x: Tensor, stored: torch.dtype) -> tuple[Tensor, Tensor]:
    """Quantize vectors to 8 bits.

    Args:
        x: (..., head_dim).
        stored: torch.int8 or torch.float8_e4m3fn.

    Returns:
        (..., head_dim) in `stored`, and (...) float32 scales. Non-finite vectors dequantize to NaN.
    """
    wide = x.float()
    scale = wide.abs().amax(-1) / _LARGEST[stored]
    scaled = wide / scale.clamp(min=torch.finfo(_SCALE).tiny)[..., None]
    scaled = scaled.clamp(-_LARGEST[stored], _LARGEST[stored])
    if stored == torch.int8:
        scaled = scaled.round()
    return scaled.to(stored), scale


def dequantize(codes: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Invert `quantize`."""
    return (codes.float() * scales[..., None]).to(dtype)


def stored_dtype(kv_dtype: str, dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """Return the dtype in which keys and values are stored.

    Args:
        kv_dtype: One of KV_DTYPES. "auto" keeps `dtype`; "int8" works on every device; "fp8" (e4m3)
            on CUDA and, by conversion, on a CPU.
        dtype: Dtype of the model.
        device: Device of the model.

    Raises:
        InvalidRequest: `kv_dtype` is unknown, or the device does not support it.
    """
    if kv_dtype not in KV_DTYPES:
        raise InvalidRequest(f"kv_dtype {kv_dtype!r} is not one of {KV_DTYPES}", param="kv_dtype")
    if kv_dtype == "fp8" and device.type not in ("cpu", "cuda"):
        raise InvalidRequest(f"kv_dtype 'fp8' is not available on {device.type}", param="kv_dtype")
    return {"auto": dtype, "int8": torch.int8, "fp8": torch.float8_e4m3fn}[kv_dtype]


def bytes_per_slot(layers: int, heads: int, head_dim: int, stored: torch.dtype) -> int:
    """Return the bytes of one position, including scales."""
    scale_bytes = _SCALE.itemsize if stored in _LARGEST else 0
    return 2 * layers * heads * (head_dim * stored.itemsize + scale_bytes)


def _gather(plane: Tensor, slots: Tensor) -> Tensor:
    # the same as plane[slots], but on a CPU index_select copies whole rows: 4 to 9 times faster
    return plane.index_select(0, slots.flatten()).view(*slots.shape, *plane.shape[1:])
