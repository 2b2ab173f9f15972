"""The ranks of an engine over torch.distributed: NCCL between GPUs, gloo between processes."""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from izwi.errors import InvalidRequest
from izwi.ops.ranks import RankPlace

# How long a rank waits in one operation for another, which may still load its weights or compile
# kernels. An engine that hangs for less is ended by its supervisor, and an idle one waits in none.
_LIMIT = timedelta(minutes=30)
# its name up to torch 2.12, which has no other
_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class TorchRanks:
    """Implements `izwi.ops.ranks.Ranks`. A process has one at a time."""

    def __init__(self, place: RankPlace, device: torch.device):
        """Meet the other ranks.

        Args:
            place: This rank's place.
            device: Its device.

        Raises:
            InvalidRequest: This torch cannot join such devices.
        """
        self.index, self.count, self.device = place.index, place.count, device
        self.num_exchanges = 0
        library = "nccl" if device.type == "cuda" else "gloo"
        if not dist.is_available() or not _has(library):
            raise InvalidRequest(
                f"--tensor-parallel needs torch with {library} for the device {str(device)!r}",
                param="tensor_parallel",
            )
        _set_up_network()
        if device.type == "cuda":
            torch.cuda.set_device(device)  # the library uses the current one
        dist.init_process_group(
            library,
            init_method=f"file://{place.store}",
            rank=place.index,
            world_size=place.count,
            timeout=_LIMIT,
            device_id=device if device.type == "cuda" else None,
        )
        # connects them now, because a capture must not, and takes the memory before it is planned
        met = self.all_reduce(torch.ones(1, device=device))
        assert int(met) == place.count
        self.all_gather(met)

    def all_reduce(self, x: Tensor) -> Tensor:
        """Return the sum of all ranks' tensors, in place."""
        self.num_exchanges += 1
        x = x.contiguous()
        dist.all_reduce(x)
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        """Join all ranks' tensors along the last axis."""
        self.num_exchanges += 1
        joined = x.new_empty((self.count, *x.shape))
        _gather(joined.view(-1, *x.shape[1:]), x.contiguous())
        return joined.movedim(0, -2).flatten(-2)

    def broadcast(self, x: Tensor) -> Tensor:
        """Return rank 0's tensor, in place."""
        self.num_exchanges += 1
        x = x.contiguous()
        dist.broadcast(x, src=0)
        return x

    def close(self) -> None:
        """Leave the others, so that this process can meet others.

        On CUDA it may wait for ever for graphs that sum: end the process instead.
        """
        dist.destroy_process_group()


def _has(library: str) -> bool:
    return dist.is_nccl_available() if library == "nccl" else dist.is_gloo_available()


def _set_up_network() -> None:
    """Stay on this machine, and off the multicast of NVLink, unless the environment says so."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    # buffers in expandable segments, which this backend uses, cannot be registered by a capture
    os.environ.setdefault("NCCL_GRAPH_REGISTER", "0")
