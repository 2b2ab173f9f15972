"""Sizes of a Qwen3 decoder stack, and its tensors. Knows no operations.

Source: transformers, models/qwen3 (4.57).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from izwi.model.layers import PagedAttention
from izwi.ops.attention_spec import AttentionSpec

# The norms of a layer, before its attention and before its MLP.
NORM, MLP_NORM = "input_layernorm.weight", "post_attention_layernorm.weight"


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Sizes of one stack, named as in the published config.json."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float

    @property
    def attention(self) -> AttentionSpec:
        """Sizes of one layer's attention."""
        return AttentionSpec(
            num_heads=self.num_attention_heads,
            num_kv_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            rope_theta=self.rope_theta,
            norm_eps=self.rms_norm_eps,
        )

    @property
    def layers(self) -> tuple[PagedAttention, ...]:
        """What each layer caches of a position."""
        layer = PagedAttention(self.num_key_value_heads, self.head_dim, self.rope_theta)
        return (layer,) * self.num_hidden_layers


@dataclass(frozen=True, slots=True)
class TextConfig(DecoderConfig):
    """A decoder of text and its vocabulary, named as in the published config.json.

    Rotary sections have no effect: all rows are equal.
    """

    vocab_size: int
    hidden_act: str
    max_position_embeddings: int
    attention_bias: bool
    tie_word_embeddings: bool


def tensor_shapes(config: DecoderConfig, prefix: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the stack's tensors: `{prefix}layers.N.*` and `{prefix}norm.weight`."""
    hidden, inner, head = config.hidden_size, config.intermediate_size, config.head_dim
    q_width, kv_width = config.num_attention_heads * head, config.num_key_value_heads * head
    layer = {
        NORM: (hidden,),
        "self_attn.q_proj.weight": (q_width, hidden),
        "self_attn.k_proj.weight": (kv_width, hidden),
        "self_attn.v_proj.weight": (kv_width, hidden),
        "self_attn.o_proj.weight": (hidden, q_width),
        "self_attn.q_norm.weight": (head,),
        "self_attn.k_norm.weight": (head,),
        MLP_NORM: (hidden,),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    shapes: dict[str, tuple[int, ...]] = {
        f"{prefix}layers.{n}.{name}": shape
        for n in range(config.num_hidden_layers)
        for name, shape in layer.items()
    }
    shapes[f"{prefix}norm.weight"] = (hidden,)
    return shapes


def layer_matrices(shapes: Mapping[str, tuple[int, ...]], prefix: str) -> frozenset[str]:
    """Return the names of the stack's weights that `decoder.pack` takes packed, too."""
    layers = f"{prefix}layers."
    return frozenset(
        name for name, shape in shapes.items() if name.startswith(layers) and len(shape) == 2
    )
