"""Where the kernels' tests run, and how near to torch's numbers they must come."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
# On a CPU kernels are interpreted, which takes as long in each dtype; the interpreter multiplies
# the bits of bfloat16 numbers.
DTYPES: list[Any] = [torch.float32, torch.float16, torch.bfloat16]
if not GPU:
    DTYPES = [torch.float32, pytest.param(torch.float16, marks=pytest.mark.slow)]

NEAR = {torch.float32: 5e-5, torch.float16: 6e-3, torch.bfloat16: 6e-2}


def normal(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normal numbers, the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(DEVICE, dtype)


def assert_near(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """Compare with numbers of about 1 that were computed in float32."""
    assert found.dtype == dtype
    near = NEAR[dtype]
    torch.testing.assert_close(found.float(), expected.float(), atol=near, rtol=near)
