"""What models of one token a position share: Qwen3's decoder between an embedding and a head."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from izwi.model import KVSpec, Pick
from izwi.ops import Array, AttentionContext, Ops, Weights
from izwi_models.qwen3.decoder import DecoderConfig, decode


class TokenModel:
    """The part of `izwi.model.Model` that does not depend on what the prompt is made of."""

    num_codebooks: int = 1
    num_inputs: int = 1
    suppressed: npt.NDArray[np.bool_] | None = None

    def __init__(
        self,
        ops: Ops,
        weights: Weights,
        decoder: DecoderConfig,
        prefix: str,
        head: Array,
        *,
        vocabulary: int,
        max_positions: int,
    ):
        """Bind the decoder.

        Args:
            ops: The backend's operations.
            weights: Tensors by checkpoint name.
            decoder: Sizes of the stack.
            prefix: Of the names of its tensors.
            head: (vocabulary, hidden), narrow if weights are to be.
            vocabulary: What is drawn from.
            max_positions: Positions that the checkpoint was made for.
        """
        self._ops, self._weights = ops, weights
        self._decoder, self._prefix, self._head = decoder, prefix, head
        self._vocabulary, self._max_positions = vocabulary, max_positions

    @property
    def kv(self) -> KVSpec:
        """What one position keeps."""
        return self._decoder.kv

    @property
    def vocabulary(self) -> int:
        """Ids that are drawn from."""
        return self._vocabulary

    @property
    def max_positions(self) -> int:
        """Positions that the checkpoint was made for."""
        return self._max_positions

    def embed_inputs(self, inputs: Array) -> Array:
        """Embed tokens: (positions, 1) -> (positions, hidden)."""
        return self._ops.take(self._weights[f"{self._prefix}embed_tokens.weight"], inputs[:, 0])

    def run(self, x: Array, context: AttentionContext) -> Array:
        """Run packed positions through the decoder."""
        return decode(self._ops, self._weights, self._decoder, self._prefix, x, context)

    def draw(self, hidden: Array, pick: Pick) -> Array:
        """Draw an id from each state: (rows, 1) int64."""
        if not hidden.shape[0]:  # of an aligner, a chunk that ends before the first word
            return self._ops.array(np.zeros((0, 1), np.int64))
        return pick(self._ops.linear(hidden, self._head), 0).reshape(-1, 1)
