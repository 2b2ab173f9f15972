"""Operations as training wants them: fused where it pays, and the codec's sound not clipped."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)
from torch import Tensor

from izwi.backends.torch.ops import TorchOps


def snake(x: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """The activation of `izwi.backends.torch.ops.TorchOps.snake`, for the compiler to fuse."""
    frequency = torch.exp(alpha)[:, None]
    amplitude = 1.0 / (torch.exp(beta) + 1e-9)[:, None]
    return x + amplitude * torch.sin(x * frequency).square()


class FusedNorms(TorchOps):
    """The same operations with a norm in one kernel instead of eight, for what launches bound.

    It rounds once, after the weight; served norms round before it, too, as the published code does.
    """

    def rms_norm(self, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        """See `Ops.rms_norm`."""
        return F.rms_norm(x, x.shape[-1:], weight, eps)


class FusedOps(TorchOps):
    """The same operations with the decoder's activation compiled: it takes most of a step."""

    def __init__(self, device: torch.device, compiled: bool):
        super().__init__(device)
        torch._dynamo.config.recompile_limit = 64
        self._snake = torch.compile(snake, dynamic=True) if compiled else snake

    def snake(self, x: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
        """See `Ops.snake`."""
        return self._snake(x, alpha, beta)

    def clip(self, x: Tensor, low: float | None, high: float | None) -> Tensor:
        """Leave `x` as it is: sound beyond full scale must keep its gradient."""
        del low, high
        return x
