"""Products on a CPU with weights that are stored in 16 bits, exactly.

Checkpoints in float16 are computed in float32. FBGEMM multiplies float32 rows by float16 weights in
float32: it reads half of the bytes, and takes two thirds of MKL's time for four rows.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)
from torch import Tensor

ROW_MULTIPLE = 4
# FBGEMM divides many rows so that one or two may remain, which other kernels compute.
_BLOCK_ROWS = 24
_PROBE_ROWS = 64


class HalfProduct:
    """A product with a fixed (out, in) float32 weight, for rows in multiples of ROW_MULTIPLE.

    A row's bits do not depend on the other rows (ADR 5). FBGEMM is used if it is there, the weight
    is exact in float16, and a trial shows those bits; otherwise the product is `F.linear`.
    """

    def __init__(self, weight: Tensor):
        """Pack a weight, and try how the library rounds products with it."""
        self._weight, self._packed = weight, _packed(weight)
        if self.is_packed and not self._rows_agree():
            self._packed = None

    @property
    def is_packed(self) -> bool:
        """Whether FBGEMM multiplies."""
        return self._packed is not None

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply (rows, in) float32 to (rows, out)."""
        if self._packed is None:
            return F.linear(x, self._weight)
        if x.shape[0] <= _BLOCK_ROWS:
            return self._block(x)
        return torch.cat([self._block(block) for block in torch.split(x, _BLOCK_ROWS)])

    def _block(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.quantized.linear_dynamic_fp16.default(x, self._packed)
        return out

    def _rows_agree(self) -> bool:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn((_PROBE_ROWS, self._weight.shape[1]), generator=generator)
        whole = self(x)
        sizes = range(ROW_MULTIPLE, _BLOCK_ROWS + 1, ROW_MULTIPLE)
        return all(torch.equal(self(x[-size:]), whole[-size:]) for size in sizes)


def _packed(weight: Tensor) -> Any | None:
    """Return FBGEMM's form of a weight; None if it would lose bits, or FBGEMM is not there."""
    if not torch.equal(weight.half().float(), weight):
        return None
    try:
        return torch.ops.quantized.linear_prepack_fp16(weight, None)
    except (AttributeError, RuntimeError):  # a build of torch, or a processor, without it
        return None
