"""AWQ, as AutoAWQ writes it ("gemm"): codes are packed along the outputs, in an order of their own.

Each word holds eight outputs; its nibbles, from the lowest, are outputs 0, 2, 4, 6, 1, 3, 5, 7.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace as replaced
from typing import Any

import numpy as np
import numpy.typing as npt

from izwi.checkpoints.formats.layout import (
    Parts,
    common_zero,
    floats,
    group_of_scales,
    part,
    require_scales,
    words_as_codes,
)
from izwi.checkpoints.linear_spec import Bytes, LinearForm, LinearSpec, pack_nibbles
from izwi.errors import CheckpointError

_CODES, _ZEROS, _SCALES = ".qweight", ".qzeros", ".scales"
# Nibble of each of the eight outputs of a word.
_NIBBLE_OF = np.argsort([0, 2, 4, 6, 1, 3, 5, 7])


@dataclass(frozen=True, slots=True)
class Awq:
    """One checkpoint's layout.

    Attributes:
        group: Inputs that share a scale, for the title; each weight's follows from its scales.
    """

    group: int
    codes: tuple[str, ...] = (_CODES,)
    suffixes: tuple[str, ...] = (_CODES, _ZEROS, _SCALES)
    unused: tuple[str, ...] = ()

    @staticmethod
    def from_settings(values: Mapping[str, Any], where: str) -> Awq:
        """Read `quantization_config`; raises CheckpointError for what is not supported."""
        bits = values.get("bits", values.get("w_bit"))
        if bits != 4:
            raise CheckpointError(f"{where}: AWQ with {bits!r} bits is not supported: 4 are")
        version = str(values.get("version", "gemm")).lower()
        if version != "gemm":
            raise CheckpointError(
                f"{where}: AWQ of version {version!r} is not supported: 'gemm' is"
            )
        group = values.get("group_size", values.get("q_group_size", 128))
        return Awq(group if type(group) is int else 128)

    @property
    def title(self) -> str:
        return f"AWQ, 4 bits in groups of {self.group}"

    def form(self, shape: tuple[int, int], parts: Parts) -> LinearForm:
        outputs, inputs = shape
        codes, scales, zeros = (part(parts, name) for name in (_CODES, _SCALES, _ZEROS))
        codes.require((inputs, outputs // 8), "I32", "U32")
        num_groups = scales.shape[0] if scales.shape else 0
        group = group_of_scales(scales, num_groups, inputs)
        require_scales(scales, (num_groups, outputs))
        zeros.require((num_groups, outputs // 8), "I32", "U32")
        return LinearForm(outputs, inputs, 4, group, zero=None)

    def read(self, shape: tuple[int, int], parts: Parts) -> LinearSpec:
        form = self.form(shape, parts)
        zeros = _codes(parts[_ZEROS].array())
        zero = common_zero(zeros)
        return LinearSpec(
            replaced(form, zero=zero),
            pack_nibbles(_codes(parts[_CODES].array())),
            np.ascontiguousarray(floats(parts[_SCALES]).T),
            zeros=None if zero is not None else zeros,
        )


def _codes(words: npt.NDArray[Any]) -> Bytes:
    """Return the codes of (n, outputs / 8) words: (outputs, n)."""
    nibbles = words_as_codes(words, 4).reshape(len(words), -1, 8)
    return np.ascontiguousarray(nibbles[..., _NIBBLE_OF].reshape(len(words), -1).T)
