"""Inputs of a model's products while it reads prompts, for calibration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np

from izwi.arrays import Float32
from izwi.model.adapters import TakesAdapters
from izwi.model.protocol import CapturableModel, Model
from izwi.ops.protocol import Array, Ops

# Positions of all prompts together that are kept.
_MOST_SAMPLES = 384


class _Recorder:
    """Takes the place of `RowUpdates`, and adds nothing."""

    def __init__(self, ops: Ops, stride: int):
        self._ops, self._stride = ops, stride
        self.inputs: dict[str, list[Float32]] = {}

    def add(self, name: str, x: Array, y: Array) -> Array:
        """Keep some of the inputs."""
        rows = self._ops.numpy(x).astype(np.float32)
        self.inputs.setdefault(name, []).append(rows.reshape(-1, rows.shape[-1])[:: self._stride])
        return y


def recorded_inputs(
    model: Model, ops: Ops, prompts: Sequence[Sequence[int]]
) -> Mapping[str, Float32]:
    """Run prompts of a text model, and return some of the inputs of each product.

    Args:
        model: A model that takes adapters, whose positions are ids.
        ops: Its operations.
        prompts: Ids.

    Returns:
        (samples, in) by the name of the product.
    """
    assert isinstance(model, TakesAdapters)
    stride = max(1, sum(map(len, prompts)) // _MOST_SAMPLES)
    recorder = _Recorder(ops, stride)
    for ids in prompts:
        x = cast(CapturableModel, model).embed_inputs(ops.array(np.array(ids, np.int64)[:, None]))
        model.adapted.run(x[None], ops.dense_context(1, len(ids)), recorder)
    return {name: np.concatenate(parts) for name, parts in recorder.inputs.items()}
