"""What torch finds on this machine, for reports; nothing here is asked while requests run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True, slots=True)
class CudaDevice:
    """One GPU.

    Attributes:
        name: As `--device` takes it, "cuda:0".
        product: As its maker names it.
        capability: Compute capability, (major, minor).
        free_bytes: Of its memory, now.
        total_bytes: Of its memory.
    """

    name: str
    product: str
    capability: tuple[int, int]
    free_bytes: int
    total_bytes: int


def cuda_devices() -> list[CudaDevice]:
    """The GPUs that torch can use through CUDA."""
    found = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        free_bytes, total_bytes = torch.cuda.mem_get_info(index)
        capability = properties.major, properties.minor
        name = f"cuda:{index}"
        found.append(CudaDevice(name, properties.name, capability, free_bytes, total_bytes))
    return found


def has_mps() -> bool:
    """Whether torch can use Apple's GPU."""
    return torch.backends.mps.is_available()


def is_built_for_gpus() -> bool:
    """Whether this torch was built with CUDA or ROCm."""
    return torch.version.cuda is not None or torch.version.hip is not None


def product_name(device: str) -> str:
    """A GPU as its maker names it; other devices as they are."""
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else device


def kept_kernels() -> tuple[Path, int] | None:
    """Folder in which Triton keeps compiled kernels, and how many are there; None without Triton.

    It tells them apart by their source, Triton's version, the device and what they are compiled
    for, so one folder serves all models and versions.
    """
    try:
        import triton
    except ImportError:
        return None
    folder = Path(triton.knobs.cache.dir)
    return folder, sum(1 for _ in folder.glob("*/*.cubin"))
