"""Copies between a device and the host, in torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a host tensor to a device; the host does not wait for CUDA."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def to_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copy tensors to the host, exact bits. They are there when this returns.

    From CUDA into pinned memory, which the bus fills at full speed, with one wait for all.
    """
    copies = []
    for tensor in tensors:
        pinned = tensor.device.type == "cuda"
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pinned)
        copies.append(copy.copy_(tensor, non_blocking=pinned))
    for device in {tensor.device for tensor in tensors if tensor.device.type == "cuda"}:
        copied = torch.cuda.current_stream(device).record_event()
        copied.synchronize()
    return copies
