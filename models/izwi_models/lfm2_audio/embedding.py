"""Inputs of the backbone: text tokens, audio frames, and encoded audio.

A position holds a token or a frame; a frame's input is the sum of its codes' embeddings.
"""

from __future__ import annotations

import numpy as np

from izwi.ops import Array, Ops, Weights
from izwi_models.lfm2_audio.backbone import EMBEDDING
from izwi_models.lfm2_audio.config import CODES, LFM2AudioConfig

_FRAMES = "audio_embedding.embedding.weight"
# Names that `pack` adds.
_TABLE = "input_table"  # rows of text, then of each codebook, a row of zeros before each
_OFFSETS = "input_offsets"  # (1 + codebooks,) int64: row of the first id of each


def pack(ops: Ops, weights: Weights, config: LFM2AudioConfig) -> dict[str, Array]:
    """Concatenate the embeddings of text and frames to one table, for one look-up per input.

    Returns: The weights. The text embedding is a view of the table; the other is removed.
    """
    packed = dict(weights)
    text, frames = packed[EMBEDDING], packed.pop(_FRAMES)
    nothing = ops.zeros((1, config.lfm.hidden_size))
    parts = [nothing, text]
    for n in range(config.codebooks):
        parts += [nothing, frames[n * CODES : (n + 1) * CODES]]
    table = ops.concat(parts, 0)
    vocabulary = config.lfm.vocab_size
    packed[EMBEDDING] = table[1 : 1 + vocabulary]
    packed[_TABLE] = table
    starts = [1, *(vocabulary + 2 + n * (CODES + 1) for n in range(config.codebooks))]
    packed[_OFFSETS] = ops.array(np.array(starts))
    return packed


def embed_inputs(ops: Ops, weights: Weights, inputs: Array) -> Array:
    """Embed positions.

    Args:
        ops: The backend's operations.
        weights: From `pack`.
        inputs: (positions, 1 + codebooks) int64: a token and NOTHINGs, or NOTHING and a frame.

    Returns:
        (positions, hidden).
    """
    return ops.sum(ops.take(weights[_TABLE], inputs + weights[_OFFSETS]), 1)
