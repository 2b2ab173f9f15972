"""Weights in 8 or 4 bits by MLX's own quantization, and products with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import mlx.core as mx
import numpy as np

from izwi.checkpoints.linear_spec import LinearForm, LinearSpec, Numbers

# Columns that share a scale and an offset: the first of these that divides the columns.
_GROUPS = (64, 32)
# Groups that MLX multiplies with.
_PACKED_GROUPS = (128, 64, 32)

# Rows for which copying a weight takes longer than what the product gains by it.
_FEW_ROWS = 8


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedMatrix:
    """A weight of products, (out, in).

    Attributes:
        packed: (out, in * bits / 32) uint32.
        scales: (out, in / group).
        offsets: (out, in / group).
        group: Columns that share a scale.
        bits: 8 or 4.
    """

    packed: mx.array
    scales: mx.array
    offsets: mx.array
    group: int
    bits: int

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in)."""
        return self.packed.shape[0], self.packed.shape[1] * 32 // self.bits

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return int(self.packed.nbytes + self.scales.nbytes + self.offsets.nbytes)


@dataclass(frozen=True, slots=True, eq=False)
class JoinedMatrix:
    """Outputs of several weights of different forms, one after the other.

    Attributes:
        parts: (out, in) each.
    """

    parts: tuple[mx.array | QuantizedMatrix, ...]

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return sum(part.nbytes for part in self.parts)


MlxWeight: TypeAlias = mx.array | QuantizedMatrix | JoinedMatrix


def packed_group(form: LinearForm) -> int | None:
    """Return the group in which MLX multiplies a weight of this form; None if it cannot."""
    if form.numbers is not Numbers.INTEGER or not form.has_even_groups:
        return None
    return next((size for size in _PACKED_GROUPS if form.group % size == 0), None)


def packed_bytes(form: LinearForm, itemsize: int) -> int:
    """Return the bytes of a weight as MLX multiplies it; `packed_group` has a group for it."""
    group = packed_group(form)
    assert group is not None
    scales = 2 * itemsize * form.outputs * (form.inputs // group)
    return form.outputs * form.inputs * form.bits // 8 + scales


def packed_matrix(spec: LinearSpec, dtype: mx.Dtype) -> QuantizedMatrix:
    """Return a checkpoint's packed weight as MLX multiplies it; `packed_group` says which can."""
    form, group = spec.form, packed_group(spec.form)
    assert group is not None
    zeros = np.float32(form.zero or 0) if spec.zeros is None else spec.zeros.astype(np.float32)
    offsets = spec.offsets if spec.offsets is not None else -zeros * spec.scales
    repeats = form.group // group
    scales, offsets = (np.repeat(x, repeats, 1) for x in (spec.scales, offsets))
    packed = mx.array(np.ascontiguousarray(spec.codes).view(np.uint32))
    return QuantizedMatrix(
        packed, mx.array(scales).astype(dtype), mx.array(offsets).astype(dtype), group, form.bits
    )


def joined_matrix(parts: Sequence[MlxWeight]) -> MlxWeight:
    """Join the outputs of weights, of which some are packed."""
    flat: list[mx.array | QuantizedMatrix] = []
    for part in parts:
        flat += part.parts if isinstance(part, JoinedMatrix) else (part,)
    packed = [part for part in flat if isinstance(part, QuantizedMatrix)]
    if len(packed) < len(flat) or len({(part.group, part.bits) for part in packed}) > 1:
        return JoinedMatrix(tuple(flat))
    words, scales, offsets = (
        mx.concatenate([getattr(part, name) for part in packed], axis=0)
        for name in ("packed", "scales", "offsets")
    )
    return QuantizedMatrix(words, scales, offsets, packed[0].group, packed[0].bits)


def wide_rows(weight: QuantizedMatrix, index: mx.array) -> mx.array:
    """Return rows of a packed weight as numbers, (*index.shape, in)."""
    packed, scales, offsets = (
        mx.take(x, index, axis=0) for x in (weight.packed, weight.scales, weight.offsets)
    )
    return mx.dequantize(packed, scales, offsets, group_size=weight.group, bits=weight.bits)


def quantized_weight(weight: mx.array, bits: int) -> MlxWeight:
    """Quantize a (out, in) weight to 8 or 4 bits; unchanged if no group divides its columns."""
    group = next((size for size in _GROUPS if weight.shape[1] % size == 0), None)
    if group is None:
        return weight
    packed, scales, offsets = mx.quantize(weight, group_size=group, bits=bits)
    return QuantizedMatrix(packed, scales, offsets, group, bits)


def ready_weight(weight: mx.array) -> mx.array:
    """Prepare a (out, in) weight for products; its values and shape stay the same.

    On a CPU, `x @ weight.T` is two to three times as fast in float32 if the transposed weight is
    contiguous: the reference BLAS then sums many columns at once, each in the same order.
    """
    if mx.default_device().type != mx.cpu or weight.dtype != mx.float32:
        return weight
    transposed = mx.contiguous(weight.T)
    mx.eval(transposed)  # one after the other, so that both layouts are never held of all
    return transposed.T


def product(x: mx.array, weight: MlxWeight, bias: mx.array | None) -> mx.array:
    """X @ weight.T + bias over the last axis."""
    if isinstance(weight, JoinedMatrix):
        out = mx.concatenate([product(x, part, None) for part in weight.parts], axis=-1)
        return out if bias is None else out + bias
    if isinstance(weight, QuantizedMatrix):
        out = mx.quantized_matmul(
            x,
            weight.packed,
            weight.scales,
            weight.offsets,
            transpose=True,
            group_size=weight.group,
            bits=weight.bits,
        )
        return out if bias is None else out + bias
    out = x @ _right_factor(weight, x.size // x.shape[-1])
    return out if bias is None else out + bias


def _right_factor(weight: mx.array, rows: int) -> mx.array:
    """Transpose a weight, contiguously if that is the faster way for so many rows.

    The reference BLAS takes twice as long if its right factor is a view. Each output is the same
    sum in the same order, so its bits do not depend on the rows.
    """
    if rows < _FEW_ROWS or weight.dtype != mx.float32 or mx.default_device().type != mx.cpu:
        return weight.T
    return mx.contiguous(weight.T)  # no copy of weights that are ready
