"""Weights as published checkpoints pack them: codes in groups with scales (`LinearSpec`).

They stay packed where a product has a kernel for them, or widens a few outputs at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import numpy.typing as npt
import torch
from torch import Tensor

from izwi.backends.torch.quantized import KernelWeight, PackedWeight, QuantizedWeight
from izwi.checkpoints.linear_spec import LinearForm, LinearSpec, Numbers

# Outputs widened at once, so that the float32 numbers are still in the processor's cache when
# they are multiplied; a multiple of the columns that a matrix library computes together.
_BLOCK = 256
# The kernels' groups: at most this many inputs, and at least as many as a matrix unit takes.
_LARGEST_GROUP, _SMALLEST_GROUP = 64, 16


@dataclass(frozen=True, slots=True, eq=False)
class GroupedWeight:
    """An (out, in) weight: (number(code) - zero) * scale + offset. See `LinearSpec`.

    Attributes:
        form: Its form; its outputs may be those of several weights.
        codes: (out, in) or (out, in / 2) uint8.
        scale: (out, groups) float32.
        zero: (out, groups) uint8, or None.
        offset: (out, groups) float32, or None.
        group_of: (in,) int64, or None.
        table: (16,) float32, or None.
    """

    form: LinearForm
    codes: Tensor
    scale: Tensor
    zero: Tensor | None = None
    offset: Tensor | None = None
    group_of: Tensor | None = None
    table: Tensor | None = None

    @property
    def shape(self) -> torch.Size:
        """(out, in)."""
        return torch.Size((self.codes.shape[0], self.form.inputs))

    @property
    def nbytes(self) -> int:
        """Size of all arrays in bytes."""
        arrays = (getattr(self, field.name) for field in fields(self))
        return sum(array.nbytes for array in arrays if isinstance(array, Tensor))

    def rows(self, at: slice | Tensor) -> GroupedWeight:
        """Return some outputs, by a slice or an index."""
        zero = None if self.zero is None else self.zero[at]
        offset = None if self.offset is None else self.offset[at]
        return GroupedWeight(
            self.form, self.codes[at], self.scale[at], zero, offset, self.group_of, self.table
        )

    def wide(self, dtype: torch.dtype) -> Tensor:
        """The weight in another dtype, (out, in), computed in float32."""
        values = self._numbers()
        grouped, index = values, self.group_of
        if self.form.has_even_groups:  # then each factor is broadcast to its group
            grouped = values.view(*values.shape[:-1], -1, self.form.group)
        elif index is None:
            index = torch.arange(self.form.inputs, device=values.device) // self.form.group

        def spread(factor: Tensor) -> Tensor:
            return factor[..., None] if index is None else factor[..., index]

        if self.zero is not None:
            grouped.sub_(spread(self.zero))
        grouped.mul_(spread(self.scale))
        if self.offset is not None:
            grouped.add_(spread(self.offset))
        return values.to(dtype)

    def blocks(self, dtype: torch.dtype) -> Iterator[Tensor]:
        """Widen the outputs in blocks, in order."""
        for start in range(0, self.shape[0], _BLOCK):
            yield self.rows(slice(start, start + _BLOCK)).wide(dtype)

    @property
    def block_sizes(self) -> set[tuple[int, int]]:
        """(out, in) of each of `blocks`."""
        outputs, inputs = self.shape
        sizes = {_BLOCK} if outputs >= _BLOCK else set[int]()
        return {(size, inputs) for size in sizes | {outputs % _BLOCK} if size}

    def _numbers(self) -> Tensor:
        """The numbers of all codes, less the common zero: (..., in) float32, its own memory."""
        codes = self.codes
        if self.form.numbers is Numbers.E4M3:
            return _e4m3(codes)
        if self.form.bits == 8:
            values = codes.float()
        else:
            values = torch.empty(*codes.shape, 2, dtype=torch.float32, device=codes.device)
            values[..., 0] = codes & 15
            values[..., 1] = codes >> 4
            values = values.flatten(-2)
        if self.table is not None:
            return self.table[values.long()]
        return values.sub_(self.form.zero) if self.form.zero else values


@dataclass(frozen=True, slots=True, eq=False)
class JoinedWeight:
    """Outputs of several weights of different forms, one after the other.

    Attributes:
        parts: (out, in) each, of the same number of inputs; on CUDA as the kernels read them.
    """

    parts: tuple[Tensor | GroupedWeight | QuantizedWeight, ...]

    @property
    def shape(self) -> torch.Size:
        """(out, in)."""
        return torch.Size((sum(part.shape[0] for part in self.parts), self.parts[0].shape[1]))

    @property
    def nbytes(self) -> int:
        """Size of all parts in bytes."""
        return sum(part.nbytes for part in self.parts)

    def wide(self, dtype: torch.dtype) -> Tensor:
        """The weight in another dtype, (out, in)."""
        return torch.cat([p if isinstance(p, Tensor) else p.wide(dtype) for p in self.parts])

    def blocks(self, dtype: torch.dtype) -> Iterator[Tensor]:
        """Widen the outputs in blocks, in order."""
        for part in self.parts:
            if isinstance(part, GroupedWeight):
                yield from part.blocks(dtype)
            else:
                yield widen(part, dtype)

    @property
    def block_sizes(self) -> set[tuple[int, int]]:
        """(out, in) of each of `blocks`."""
        sizes = set[tuple[int, int]]()
        for part in self.parts:
            outputs, inputs = part.shape
            of_part = part.block_sizes if isinstance(part, GroupedWeight) else {(outputs, inputs)}
            sizes |= of_part
        return sizes


def _e4m3(codes: Tensor) -> Tensor:
    """Return the numbers of e4m3 codes, float32.

    As the upper bits of a float16 they are 256 times too small, subnormal ones included: ten times
    as fast as torch's own conversion on a CPU.
    """
    signs = codes.view(torch.int8).to(torch.int16)  # the sign is extended
    halves = signs.bitwise_left_shift_(7).bitwise_and_(~(1 << 14))
    return halves.view(torch.float16).float().mul_(256)


PublishedWeight: TypeAlias = GroupedWeight | JoinedWeight
Weight: TypeAlias = KernelWeight | PublishedWeight


def widen(weight: Weight, dtype: torch.dtype) -> Tensor:
    """Dequantize a weight for the library's matrix products."""
    return weight if isinstance(weight, Tensor) else weight.wide(dtype)


