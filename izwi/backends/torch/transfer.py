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


class HostCopy:
    """A copy of tensors to the host that is in flight; exact bits.

    From CUDA into pinned memory, which the bus fills at full speed, behind what the current stream
    runs.
    """

    def __init__(self, tensors: Sequence[Tensor]):
        self._copies = []
        for tensor in tensors:
            pinned = tensor.device.type == "cuda"
            copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pinned)
            self._copies.append(copy.copy_(tensor, non_blocking=pinned))
        devices = {tensor.device for tensor in tensors if tensor.device.type == "cuda"}
        self._copied = [torch.cuda.current_stream(device).record_event() for device in devices]

    @property
    def is_done(self) -> bool:
        """Whether the copies are there, so that `wait` does not block."""
        return all(copied.query() for copied in self._copied)

    def wait(self) -> list[Tensor]:
        """The copies, once they are there."""
        for copied in self._copied:
            copied.synchronize()
        return self._copies


def to_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copy tensors to the host, with one wait for all. They are there when this returns."""
    return HostCopy(tensors).wait()
