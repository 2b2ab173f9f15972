"""GPTQ, as AutoGPTQ and GPTQModel write it.

Codes are packed along the inputs, eight or four to a word. The first version of the layout stores
each zero minus one. With "act-order" `g_idx` says in which group each input is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace as replaced
from typing import Any

import numpy as np

from izwi.checkpoints.formats.layout import (
    Parts,
    bits_of,
    common_zero,
    floats,
    group_order,
    part,
    require_scales,
    words_as_codes,
)
from izwi.checkpoints.linear_spec import LinearForm, LinearSpec
from izwi.errors import CheckpointError

_CODES, _ZEROS, _SCALES, _ORDER = ".qweight", ".qzeros", ".scales", ".g_idx"


@dataclass(frozen=True, slots=True)
class Gptq:
    """One checkpoint's layout.

    Attributes:
        bits: 4 or 8.
        group: Inputs that share a scale; -1: all.
        is_symmetric: Whether zero is the middle of the codes.
        is_reordered: Whether groups were formed by "act-order".
        added: What is added to stored zeros: 1 in the first version of the layout.
    """

    bits: int
    group: int
    is_symmetric: bool
    is_reordered: bool
    added: int = 1
    codes: tuple[str, ...] = (_CODES,)
    suffixes: tuple[str, ...] = (_CODES, _ZEROS, _SCALES, _ORDER)
    unused: tuple[str, ...] = ()

    @staticmethod
    def from_settings(values: Mapping[str, Any], where: str) -> Gptq:
        """Read `quantization_config`; raises CheckpointError for what is not supported."""
        bits, version = values.get("bits"), values.get("checkpoint_format", "gptq")
        if bits not in (4, 8):
            raise CheckpointError(f"{where}: GPTQ with {bits!r} bits is not supported: 4 or 8 are")
        if version not in ("gptq", "gptq_v2"):
            raise CheckpointError(
                f"{where}: checkpoint_format {version!r} is not supported: gptq and gptq_v2 are"
            )
        group = values.get("group_size", -1)
        if type(group) is not int or not (group == -1 or group > 0):
            raise CheckpointError(f"{where}: group_size must be -1 or above 0, got {group!r}")
        return Gptq(
            bits,
            group,
            bool(values.get("sym", True)),
            bool(values.get("desc_act", False)),
            0 if version == "gptq_v2" else 1,
        )

    @property
    def title(self) -> str:
        groups = "one group a row" if self.group == -1 else f"groups of {self.group}"
        return f"GPTQ, {self.bits} bits in {groups}" + ", act-order" * self.is_reordered

    def form(self, shape: tuple[int, int], parts: Parts) -> LinearForm:
        outputs, inputs = shape
        codes, scales, zeros = (part(parts, name) for name in (_CODES, _SCALES, _ZEROS))
        if len(codes.shape) == 2:
            bits_of(codes, codes.shape[0], inputs, self.bits)
        codes.require((inputs * self.bits // 32, outputs), "I32", "U32")
        group = inputs if self.group == -1 else self.group
        num_groups = -(-inputs // group)
        require_scales(scales, (num_groups, outputs))
        zeros.require((num_groups, outputs * self.bits // 32), "I32", "U32")
        if _ORDER in parts:
            parts[_ORDER].require((inputs,), "I32", "I64")
        return LinearForm(
            outputs,
            inputs,
            self.bits,
            group,
            zero=1 << self.bits - 1 if self.is_symmetric else None,
            is_reordered=self.is_reordered,
        )

    def read(self, shape: tuple[int, int], parts: Parts) -> LinearSpec:
        form = self.form(shape, parts)
        zeros = words_as_codes(parts[_ZEROS].array(), self.bits)  # (groups, outputs)
        zeros = np.ascontiguousarray(((zeros + self.added) & (1 << self.bits) - 1).T)
        zero, group_of = common_zero(zeros), group_order(parts.get(_ORDER), form)
        return LinearSpec(
            replaced(form, zero=zero, is_reordered=group_of is not None),
            np.ascontiguousarray(parts[_CODES].array().T).view(np.uint8),
            np.ascontiguousarray(floats(parts[_SCALES]).T),
            zeros=None if zero is not None else zeros,
            group_of=group_of,
        )
