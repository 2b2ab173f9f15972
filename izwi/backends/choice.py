"""Choose the backend for a device: the only place that knows all of them."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from izwi.backends.protocol import Backend
from izwi.errors import InvalidRequest
from izwi.ops.ranks import RankPlace


def open_backend(
    device: str = "auto",
    dtype: str = "auto",
    weights: str = "auto",
    attention: str = "auto",
    place: RankPlace | None = None,
) -> Backend:
    """Bind a backend to a device.

    Args:
        device: "cpu", "cuda", "cuda:1" and "mps" with torch, "mlx", or "auto" for the best that is
            there: MLX on Apple's GPUs, else torch's best.
        dtype: "float32", "bfloat16", "float16", or "auto" for the device's.
        weights: How the decoders keep theirs: one of WEIGHTS.
        attention: What they attend with: one of ATTENTIONS.
        place: This rank's place, if several share each model; waits until all of them are there.

    Raises:
        InvalidRequest: One of these is unknown or not available here.
    """
    if device == "mlx" or (device == "auto" and _has_metal()):
        if place is not None:
            raise InvalidRequest("--tensor-parallel needs CUDA or a CPU", param="device")
        if find_spec("mlx") is None:
            raise InvalidRequest(
                "device 'mlx' needs the package mlx: pip install 'izwi[mlx]' on a Mac, "
                "'mlx[cpu]' on Linux",
                param="device",
            )
        from izwi.backends.mlx.backend import mlx_backend

        return mlx_backend(dtype, weights, attention)
    from izwi.backends.torch.backend import torch_backend

    return torch_backend(device, dtype, weights, attention, place)


def own_device(device: str) -> str:
    """Return the name of a process's only device, after it has hidden other GPUs from itself.

    Args:
        device: As for `open_backend`.
    """
    if not device.startswith("cuda:"):
        return device
    from izwi.backends.torch.devices import hide_other_gpus

    return hide_other_gpus(device)


def spread_device(device: str, number: int) -> str:
    """Return the device of one of several engines: one GPU after the other.

    Args:
        device: As for `open_backend`; "auto" and "cuda" are any GPU.
        number: The engine's number.
    """
    if device not in ("auto", "cuda") or _has_metal():
        return device
    from izwi.backends.torch.backend import num_gpus

    return f"cuda:{number % num_gpus()}" if num_gpus() > 1 else device


def _has_metal() -> bool:
    if sys.platform != "darwin" or find_spec("mlx") is None:
        return False
    import mlx.core as mx

    return bool(mx.metal.is_available())
