"""Load a checkpoint's weights to a torch device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from izwi.backends.torch.grouped import GroupedWeight, grouped_weight
from izwi.checkpoints.linear_spec import LinearForm, LinearSpec
from izwi.checkpoints.weight_files import NO_PARTS, read_tensors
from izwi.ops.ranks import Part


def load_weights(
    folder: Path,
    shapes: Mapping[str, tuple[int, ...]],
    *,
    device: torch.device,
    dtype: torch.dtype,
    stays_packed: Callable[[str, LinearForm], bool] = lambda _name, _form: False,
    parts: Mapping[str, Part] = NO_PARTS,
) -> dict[str, Tensor | GroupedWeight]:
    """Read the tensors named in `shapes`; floats are cast to `dtype`.

    Args:
        folder: A checkpoint's folder, or one file of weights.
        shapes: Shape of every tensor of the checkpoint.
        device: Device of the result.
        dtype: Dtype of floats.
        stays_packed: Whether a packed weight stays so; others are widened, one by one.
        parts: Parts that are loaded instead of whole tensors; none of them stays packed.

    Raises:
        CheckpointError: As `read_tensors`.
    """
    weights: dict[str, Tensor | GroupedWeight] = {}
    for name, tensor in read_tensors(folder, shapes, "pt", parts):
        if isinstance(tensor, LinearSpec):
            if name not in parts and stays_packed(name, tensor.form):
                weights[name] = grouped_weight(tensor, device)
                continue
            wide = torch.from_numpy(tensor.wide())
            tensor = wide[parts[name].index] if name in parts else wide
        elif isinstance(tensor, np.ndarray):
            tensor = torch.from_numpy(tensor)
        tensor = tensor.contiguous()  # a part may lie in rows of the file
        keep = not tensor.is_floating_point()
        weights[name] = tensor.to(device=device, dtype=tensor.dtype if keep else dtype)
    return weights
