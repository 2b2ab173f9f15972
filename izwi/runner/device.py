"""Choose a device and a dtype, and bind the operations to them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from izwi.errors import InvalidRequest
from izwi.ops.torch_ops import TorchOps
from izwi.runner.budget import report_full_device
from izwi.runner.weights import load_weights

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


# Below this many bytes of weights a product is shorter than handing half of it to another core.
# Measured on 2 cores, one stream of the embedded voice: one thread 17.7 ms a step, two 17.7 to 20,
# and 66 to 290 with one other busy process, because each of some 250 products waits for the other
# core. At 8 streams: 45 against 33.
_SMALL_BYTES = 256 << 20


class TorchBackend:
    """Torch on one device in one dtype."""

    def __init__(self, ops: TorchOps):
        self.ops = ops
        self._loaded_bytes = 0
        self._all_threads = torch.get_num_threads()

    def load_weights(
        self, folder: Path, shapes: Mapping[str, tuple[int, ...]]
    ) -> dict[str, Tensor]:
        """Read a folder's safetensors; see `izwi.runner.weights.load_weights`.

        On a CPU, small models run on one thread from here on, large ones on all.
        """
        with report_full_device():
            weights = load_weights(folder, shapes, device=self.ops.device, dtype=self.ops.dtype)
        self._loaded_bytes += sum(weight.nbytes for weight in weights.values())
        if self.ops.device.type == "cpu":
            small = self._loaded_bytes < _SMALL_BYTES
            torch.set_num_threads(1 if small else self._all_threads)
        return weights


def torch_backend(
    device: str = "auto", dtype: str = "auto", weights: str = "auto", attention: str = "auto"
) -> TorchBackend:
    """Bind torch to a device.

    Args:
        device: "cpu", "cuda", "cuda:1", "mps", or "auto" for the best that is there.
        dtype: A key of DTYPES, or "auto": bfloat16 on CUDA, float32 elsewhere.
        weights: Of the decoders' products: "auto" (of that dtype), "int8", "fp8" or "int4".
        attention: What they attend with: "torch", "triton", or "auto" for the faster that is there.

    Raises:
        InvalidRequest: The device, the dtype, `weights` or `attention` is unknown or not available.
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
        raise InvalidRequest(
            f"dtype {dtype!r} is not one of auto, {', '.join(sorted(DTYPES))}", param="dtype"
        )
    return TorchBackend(_table(kind)(device, DTYPES[dtype], weights, attention))


def _table(kind: str) -> type[TorchOps]:
    """The operations of a kind of device: with our own kernels where they run."""
    if kind != "cuda" or find_spec("triton") is None:
        return TorchOps
    from izwi.ops.triton_ops import TritonOps  # triton comes with torch for CUDA alone

    return TritonOps
