"""compressed-tensors, as llm-compressor writes it: packed integers, plain int8, or 8-bit floats.

Packed integers are unsigned, with half of their range added, along the inputs of each output. What
a checkpoint says of activations is not used: they are never quantized here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace as replaced
from typing import Any

import numpy as np
import numpy.typing as npt

from izwi.checkpoints.formats.fp8 import block_of, e4m3_codes, scale_group, scales_of_outputs
from izwi.checkpoints.formats.layout import (
    Parts,
    bits_of,
    common_zero,
    group_order,
    part,
    words_as_codes,
)
from izwi.checkpoints.linear_spec import Bytes, LinearForm, LinearSpec, Numbers
from izwi.errors import CheckpointError

_PACKED, _PLAIN, _SCALES = ".weight_packed", ".weight", ".weight_scale"
_ZEROS, _ORDER = ".weight_zero_point", ".weight_g_idx"
_FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized")


@dataclass(frozen=True, slots=True)
class CompressedTensors:
    """One checkpoint's layout. Each weight's own follows from its tensors.

    Attributes:
        kind: Its format: one of `_FORMATS`.
        scheme: Description of the weights, for the title.
        block: Outputs and inputs of a block with one scale, or None.
    """

    kind: str
    scheme: str
    block: tuple[int, int] | None
    codes: tuple[str, ...] = (_PACKED, _PLAIN)
    suffixes: tuple[str, ...] = (_PACKED, _PLAIN, _SCALES, _ZEROS, _ORDER)
    unused: tuple[str, ...] = (
        ".weight_shape", ".input_scale", ".input_zero_point", ".output_scale",
        ".k_scale", ".v_scale", ".q_scale",
    )  # fmt: skip

    @staticmethod
    def from_settings(values: Mapping[str, Any], where: str) -> CompressedTensors:
        """Read `quantization_config`; raises CheckpointError for what is not supported."""
        kind = str(values.get("format"))
        if kind not in _FORMATS:
            raise CheckpointError(
                f"{where}: format {kind!r} is not supported: {', '.join(_FORMATS)} are"
            )
        for name in ("sparsity_config", "transform_config"):
            if _is_set(values.get(name)):
                raise CheckpointError(f"{where}: {name} is not supported")
        groups = values.get("config_groups")
        if not isinstance(groups, Mapping) or not groups:
            raise CheckpointError(f"{where} lacks the object 'config_groups'")
        weights = [_weights(group, where) for group in groups.values()]
        if len({_scheme(one) for one in weights}) > 1:
            scheme = "several schemes"
        else:
            scheme = _scheme(weights[0])
        blocks = {
            block_of(one.get("block_structure"), f"{where}: block_structure")
            for one in weights
            if one.get("strategy") == "block"
        }
        if len(blocks) > 1:
            raise CheckpointError(f"{where}: block_structure must be the same for all weights")
        return CompressedTensors(kind, scheme, blocks.pop() if blocks else None)

    @property
    def title(self) -> str:
        return f"compressed-tensors, {self.scheme} ({self.kind})"

    def form(self, shape: tuple[int, int], parts: Parts) -> LinearForm:
        outputs, inputs = shape
        group = scale_group(part(parts, _SCALES), shape, self.block)
        zero: int | None
        if _PACKED not in parts:
            codes = part(parts, _PLAIN)
            codes.require(shape, "F8_E4M3", "I8")
            bits, zero, numbers = 8, 128, Numbers.INTEGER
            if codes.dtype == "F8_E4M3":
                return LinearForm(*shape, 8, group, Numbers.E4M3)
            if _ZEROS in parts:
                zero = None
                parts[_ZEROS].require(parts[_SCALES].shape, "I8")
        else:
            codes, numbers = parts[_PACKED], Numbers.INTEGER
            packed = codes.shape[-1] if codes.shape else 0
            bits = bits_of(codes, packed, inputs, 4, 8)
            codes.require((outputs, inputs * bits // 32), "I32", "U32")
            zero = 1 << bits - 1
            if _ZEROS in parts:
                zero = None
                num_groups = -(-inputs // group)
                rows = -(-outputs * bits // 32)
                parts[_ZEROS].require((rows, num_groups), "I32", "U32")
        if _ORDER in parts:
            parts[_ORDER].require((inputs,), "I32", "I64")
        return LinearForm(*shape, bits, group, numbers, zero, is_reordered=_ORDER in parts)

    def read(self, shape: tuple[int, int], parts: Parts) -> LinearSpec:
        form = self.form(shape, parts)
        scales = scales_of_outputs(parts[_SCALES], shape, self.block)
        if form.numbers is Numbers.E4M3:
            return LinearSpec(form, e4m3_codes(parts[_PLAIN]), scales)
        zeros = self._zeros(form, parts)
        zero = form.zero if zeros is None else common_zero(zeros)
        group_of = group_order(parts.get(_ORDER), form)
        return LinearSpec(
            replaced(form, zero=zero, is_reordered=group_of is not None),
            _unsigned(parts[_PLAIN].array())
            if _PACKED not in parts
            else np.array(parts[_PACKED].array()).view(np.uint8),
            scales,
            zeros=zeros if zero is None else None,
            group_of=group_of,
        )

    @staticmethod
    def _zeros(form: LinearForm, parts: Parts) -> Bytes | None:
        """Return the zero of each group, (outputs, groups), or None without them."""
        if _ZEROS not in parts:
            return None
        stored = parts[_ZEROS].array()
        if _PACKED not in parts:
            signed = np.broadcast_to(stored.reshape(-1, form.num_groups), _groups(form))
            return _unsigned(signed)
        zeros = words_as_codes(stored.T, form.bits)[:, : form.outputs]  # (groups, outputs)
        return np.ascontiguousarray(zeros.T)


def _groups(form: LinearForm) -> tuple[int, int]:
    return form.outputs, form.num_groups


def _unsigned(signed: npt.NDArray[np.int8]) -> Bytes:
    """Return signed codes with half of the range added."""
    return np.ascontiguousarray(signed).view(np.uint8) ^ np.uint8(128)


def _weights(group: object, where: str) -> Mapping[str, Any]:
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(weights, Mapping):
        raise CheckpointError(f"{where}: a group of config_groups lacks the object 'weights'")
    kind, bits = weights.get("type"), weights.get("num_bits")
    if (kind, bits) not in (("int", 4), ("int", 8), ("float", 8)):
        raise CheckpointError(
            f"{where}: weights of type {kind!r} with {bits!r} bits are not supported: "
            "int with 4 or 8, and float with 8 are"
        )
    return weights


def _scheme(weights: Mapping[str, Any]) -> str:
    name = "FP8" if weights["type"] == "float" else f"{weights['num_bits']} bits"
    strategy = weights.get("strategy")
    if strategy == "group":
        return f"{name} in groups of {weights.get('group_size')}"
    return f"{name} by {strategy}"


def _is_set(value: object) -> bool:
    """Whether a part of the configuration says anything."""
    if isinstance(value, Mapping):
        return value.get("format", "dense") != "dense" if "format" in value else bool(value)
    return bool(value)
