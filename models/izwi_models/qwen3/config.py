"""Sizes of a Qwen3 decoder stack, and its tensors. Knows no operations.

Source: transformers, models/qwen3 (4.57).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from izwi.errors import InvalidRequest
from izwi.model.layers import PagedAttention
from izwi.ops.attention_spec import AttentionSpec
from izwi.ops.ranks import Part, RankNumber

# The norms of a layer, before its attention and before its MLP.
NORM, MLP_NORM = "input_layernorm.weight", "post_attention_layernorm.weight"

C = TypeVar("C", bound="DecoderConfig")


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Sizes of one stack, named as in the published config.json.

    Attributes:
        is_split: Heads and MLP are one rank's part, see `share_of`. It is our own key.
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    is_split: bool = field(default=False, kw_only=True)

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


def share_of(config: C, ranks: RankNumber) -> C:
    """Return the sizes of one rank's part of each layer: its heads, its part of the MLP.

    A rank has all key and value heads of its query heads. If there are more ranks than key and
    value heads, several ranks have the same one.

    Raises:
        InvalidRequest: The ranks cannot have equal parts.
    """
    count = ranks.count
    if count == 1:
        return config
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    sizes = {"query heads": heads, "intermediate_size": config.intermediate_size}
    wrong = [f"{size} {name}" for name, size in sizes.items() if size % count]
    if max(kv_heads, count) % min(kv_heads, count):
        wrong.append(f"{kv_heads} key and value heads")
    if wrong:
        raise InvalidRequest(
            f"{count} ranks cannot share this model equally: it has {', '.join(wrong)}",
            param="tensor_parallel",
        )
    return replace(
        config,
        num_attention_heads=heads // count,
        num_key_value_heads=max(1, kv_heads // count),
        intermediate_size=config.intermediate_size // count,
        is_split=True,
    )


def parts_of(config: DecoderConfig, ranks: RankNumber, prefix: str) -> dict[str, Part]:
    """Return the part of each of the stack's tensors that a rank has; it has all of the others.

    Args:
        config: Sizes of the whole stack.
        ranks: The rank.
        prefix: As of `tensor_shapes`.

    Raises:
        InvalidRequest: As `share_of`.
    """
    if ranks.count == 1:
        return {}
    share, head = share_of(config, ranks), config.head_dim
    queries = Part.at(ranks, 0, config.num_attention_heads * head)
    inner = Part.at(ranks, 0, config.intermediate_size)
    first = ranks.index * config.num_key_value_heads // ranks.count
    kv = Part(0, first * head, (first + share.num_key_value_heads) * head)
    layer = {
        "self_attn.q_proj.weight": queries,
        "self_attn.k_proj.weight": kv,
        "self_attn.v_proj.weight": kv,
        "self_attn.o_proj.weight": replace(queries, axis=1),
        "mlp.gate_proj.weight": inner,
        "mlp.up_proj.weight": inner,
        "mlp.down_proj.weight": replace(inner, axis=1),
    }
    return {
        f"{prefix}layers.{n}.{name}": part
        for n in range(config.num_hidden_layers)
        for name, part in layer.items()
    }