def grouped_weight(spec: LinearSpec, device: torch.device) -> GroupedWeight:
    """Put a packed weight on a device."""

    def put(array: npt.NDArray[Any] | None) -> Tensor | None:
        if array is None:
            return None
        # torch may write to its arrays, and those of a mapped file cannot be written to
        own = array if array.flags.writeable else array.copy()
        return torch.from_numpy(own).to(device)

    codes, scale = put(spec.codes), put(spec.scales)
    assert codes is not None
    assert scale is not None
    rest = map(put, (spec.zeros, spec.offsets, spec.group_of, spec.table))
    return GroupedWeight(spec.form, codes, scale, *rest)


def joined_weight(parts: Sequence[Tensor | PublishedWeight]) -> PublishedWeight:
    """Join the outputs of weights, of which some are packed."""
    flat: list[Tensor | GroupedWeight | QuantizedWeight] = []
    for part in parts:
        flat += part.parts if isinstance(part, JoinedWeight) else (part,)
    first = flat[0]
    if not isinstance(first, GroupedWeight) or not all(_joins(first, part) for part in flat):
        return JoinedWeight(tuple(flat))
    packed = [part for part in flat if isinstance(part, GroupedWeight)]

    def joined(name: str) -> Tensor | None:
        arrays = [getattr(part, name) for part in packed]
        return None if arrays[0] is None else torch.cat(arrays)

    codes, scale, zero, offset = map(joined, ("codes", "scale", "zero", "offset"))
    assert codes is not None
    assert scale is not None
    return GroupedWeight(first.form, codes, scale, zero, offset, first.group_of, first.table)


