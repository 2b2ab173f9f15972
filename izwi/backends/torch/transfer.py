"""Copies between a device and the host, in torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a host tensor to a device; asynchronous on CUDA."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


class HostCopy:
    """A bit-exact copy of tensors to the host, in flight.

    From CUDA it goes to pinned memory, for full bus speed, in order on the current stream.
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
        """Whether the copies are complete, so that `wait` does not block."""
        return all(copied.query() for copied in self._copied)

    def wait(self) -> list[Tensor]:
        """Wait for the copies and return them."""
        for copied in self._copied:
            copied.synchronize()
        return self._copies


def to_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copy tensors to the host, with one wait for all; blocks until they are complete."""
    return HostCopy(tensors).wait()
