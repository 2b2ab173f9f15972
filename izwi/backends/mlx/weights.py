"""Load a checkpoint's weights into MLX arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import mlx.core as mx
import numpy as np

from izwi.backends.mlx.quantized import MlxWeight, packed_matrix
from izwi.checkpoints.linear_spec import LinearForm, LinearSpec
from izwi.checkpoints.weight_files import read_tensors


def load_weights(
    folder: Path,
    shapes: Mapping[str, tuple[int, ...]],
    dtype: mx.Dtype,
    stays_packed: Callable[[str, LinearForm], bool] = lambda _name, _form: False,
) -> dict[str, MlxWeight]:
    """Read the tensors in `shapes`; floats are cast to `dtype`.

    Args:
        folder: Folder of a checkpoint, or one file of weights.
        shapes: Shape of every tensor of the checkpoint.
        dtype: Dtype of floats.
        stays_packed: Whether a packed weight stays so; others are widened, one by one.

    Raises:
        CheckpointError: As `read_tensors`.
    """
    weights: dict[str, MlxWeight] = {}
    for name, tensor in read_tensors(folder, shapes, "mlx"):
        if isinstance(tensor, LinearSpec):
            if stays_packed(name, tensor.form):
                packed = weights[name] = packed_matrix(tensor, dtype)
                mx.eval(packed.packed, packed.scales, packed.offsets)
                continue
            tensor = mx.array(tensor.wide())
        elif isinstance(tensor, np.ndarray):
            tensor = mx.array(tensor)
        keep = not mx.issubdtype(tensor.dtype, mx.floating)
        weights[name] = tensor if keep else tensor.astype(dtype)
        mx.eval(weights[name])  # one after the other, so that both dtypes are never held of all
    return weights
