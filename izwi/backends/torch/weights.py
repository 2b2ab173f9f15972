"""Load a checkpoint's safetensors to a torch device."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from izwi.checkpoints.weight_files import read_tensors


def load_weights(
    folder: Path,
    shapes: Mapping[str, tuple[int, ...]],
    *,
    device: torch.device,
    dtype: torch.dtype,
) -> dict[str, Tensor]:
    """Read the tensors named in `shapes`; floats are cast to `dtype`.

    Args:
        folder: A checkpoint's folder, or one safetensors file.
        shapes: Shape of every tensor of the checkpoint.
        device: Device of the result.
        dtype: Dtype of floats.

    Raises:
        CheckpointError: As `read_tensors`.
    """
    weights: dict[str, Tensor] = {}
    for name, tensor in read_tensors(folder, shapes, "pt"):
        keep = not tensor.is_floating_point()
        weights[name] = tensor.to(device=device, dtype=tensor.dtype if keep else dtype)
    return weights
