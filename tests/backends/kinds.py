"""The backends that are installed, on the device that tests run on."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from izwi.backends.protocol import Backend
from izwi.backends.torch.backend import torch_backend

HAS_MLX = importlib.util.find_spec("mlx") is not None
AHEAD = "mlx ahead"  # MLX that launches the next step before it awaits the last one


@cache
def _made(name: str, dtype: str) -> Backend:
    if name != "torch":
        from izwi.backends.mlx.backend import mlx_backend

        return mlx_backend(dtype, launches_ahead=name == AHEAD)
    return torch_backend("cpu", dtype)


def backend_of(name: str, dtype: str = "float32") -> Backend:
    """A backend by name; skips where it is not installed."""
    if name != "torch" and not HAS_MLX:
        pytest.skip("mlx is not installed")
    return _made(name, dtype)


each_backend: Callable[..., Any] = pytest.mark.parametrize("backend", ["torch", "mlx"])
each_and_ahead: Callable[..., Any] = pytest.mark.parametrize("backend", ["torch", "mlx", AHEAD])
# for what the loop does whatever computes: tests/backends has what MLX itself is asked for
mlx_at_night: Callable[..., Any] = pytest.mark.parametrize(
    "backend", ["torch", pytest.param("mlx", marks=pytest.mark.slow)]
)
needs_mlx = pytest.mark.skipif(not HAS_MLX, reason="mlx is not installed")
