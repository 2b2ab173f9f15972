"""GGUF's blocks stand for the numbers of ggml's definitions, number by number."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import numpy as np
import pytest

from izwi.checkpoints.formats.gguf_blocks import BLOCK_FORMATS

# One block as a function of the place of a number in it: plain Python over ggml-quants.c.
Block = np.ndarray


def half(block: Block, at: int) -> float:
    return float(np.frombuffer(block[at : at + 2].tobytes(), np.float16)[0])


def nibble(block: Block, at: int, i: int) -> int:
    """Of 32 numbers: the lower halves of 16 bytes, then the upper halves."""
    return int(block[at + i % 16]) >> 4 * (i // 16) & 15


def bit(block: Block, at: int, i: int) -> int:
    return int(block[at + i // 8]) >> i % 8 & 1


def k_scale(block: Block, group: int) -> tuple[int, int]:
    """get_scale_min_k4."""
    q = [int(byte) for byte in block[4:16]]
    if group < 4:
        return q[group] & 63, q[group + 4] & 63
    scale = q[group + 4] & 15 | (q[group - 4] >> 6) << 4
    return scale, q[group + 4] >> 4 | (q[group] >> 6) << 4


def k_code(block: Block, at: int, i: int) -> int:
    """Of 256 numbers: 32 bytes hold 32 numbers in their lower and 32 in their upper halves."""
    return int(block[at + i // 64 * 32 + i % 32]) >> 4 * (i % 64 // 32) & 15


def q4_k(block: Block, i: int) -> float:
    scale, offset = k_scale(block, i // 32)
    return half(block, 0) * scale * k_code(block, 16, i) - half(block, 2) * offset


def q5_k(block: Block, i: int) -> float:
    scale, offset = k_scale(block, i // 32)
    code = k_code(block, 48, i) + 16 * (int(block[16 + i % 32]) >> i // 32 & 1)
    return half(block, 0) * scale * code - half(block, 2) * offset


def q6_k(block: Block, i: int) -> float:
    side, place = divmod(i, 128)
    quarter, column = divmod(place, 32)
    low = int(block[64 * side + 32 * (quarter % 2) + column]) >> 4 * (quarter // 2) & 15
    high = int(block[128 + 32 * side + column]) >> 2 * quarter & 3
    scale = int(np.int8(np.uint8(block[192 + 8 * side + 2 * quarter + column // 16])))
    return half(block, 208) * scale * ((low | high << 4) - 32)


DEFINITIONS: dict[str, Callable[[Block, int], float]] = {
    "Q4_0": lambda b, i: half(b, 0) * (nibble(b, 2, i) - 8),
    "Q4_1": lambda b, i: half(b, 0) * nibble(b, 4, i) + half(b, 2),
    "Q5_0": lambda b, i: half(b, 0) * ((nibble(b, 6, i) | bit(b, 2, i) << 4) - 16),
    "Q5_1": lambda b, i: half(b, 0) * (nibble(b, 8, i) | bit(b, 4, i) << 4) + half(b, 2),
    "Q8_0": lambda b, i: half(b, 0) * int(np.int8(np.uint8(b[2 + i]))),
    "Q4_K": q4_k,
    "Q5_K": q5_k,
    "Q6_K": q6_k,
}
_SCALES = {"Q6_K": (208,), "Q4_0": (0,), "Q5_0": (0,), "Q8_0": (0,)}


def drawn(kind: str, rows: int, blocks: int) -> np.ndarray:
    """Random rows: any byte is a code, and scales are numbers."""
    rng = np.random.default_rng(11)
    form = BLOCK_FORMATS[kind]
    data = rng.integers(0, 256, (rows, blocks, form.num_bytes), np.uint8)
    for at in _SCALES.get(kind, (0, 2)):
        scales = rng.normal(size=(rows, blocks, 1)).astype(np.float16)
        data[..., at : at + 2] = scales.view(np.uint8)
    return data.reshape(rows, -1)


@pytest.mark.parametrize("kind", BLOCK_FORMATS)
def test_every_number_is_that_of_the_definition(kind: str) -> None:
    data, form = drawn(kind, 3, 2), BLOCK_FORMATS[kind]
    spec = form.read(data)
    assert spec.form == form.form(3, 2 * form.inputs)
    assert spec.codes.nbytes * 8 == 3 * 2 * form.inputs * form.bits
    expected = [
        [DEFINITIONS[kind](block, i) for block in row for i in range(form.inputs)]
        for row in data.reshape(3, 2, form.num_bytes)
    ]
    np.testing.assert_allclose(spec.wide(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.skipif(find_spec("gguf") is None, reason="gguf is not installed")
@pytest.mark.parametrize("kind", BLOCK_FORMATS)
def test_numbers_are_those_of_the_package_bit_for_bit(kind: str) -> None:
    import gguf

    data = drawn(kind, 5, 3)
    expected = gguf.dequantize(data, gguf.GGMLQuantizationType[kind])
    assert np.array_equal(BLOCK_FORMATS[kind].read(data).wide(), expected)
