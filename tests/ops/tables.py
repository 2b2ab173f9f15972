"""The tables of operations that are installed, and arrays for each."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from izwi.ops import Ops
from izwi.ops.protocol import CoreOps
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


CORE = [name for name in dir(CoreOps) if not name.startswith("_")]


class Composed(Ops):
    """A backend that has the core alone: that of another one."""


def composed(ops: Ops) -> Ops:
    """The compositions over a backend's core."""
    kinds = {name: staticmethod(getattr(ops, name)) for name in CORE}
    return type("Composed", (Composed,), kinds)()  # type: ignore[no-any-return]


each_backend: Callable[..., Any] = pytest.mark.parametrize("backend", NAMES)
