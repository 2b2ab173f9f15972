"""The tables of operations that are installed, and arrays for each."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from izwi.ops import Ops
from tests.ops.devices import DEVICE

HAS_MLX = importlib.util.find_spec("mlx") is not None
NAMES = ["torch", "mlx"]


def table(name: str, dtype: str = "float32") -> Ops:
    """Operations by the name of a backend; skips where it is not installed."""
    if name == "mlx":
        if not HAS_MLX:
            pytest.skip("mlx is not installed")
        from izwi.backends.mlx.ops import DTYPES as MLX_DTYPES
        from izwi.backends.mlx.ops import MlxOps

        return MlxOps(MLX_DTYPES[dtype])
    from izwi.backends.torch.backend import DTYPES
    from izwi.backends.torch.ops import TorchOps

    return TorchOps(DEVICE, DTYPES[dtype])


def normal(*shape: int, seed: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Normal numbers, float32."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


each_backend: Callable[..., Any] = pytest.mark.parametrize("backend", NAMES)
