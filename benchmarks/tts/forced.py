"""Compute a model's probabilities along a given log."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from izwi.backends.torch.ops import TorchOps
from izwi.model.protocol import Model
from izwi.request.sequence import Sequence
from izwi.runner.batch import row_of


@torch.inference_mode()
def logits_of(model: Model, ops: TorchOps, sequence: Sequence) -> list[Tensor]:
    """Compute a model's probabilities at each entry of a log, given the entries before it.

    Args:
        model: Any model; the prompt must need no encoder.
        ops: The model's operations.
        sequence: A sequence with at least one entry.

    Returns:
        An array for each codebook: (entries, vocabulary) float32.
    """
    codes = ops.array(np.array(sequence.emitted, np.int64))
    found: list[Tensor] = []

    def pick(logits: Tensor, codebook: int) -> Tensor:
        found.append(logits.float())
        return codes[:, codebook]

    stop = sequence.num_positions - 1  # no prediction is needed after the last entry
    x = model.embed([row_of(sequence, 0, stop)])
    hidden = model.run(x[None], ops.dense_context(1, stop))[0]
    model.draw(hidden[sequence.num_prompt - 1 :], pick)
    return found
