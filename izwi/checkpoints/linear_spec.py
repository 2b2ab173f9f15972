"""The weight of a linear layer in packed form, as published checkpoints hold it. Knows no format.

Every format of `izwi.checkpoints.formats` is read into this one form, and backends multiply it or
widen it. A weight is (outputs, inputs) codes of 4 or 8 bits; inputs share scales in groups:

    value = (number(code) - zero) * scale + offset
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Float32 = npt.NDArray[np.float32]


class Numbers(Enum):
    """What number a code stands for."""

    INTEGER = "the code itself"
    E4M3 = "an 8-bit float with 4 bits of exponent"
    TABLE = "an entry of a table"


@dataclass(frozen=True, slots=True)
class LinearForm:
    """The form of a packed weight: what is known of it without reading it.

    Attributes:
        outputs: Rows.
        inputs: Columns.
        bits: Bits of a stored code: 4 or 8.
        group: Inputs that share a scale; the last group may be shorter.
        numbers: What a code stands for.
        zero: The number that stands for zero; None if each group has its own.
        has_offsets: Whether each group adds an offset.
        is_reordered: Whether the inputs of a group are not adjacent ("act-order").
    """

    outputs: int
    inputs: int
    bits: int
    group: int
    numbers: Numbers = Numbers.INTEGER
    zero: int | None = 0
    has_offsets: bool = False
    is_reordered: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """(outputs, inputs)."""
        return self.outputs, self.inputs

    @property
    def num_groups(self) -> int:
        """Groups of each output."""
        return -(-self.inputs // self.group)

    @property
    def has_even_groups(self) -> bool:
        """Whether groups are adjacent inputs, and equally many."""
        return self.inputs % self.group == 0 and not self.is_reordered

    @property
    def num_bytes(self) -> int:
        """Size of all arrays of a `LinearSpec` in bytes."""
        each_group = 4 + (self.zero is None) + 4 * self.has_offsets
        codes = self.outputs * self.inputs * self.bits // 8
        shared = 8 * self.inputs * self.is_reordered + 64 * (self.numbers is Numbers.TABLE)
        return codes + self.outputs * self.num_groups * each_group + shared


@dataclass(frozen=True, slots=True, eq=False)
class LinearSpec:
    """A packed weight.

    Attributes:
        form: Its form.
        codes: (outputs, inputs) uint8, or (outputs, inputs / 2) for 4 bits: byte j holds input 2j
            in its lower half and input 2j + 1 in its upper half.
        scales: (outputs, groups) float32.
        zeros: (outputs, groups) uint8 where `form.zero` is None.
        offsets: (outputs, groups) float32 where `form.has_offsets`.
        group_of: (inputs,) int64 where `form.is_reordered`.
        table: (16,) float32 where codes stand for entries of a table.
    """

    form: LinearForm
    codes: Bytes
    scales: Float32
    zeros: Bytes | None = None
    offsets: Float32 | None = None
    group_of: npt.NDArray[np.int64] | None = None
    table: Float32 | None = None

    def wide(self) -> Float32:
        """Compute the weight, (outputs, inputs) float32."""
        form, values = self.form, self._numbers()
        grouped, group_of = values, self.group_of
        if form.has_even_groups:  # then each factor is broadcast to its group
            grouped = values.reshape(form.outputs, -1, form.group)
        elif group_of is None:
            group_of = np.arange(form.inputs) // form.group

        def spread(factor: npt.NDArray[Any]) -> npt.NDArray[Any]:
            return factor[..., None] if group_of is None else factor[:, group_of]

        if self.zeros is not None:
            grouped -= spread(self.zeros)
        elif form.zero:
            grouped -= np.float32(form.zero)
        grouped *= spread(self.scales)
        if self.offsets is not None:
            grouped += spread(self.offsets)
        return values

    def _numbers(self) -> Float32:
        codes = unpack_nibbles(self.codes) if self.form.bits == 4 else self.codes
        if self.form.numbers is Numbers.E4M3:
            return E4M3[codes]
        if self.table is not None:
            return self.table[codes]
        return codes.astype(np.float32)


def unpack_nibbles(packed: npt.NDArray[Any]) -> Bytes:
    """Return the 4-bit codes of (..., n) bytes, lower halves first: (..., 2n)."""
    codes = np.empty((*packed.shape, 2), np.uint8)
    codes[..., 0] = packed & 15
    codes[..., 1] = packed >> 4
    return codes.reshape(*packed.shape[:-1], -1)


def pack_nibbles(codes: Bytes) -> Bytes:
    """Return the bytes of (..., 2n) 4-bit codes; the inverse of `unpack_nibbles`."""
    return codes[..., ::2] | codes[..., 1::2] << np.uint8(4)


def _e4m3(code: int) -> float:
    """Return the number of a code: sign, four bits of exponent (bias 7), three of mantissa."""
    exponent, mantissa = code >> 3 & 15, code & 7
    if code & 0x7F == 0x7F:
        return math.nan
    size = (8 + mantissa) * 2.0 ** (exponent - 10) if exponent else mantissa * 2.0**-9
    return -size if code & 0x80 else size


# The number of each code of float8_e4m3fn: no infinities, and two codes that are no number.
E4M3: Float32 = np.array([_e4m3(code) for code in range(256)], np.float32)