def _joins(first: GroupedWeight, other: Tensor | GroupedWeight | QuantizedWeight) -> bool:
    """Whether the outputs of two weights have the same form, groups and table."""
    if not isinstance(other, GroupedWeight):
        return False
    ours, theirs = first.form, other.form
    return _same_form(ours, theirs) and all(
        (a is None) == (b is None) and (a is None or b is None or torch.equal(a, b))
        for a, b in ((first.group_of, other.group_of), (first.table, other.table))
    )


def _same_form(ours: LinearForm, theirs: LinearForm) -> bool:
    names = ("inputs", "bits", "group", "numbers", "zero", "has_offsets", "is_reordered")
    return all(getattr(ours, name) == getattr(theirs, name) for name in names)


def has_kernel(form: LinearForm, *, has_fp8: bool) -> bool:
    """Return whether our kernels multiply a weight of this form as it is.

    They take 4 bits, 8 bits and, where the device reads them, 8-bit floats, with scales and offsets
    of groups of at least 16 inputs, in their order.
    """
    if form.numbers is Numbers.TABLE or not form.has_even_groups:
        return False
    if form.numbers is Numbers.E4M3 and not has_fp8:
        return False
    return _is_by_output(form) or _kernel_group(form) >= _SMALLEST_GROUP


def _is_by_output(form: LinearForm) -> bool:
    """Whether a weight is 8 bits with one scale for each output, and nothing else."""
    is_symmetric = form.numbers is Numbers.E4M3 or form.zero == 128
    return form.bits == 8 and form.num_groups == 1 and is_symmetric and not form.has_offsets


def _kernel_group(form: LinearForm) -> int:
    """Inputs of the largest group that the kernels take, and that no group or half crosses."""
    whole = form.inputs // 2 if form.bits == 4 else form.inputs
    return min(_LARGEST_GROUP, form.group & -form.group, whole & -whole)


def kernel_weight(weight: GroupedWeight) -> QuantizedWeight:
    """Return a weight as our kernels read it; `has_kernel` says of which forms.

    Zeros become offsets, rounded in float32; everything else is exact.
    """
    form = weight.form
    if form.numbers is Numbers.E4M3:
        values = weight.codes.view(torch.float8_e4m3fn)
    elif form.bits == 8:
        values = (weight.codes ^ 128).view(torch.int8)
    else:
        codes = torch.stack([weight.codes & 15, weight.codes >> 4], -1).flatten(1)
        lower, upper = codes.chunk(2, 1)
        values = lower | upper << 4
    if _is_by_output(form):
        return QuantizedWeight(values, weight.scale[:, 0])
    repeats = form.group // _kernel_group(form)

    def repeated(factor: Tensor) -> Tensor:
        return factor if repeats == 1 else factor.repeat_interleave(repeats, 1)

    offset = _offset(weight)
    return PackedWeight(
        values, repeated(weight.scale), None if offset is None else repeated(offset)
    )


def kernel_parts(weight: JoinedWeight) -> JoinedWeight:
    """Return weights that are joined as our kernels read each; as `kernel_weight`."""
    return JoinedWeight(
        tuple(kernel_weight(p) if isinstance(p, GroupedWeight) else p for p in weight.parts)
    )


def _offset(weight: GroupedWeight) -> Tensor | None:
    """Return what is added to values, less the zero of their storage, times their scale."""
    form = weight.form
    if form.numbers is Numbers.E4M3:
        return weight.offset
    stored = 8 if form.bits == 4 else 128
    if weight.zero is None and form.zero == stored:
        return weight.offset
    zero = float(form.zero or 0) if weight.zero is None else weight.zero.float()
    shift = (stored - zero) * weight.scale
    return shift if weight.offset is None else shift + weight.offset


def kernel_bytes(form: LinearForm) -> int:
    """Return the bytes of a weight as our kernels read it."""
    values = form.inputs * form.bits // 8
    if _is_by_output(form):
        return form.outputs * (values + 4)
    stored = 8 if form.bits == 4 else 128
    shifts = form.numbers is not Numbers.E4M3 and form.zero != stored
    factors = 2 if form.has_offsets or shifts else 1
    return form.outputs * (values + 4 * factors * (form.inputs // _kernel_group(form)))
