"""The block formats of GGUF: bytes of rows to `LinearSpec`s.

A row is cut into blocks of 32 or 256 inputs; each block has its scales, and the K formats scale
these once more. Layouts: ggml-common.h and ggml-quants.c of ggml.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from izwi.checkpoints.linear_spec import Bytes, Float32, LinearForm, LinearSpec, pack_nibbles


class _Parts(NamedTuple):
    """Codes, (rows, inputs), scales and offsets, (rows, groups)."""

    codes: Bytes
    scales: Float32
    offsets: Float32 | None = None


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """One format.

    Attributes:
        inputs: Inputs of a block.
        num_bytes: Bytes of a block.
        bits: Bits in which codes are stored here: those of 5 and 6 bits in 8.
        group: Inputs that share a scale.
        zero: The number that stands for zero.
        has_offsets: Whether each group adds an offset.
        split: Reads (rows, blocks, num_bytes).
    """

    inputs: int
    num_bytes: int
    bits: int
    group: int
    zero: int
    has_offsets: bool
    split: Callable[[Bytes], _Parts]

    def form(self, outputs: int, inputs: int) -> LinearForm:
        """Return the form of a weight; `inputs` is a multiple of a block's."""
        return LinearForm(
            outputs, inputs, self.bits, self.group, zero=self.zero, has_offsets=self.has_offsets
        )

    def read(self, data: Bytes) -> LinearSpec:
        """Read the bytes of all rows: (outputs, bytes of a row)."""
        parts = self.split(np.ascontiguousarray(data).reshape(len(data), -1, self.num_bytes))
        codes = pack_nibbles(parts.codes) if self.bits == 4 else parts.codes
        form = self.form(len(data), parts.codes.shape[1])
        return LinearSpec(form, codes, parts.scales, offsets=parts.offsets)


def _halves(blocks: Bytes, at: int, count: int) -> npt.NDArray[np.float32]:
    """Return float16 numbers of each block as float32: (rows, blocks, count)."""
    numbers = np.ascontiguousarray(blocks[..., at : at + 2 * count]).view(np.float16)
    return numbers.astype(np.float32)


def _rows(parts: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return (rows, blocks, ...) as (rows, all the rest)."""
    return np.ascontiguousarray(parts.reshape(len(parts), -1))


def _nibbles(packed: Bytes, run: int) -> Bytes:
    """Return codes of bytes whose lower halves are a run of inputs, and the upper ones the next."""
    runs = packed.reshape(*packed.shape[:2], -1, run)
    both = np.stack([runs & 15, runs >> 4], 3)  # (rows, blocks, runs, 2, run)
    return both.reshape(*packed.shape[:2], -1)


def _q4_0(blocks: Bytes) -> _Parts:
    return _Parts(_rows(_nibbles(blocks[..., 2:], 16)), _rows(_halves(blocks, 0, 1)))


def _q4_1(blocks: Bytes) -> _Parts:
    both = _halves(blocks, 0, 2)
    return _Parts(_rows(_nibbles(blocks[..., 4:], 16)), _rows(both[..., :1]), _rows(both[..., 1:]))


def _q5_0(blocks: Bytes) -> _Parts:
    upper = np.unpackbits(blocks[..., 2:6], axis=-1, bitorder="little")
    codes = _nibbles(blocks[..., 6:], 16) | upper << 4
    return _Parts(_rows(codes), _rows(_halves(blocks, 0, 1)))


def _q5_1(blocks: Bytes) -> _Parts:
    upper = np.unpackbits(blocks[..., 4:8], axis=-1, bitorder="little")
    codes, both = _nibbles(blocks[..., 8:], 16) | upper << 4, _halves(blocks, 0, 2)
    return _Parts(_rows(codes), _rows(both[..., :1]), _rows(both[..., 1:]))


def _q8_0(blocks: Bytes) -> _Parts:
    return _Parts(_rows(blocks[..., 2:] ^ np.uint8(128)), _rows(_halves(blocks, 0, 1)))


def _k_scales(blocks: Bytes) -> tuple[Float32, Float32]:
    """Return scales and offsets of the eight groups of Q4_K and Q5_K blocks.

    A block begins with a scale of the scales and one of the offsets. Twelve bytes follow: of the
    first four groups 6 bits each in bytes 0 to 3 and 4 to 7; of the others 4 bits in the halves of
    bytes 8 to 11, and 2 in the upper bits of the earlier bytes.
    """
    low, high, rest = (blocks[..., 4 + 4 * n : 8 + 4 * n] for n in range(3))
    scales = np.concatenate([low & 63, rest & 15 | low >> 6 << 4], -1)
    offsets = np.concatenate([high & 63, rest >> 4 | high >> 6 << 4], -1)
    both = _halves(blocks, 0, 2)
    return _rows(both[..., :1] * scales), _rows(-(both[..., 1:] * offsets))


def _q4_k(blocks: Bytes) -> _Parts:
    return _Parts(_rows(_nibbles(blocks[..., 16:], 32)), *_k_scales(blocks))


def _q5_k(blocks: Bytes) -> _Parts:
    # bit n of each of 32 bytes belongs to group n
    upper = blocks[..., None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    codes = _nibbles(blocks[..., 48:], 32) | upper.reshape(*blocks.shape[:2], -1) << 4
    return _Parts(_rows(codes), *_k_scales(blocks))


def _q6_k(blocks: Bytes) -> _Parts:
    lower = _nibbles(blocks[..., :128], 64)
    pairs = blocks[..., 128:192].reshape(*blocks.shape[:2], 2, 1, 32)
    upper = pairs >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    codes = lower | upper.reshape(*blocks.shape[:2], -1) << 4
    scales = blocks[..., 192:208].view(np.int8).astype(np.float32)
    return _Parts(_rows(codes), _rows(_halves(blocks, 208, 1) * scales))


BLOCK_FORMATS = {
    "Q4_0": BlockFormat(32, 18, 4, 32, 8, False, _q4_0),
    "Q4_1": BlockFormat(32, 20, 4, 32, 0, True, _q4_1),
    "Q5_0": BlockFormat(32, 22, 8, 32, 16, False, _q5_0),
    "Q5_1": BlockFormat(32, 24, 8, 32, 0, True, _q5_1),
    "Q8_0": BlockFormat(32, 34, 8, 32, 128, False, _q8_0),
    "Q4_K": BlockFormat(256, 144, 4, 32, 0, True, _q4_k),
    "Q5_K": BlockFormat(256, 176, 8, 32, 0, True, _q5_k),
    "Q6_K": BlockFormat(256, 210, 8, 16, 32, False, _q6_k),
}
