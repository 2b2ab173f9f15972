"""NF4, as bitsandbytes writes it: codes of a table of 16 numbers, in blocks with a largest one.

With double quantization the blocks' largest numbers are codes themselves, of a table of 256.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from izwi.checkpoints.formats.layout import Parts, floats, part, require_scales
from izwi.checkpoints.linear_spec import Float32, LinearForm, LinearSpec, Numbers
from izwi.checkpoints.stored_tensor import StoredTensor
from izwi.errors import CheckpointError

_CODES, _LARGEST, _TABLE = ".weight", ".weight.absmax", ".weight.quant_map"
_OUTER, _OUTER_TABLE = ".weight.nested_absmax", ".weight.nested_quant_map"
_STATES = tuple(f".weight.quant_state.bitsandbytes__{kind}" for kind in ("nf4", "fp4"))


@dataclass(frozen=True, slots=True)
class Bitsandbytes:
    """One checkpoint's layout."""

    kind: str
    codes: tuple[str, ...] = (_CODES,)
    suffixes: tuple[str, ...] = (_CODES, _LARGEST, _TABLE, _OUTER, _OUTER_TABLE, *_STATES)
    unused: tuple[str, ...] = ()

    @staticmethod
    def from_settings(values: Mapping[str, Any], where: str) -> Bitsandbytes:
        """Read `quantization_config`; raises CheckpointError for what is not supported."""
        if not values.get("load_in_4bit"):
            raise CheckpointError(
                f"{where}: bitsandbytes with 8 bits is not supported: 4 bits (load_in_4bit) are"
            )
        if (storage := values.get("bnb_4bit_quant_storage", "uint8")) != "uint8":
            raise CheckpointError(
                f"{where}: bnb_4bit_quant_storage {storage!r} is not supported: 'uint8' is"
            )
        return Bitsandbytes(str(values.get("bnb_4bit_quant_type", "fp4")).upper())

    @property
    def title(self) -> str:
        return f"bitsandbytes, {self.kind}"

    def form(self, shape: tuple[int, int], parts: Parts) -> LinearForm:
        outputs, inputs = shape
        part(parts, _CODES).require((outputs * inputs // 2, 1), "U8")
        largest = part(parts, _LARGEST)
        num_blocks = largest.shape[0] if largest.shape else 0
        if num_blocks < 1 or num_blocks % outputs or inputs % (num_blocks // outputs):
            raise CheckpointError(
                f"{largest.path}: tensor {largest.name!r} is {largest.shape}: its blocks do not "
                f"divide the rows of {shape}"
            )
        require_scales(part(parts, _TABLE), (16,))
        return LinearForm(*shape, 4, inputs * outputs // num_blocks, Numbers.TABLE)

    def read(self, shape: tuple[int, int], parts: Parts) -> LinearSpec:
        form = self.form(shape, parts)
        packed = np.array(parts[_CODES].array()).reshape(shape[0], -1)
        return LinearSpec(
            form,
            packed >> np.uint8(4)
            | packed << np.uint8(4),  # the first of two codes is in the upper half
            self._scales(parts).reshape(shape[0], -1),
            table=floats(parts[_TABLE]),
        )

    @staticmethod
    def _scales(parts: Parts) -> Float32:
        largest = parts[_LARGEST]
        if largest.is_float:
            return floats(largest)
        outer, table = part(parts, _OUTER), part(parts, _OUTER_TABLE)
        require_scales(table, (256,))
        state = next((parts[name] for name in _STATES if name in parts), None)
        if state is None:
            part(parts, _STATES[0])
        assert state is not None
        largest.require(largest.shape, "U8")
        block, offset = _nested_sizes(state)
        require_scales(outer, (-(-largest.shape[0] // block),))
        scale = np.repeat(floats(outer), block)[: largest.shape[0]]
        return np.asarray(floats(table)[largest.array()] * scale + offset, np.float32)


def _nested_sizes(state: StoredTensor) -> tuple[int, np.float32]:
    """Read how many blocks share a scale, and what is added to all, from the stored JSON."""
    try:
        values = json.loads(bytes(state.array()))
        block, offset = values["nested_blocksize"], np.float32(values["nested_offset"])
        if type(block) is not int or block < 1:
            raise ValueError(f"nested_blocksize is {block!r}")
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{state.path}: tensor {state.name!r} is not of the published form: {error!r}"
        ) from error
    return block, offset
