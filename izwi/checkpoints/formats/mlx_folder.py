"""MLX's quantized folders: words of codes in groups with a scale and an offset ("biases")."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from izwi.checkpoints.formats.layout import (
    Parts,
    bits_of,
    floats,
    group_of_scales,
    part,
    require_scales,
)
from izwi.checkpoints.linear_spec import LinearForm, LinearSpec
from izwi.errors import CheckpointError

_CODES, _SCALES, _OFFSETS = ".weight", ".scales", ".biases"
_BITS = (2, 3, 4, 5, 6, 8)


@dataclass(frozen=True, slots=True)
class MlxFolder:
    """One checkpoint's layout; bits and groups of each weight follow from its tensors.

    Attributes:
        bits: Bits of most weights, for the title.
        group: Inputs that share a scale in most weights, for the title.
    """

    bits: int
    group: int
    codes: tuple[str, ...] = (_CODES,)
    suffixes: tuple[str, ...] = (_CODES, _SCALES, _OFFSETS)
    unused: tuple[str, ...] = ()

    @staticmethod
    def from_settings(values: Mapping[str, Any], where: str) -> MlxFolder:
        """Read `quantization`; raises CheckpointError for what is not supported."""
        if (mode := values.get("mode", "affine")) != "affine":
            raise CheckpointError(f"{where}: mode {mode!r} is not supported: 'affine' is")
        bits, group = values.get("bits"), values.get("group_size")
        if bits not in _BITS or type(group) is not int:
            raise CheckpointError(
                f"{where}: {bits!r} bits in groups of {group!r} are not supported: "
                f"{', '.join(map(str, _BITS))} are"
            )
        return MlxFolder(bits, group)

    @property
    def title(self) -> str:
        return f"MLX, {self.bits} bits in groups of {self.group}"

    def form(self, shape: tuple[int, int], parts: Parts) -> LinearForm:
        bits, group = self._bits_and_group(shape, parts)
        return LinearForm(*shape, 4 if bits == 4 else 8, group, has_offsets=True)

    def read(self, shape: tuple[int, int], parts: Parts) -> LinearSpec:
        form, (bits, _) = self.form(shape, parts), self._bits_and_group(shape, parts)
        packed = np.array(parts[_CODES].array()).view(np.uint8)
        if bits not in (4, 8):
            codes = np.unpackbits(packed, axis=1, bitorder="little").reshape(*shape, bits)
            packed = np.packbits(codes, axis=2, bitorder="little")[..., 0]
        return LinearSpec(form, packed, floats(parts[_SCALES]), offsets=floats(parts[_OFFSETS]))

    @staticmethod
    def _bits_and_group(shape: tuple[int, int], parts: Parts) -> tuple[int, int]:
        outputs, inputs = shape
        codes, scales, offsets = (part(parts, name) for name in (_CODES, _SCALES, _OFFSETS))
        bits = bits_of(codes, codes.shape[-1] if codes.shape else 0, inputs, *_BITS)
        codes.require((outputs, inputs * bits // 32), "U32")
        group = group_of_scales(scales, scales.shape[-1] if scales.shape else 0, inputs)
        for tensor in (scales, offsets):
            require_scales(tensor, (outputs, inputs // group))
        return bits, group
