"""Drawing the codes of a frame in one operation, where a backend has it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from izwi.ops.attention_spec import AttentionSpec
from izwi.ops.core import Array


class FrameLayer(NamedTuple):
    """Weights of one layer of a `FrameStack`; None for a norm that is part of the weight after it.

    Attributes:
        qkv_norm: (hidden,) of the norm before `qkv`.
        qkv: Queries, keys and values, (outputs, hidden).
        out: (hidden, heads * head_dim).
        gated_norm: (hidden,) of the norm before `gated`.
        gated: Gate and up, (2 * intermediate, hidden).
        down: (hidden, intermediate).
        q_norm: (head_dim,) of the norm of query heads.
        k_norm: The same for keys.
    """

    qkv_norm: Array | None
    qkv: Array
    out: Array
    gated_norm: Array | None
    gated: Array
    down: Array
    q_norm: Array
    k_norm: Array


class FrameStack(NamedTuple):
    """A stack that draws codebooks 1.. of a frame, one pass after the other.

    Attributes:
        layers: Its layers.
        heads: (vocabulary, hidden) weights of the logits of codebooks 1.. .
        embeds: (vocabulary, hidden) inputs of the codes of codebooks 1.. but the last.
        norm: (hidden,) of the final norm.
        attention: Heads, widths and rotation.
        eps: Of the norms.
    """

    layers: Sequence[FrameLayer]
    heads: Sequence[Array]
    embeds: Sequence[Array]
    norm: Array
    attention: AttentionSpec
    eps: float


class FrameOps(Protocol):
    """An operation that only some backends have."""

    def draw_codes(
        self,
        stack: Callable[[], FrameStack],  # noqa: ARG002
        x: Array,  # noqa: ARG002
        pick: Callable[[Array, int], Array],  # noqa: ARG002
    ) -> Array | None:
        """Draw codebooks 1.. of a frame at once.

        Args:
            stack: Returns the weights; not called if the result is None.
            x: (rows, 2, hidden), inputs of the first pass: state and code of codebook 0.
            pick: What would draw the ids of each codebook.

        Returns:
            (rows, codebooks - 1) int64; None if there is no such operation for these draws.
        """
        return None
