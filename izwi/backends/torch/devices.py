"""Report the devices that torch finds on this machine. Not used while requests run."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True, slots=True)
class CudaDevice:
    """One GPU.

    Attributes:
        name: Name for `--device`, like "cuda:0".
        product: The vendor's product name.
        capability: Compute capability, (major, minor).
        free_bytes: Currently free memory.
        total_bytes: Total memory.
    """

    name: str
    product: str
    capability: tuple[int, int]
    free_bytes: int
    total_bytes: int


def cuda_devices() -> list[CudaDevice]:
    """Return the GPUs that torch can use through CUDA."""
    found = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        free_bytes, total_bytes = torch.cuda.mem_get_info(index)
        capability = properties.major, properties.minor
        name = f"cuda:{index}"
        found.append(CudaDevice(name, properties.name, capability, free_bytes, total_bytes))
    return found


def hide_other_gpus(device: str) -> str:
    """Make a GPU the only one that this process sees, before it uses any; return its new name.

    Kernels, events and captured graphs otherwise fall on the first GPU wherever a thread does not
    name another, and each GPU that is touched costs memory for a context.

    Args:
        device: Other devices than "cuda:1" and its like are returned unchanged, and so are GPUs
            that are not there and any once CUDA runs.
    """
    kind, _, index = device.partition(":")
    if kind != "cuda" or not index.isdigit() or torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return device
    if int(index) >= torch.cuda.device_count():
        return device
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[int(index)] if visible else index
    return "cuda:0"


def has_mps() -> bool:
    """Return whether torch can use an Apple GPU."""
    return torch.backends.mps.is_available()


def is_built_for_gpus() -> bool:
    """Return whether this torch was built with CUDA or ROCm."""
    return torch.version.cuda is not None or torch.version.hip is not None


def product_name(device: str) -> str:
    """Return the product name of a GPU; other names are returned unchanged."""
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else device


def kept_kernels() -> tuple[Path, int] | None:
    """Return Triton's cache folder and how many kernels it holds; None without Triton.

    Cache keys include source, Triton version, device and specialisation, so that one folder serves
    all models and versions.
    """
    try:
        import triton
    except ImportError:
        return None
    folder = Path(triton.knobs.cache.dir)
    return folder, sum(1 for _ in folder.glob("*/*.cubin"))
