"""Choose a device and a dtype, and bind the operations to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from izwi.errors import InvalidRequest
from izwi.ops.torch_ops import TorchOps
from izwi.runner.weights import load_weights

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class TorchBackend:
    """Torch on one device in one dtype."""

    ops: TorchOps

    def load_weights(
        self, folder: Path, shapes: Mapping[str, tuple[int, ...]]
    ) -> dict[str, Tensor]:
        """Read a folder's safetensors; see `izwi.runner.weights.load_weights`."""
        return load_weights(folder, shapes, device=self.ops.device, dtype=self.ops.dtype)


def torch_backend(device: str = "auto", dtype: str = "auto") -> TorchBackend:
    """Bind torch to a device.

    Args:
        device: "cpu", "cuda", "cuda:1", "mps", or "auto" for the best that is there.
        dtype: A key of DTYPES, or "auto": bfloat16 on CUDA, float32 elsewhere.

    Raises:
        InvalidRequest: The device or dtype is unknown or not available.
    """
    if device == "auto":
        if torch.cuda.is_available():
            device = "cuda"
        else:
            device = "mps" if torch.backends.mps.is_available() else "cpu"
    kind = device.split(":")[0]
    available = {
        "cpu": True,
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
    }
    if not available.get(kind, False):
        raise InvalidRequest(f"device {device!r} is not available here", param="device")
    if dtype == "auto":
        dtype = "bfloat16" if kind == "cuda" else "float32"
    if dtype not in DTYPES:
        raise InvalidRequest(f"dtype {dtype!r} is not one of {sorted(DTYPES)}", param="dtype")
    return TorchBackend(TorchOps(device, DTYPES[dtype]))
