"""Load a checkpoint's safetensors into MLX arrays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import mlx.core as mx

from izwi.checkpoints.weight_files import read_tensors


def load_weights(
    folder: Path, shapes: Mapping[str, tuple[int, ...]], dtype: mx.Dtype
) -> dict[str, mx.array]:
    """Read the tensors in `shapes`; floats are cast to `dtype`.

    Args:
        folder: Folder of a checkpoint, or one safetensors file.
        shapes: Shape of every tensor of the checkpoint.
        dtype: Dtype of floats.

    Raises:
        CheckpointError: As `read_tensors`.
    """
    weights: dict[str, mx.array] = {}
    for name, tensor in read_tensors(folder, shapes, "mlx"):
        keep = not mx.issubdtype(tensor.dtype, mx.floating)
        weights[name] = tensor if keep else tensor.astype(dtype)
        mx.eval(weights[name])  # one after the other, so that both dtypes are never held of all
    return weights
