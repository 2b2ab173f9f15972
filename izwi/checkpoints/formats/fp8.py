"""8-bit floats (e4m3) with scales, as Qwen publishes them and as others do.

`weight_scale_inv` or `weight_scale` has one scale, one for each output, or one for each block of
some outputs and inputs (128 by 128). Despite its name, the former is multiplied as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from izwi.checkpoints.formats.layout import Parts, floats, part, require_scales
from izwi.checkpoints.linear_spec import Bytes, Float32, LinearForm, LinearSpec, Numbers
from izwi.checkpoints.stored_tensor import StoredTensor
from izwi.errors import CheckpointError

CODES = ".weight"
_SCALES = (".weight_scale_inv", ".weight_scale")


@dataclass(frozen=True, slots=True)
class Fp8:
    """One checkpoint's layout.

    Attributes:
        block: Outputs and inputs of a block with one scale; None: see the scales.
    """

    block: tuple[int, int] | None
    codes: tuple[str, ...] = (CODES,)
    suffixes: tuple[str, ...] = (CODES, *_SCALES)
    unused: tuple[str, ...] = (".input_scale", ".k_scale", ".v_scale")

    @staticmethod
    def from_settings(values: Mapping[str, Any], where: str) -> Fp8:
        """Read `quantization_config`; raises CheckpointError for what is not supported."""
        if (kind := values.get("fmt", "e4m3")) != "e4m3":
            raise CheckpointError(f"{where}: floats of {kind!r} are not supported: 'e4m3' is")
        return Fp8(block_of(values.get("weight_block_size"), f"{where}: weight_block_size"))

    @property
    def title(self) -> str:
        if self.block is None:
            return "FP8 (e4m3)"
        return f"FP8 (e4m3) in blocks of {self.block[0]} by {self.block[1]}"

    def form(self, shape: tuple[int, int], parts: Parts) -> LinearForm:
        part(parts, CODES).require(shape, "F8_E4M3")
        scales = next((parts[name] for name in _SCALES if name in parts), None)
        if scales is None:
            part(parts, _SCALES[0])
        assert scales is not None
        group = scale_group(scales, shape, self.block)
        return LinearForm(*shape, 8, group, Numbers.E4M3)

    def read(self, shape: tuple[int, int], parts: Parts) -> LinearSpec:
        form = self.form(shape, parts)
        scales = next(parts[name] for name in _SCALES if name in parts)
        values = scales_of_outputs(scales, shape, self.block)
        return LinearSpec(form, e4m3_codes(parts[CODES]), values)


def e4m3_codes(stored: StoredTensor) -> Bytes:
    """Read codes of numbers. Raises CheckpointError if some are no numbers."""
    codes = np.array(stored.array())
    if (codes & 0x7F == 0x7F).any():
        raise CheckpointError(
            f"{stored.path}: tensor {stored.name!r} has values that are no numbers"
        )
    return codes


def block_of(value: object, where: str) -> tuple[int, int] | None:
    """Read the size of blocks. Raises CheckpointError."""
    if value is None:
        return None
    if not (isinstance(value, list) and len(value) == 2 and all(type(n) is int for n in value)):
        raise CheckpointError(f"{where} must be two numbers, got {value!r}")
    if min(value) < 1:
        raise CheckpointError(f"{where} must be two numbers above 0, got {value!r}")
    return value[0], value[1]


def scale_group(scales: StoredTensor, shape: tuple[int, int], block: tuple[int, int] | None) -> int:
    """Return the inputs that share a scale; raises CheckpointError for scales of another shape."""
    outputs, inputs = shape
    if scales.shape in ((), (1,), (1, 1), (outputs,), (outputs, 1)):
        require_scales(scales, scales.shape)
        return inputs
    if block is not None:
        require_scales(scales, (-(-outputs // block[0]), -(-inputs // block[1])))
        return min(block[1], inputs)
    if len(scales.shape) == 2 and scales.shape[1] and inputs % scales.shape[1] == 0:
        require_scales(scales, (outputs, scales.shape[1]))
        return inputs // scales.shape[1]
    require_scales(scales, (outputs, 1))
    return inputs


def scales_of_outputs(
    scales: StoredTensor, shape: tuple[int, int], block: tuple[int, int] | None
) -> Float32:
    """Read scales: (outputs, groups)."""
    values = floats(scales)
    if values.size == 1:
        return np.full((shape[0], 1), values.reshape(-1)[0], np.float32)
    if values.ndim == 1 or values.shape[0] == shape[0]:
        return values.reshape(shape[0], -1)
    assert block is not None
    return np.repeat(values, block[0], 0)[: shape[0]]
