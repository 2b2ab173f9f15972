"""Operations for training: some are fused, and the codec's output is not clipped."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)
from torch import Tensor

from izwi.backends.torch.ops import TorchOps


def snake(x: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """Compute `izwi.backends.torch.ops.TorchOps.snake`, in a form that the compiler fuses."""
    frequency = torch.exp(alpha)[:, None]
    amplitude = 1.0 / (torch.exp(beta) + 1e-9)[:, None]
    return x + amplitude * torch.sin(x * frequency).square()


class FusedNorms(TorchOps):
    """Operations with norms in one kernel instead of eight, for steps bound by launches.

    They round once, after the weight. Served norms also round before it, like the published code.
    """

    def rms_norm(self, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        """See `Ops.rms_norm`."""
        return F.rms_norm(x, x.shape[-1:], weight, eps)


class FusedOps(TorchOps):
    """Operations with the decoder's activation compiled, which takes most of a step."""

    def __init__(self, device: torch.device, compiled: bool):
        super().__init__(device)
        torch._dynamo.config.recompile_limit = 64
        self._snake = torch.compile(snake, dynamic=True) if compiled else snake

    def snake(self, x: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
        """See `Ops.snake`."""
        return self._snake(x, alpha, beta)

    def clip(self, x: Tensor, low: float | None, high: float | None) -> Tensor:
        """Return `x` unchanged, because audio beyond full scale must keep its gradient."""
        del low, high
        return x
