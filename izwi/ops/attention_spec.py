"""Sizes of an attention layer, which configurations know before there are any arrays."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Parameters of one attention layer, apart from its weights.

    Attributes:
        num_heads: Query heads.
        num_kv_heads: Key and value heads; queries share them in consecutive groups.
        head_dim: Width of one head. Scores are scaled by head_dim ** -0.5.
        rope_theta: Base of the rotary embedding (half-rotation layout), or None for no rotation.
        norm_eps: Epsilon of the RMS norm over each query and key head, if there is one.
        rope_sections: Frequencies that turn by time, height and width, interleaved: see
            `frequency_axes`. Empty: all turn by the position.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float | None
    norm_eps: float = 1e-6
    rope_sections: tuple[int, ...] = ()
