"""The Qwen3 dense decoder stack: talker, code predictor, transcriber and chat are all this.

Pre-norm layers of grouped-query attention, with an RMS norm over each query and key head before
the rotation, and a SwiGLU MLP. Source: transformers, models/qwen3 (4.57).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from izwi.model import KVSpec
from izwi.ops import Array, AttentionContext, AttentionSpec, Ops, Weights


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
        """What one layer's attention computes."""
        return AttentionSpec(
            num_heads=self.num_attention_heads,
            num_kv_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            rope_theta=self.rope_theta,
            norm_eps=self.rms_norm_eps,
        )

    @property
    def kv(self) -> KVSpec:
        """What one position keeps."""
        return KVSpec(self.num_hidden_layers, self.num_key_value_heads, self.head_dim)


def stack_of(config: object) -> DecoderConfig:
    """The stack's sizes out of a larger configuration that has them under the same names."""
    return DecoderConfig(
        **{field.name: getattr(config, field.name) for field in fields(DecoderConfig)}
    )


def tensor_shapes(config: DecoderConfig, prefix: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the stack's tensors: `{prefix}layers.N.*` and `{prefix}norm.weight`."""
    hidden, inner, head = config.hidden_size, config.intermediate_size, config.head_dim
    q_width, kv_width = config.num_attention_heads * head, config.num_key_value_heads * head
    layer = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (q_width, hidden),
        "self_attn.k_proj.weight": (kv_width, hidden),
        "self_attn.v_proj.weight": (kv_width, hidden),
        "self_attn.o_proj.weight": (hidden, q_width),
        "self_attn.q_norm.weight": (head,),
        "self_attn.k_norm.weight": (head,),
        "post_attention_layernorm.weight": (hidden,),
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


def decode(
    ops: Ops,
    weights: Weights,
    config: DecoderConfig,
    prefix: str,
    x: Array,
    context: AttentionContext,
) -> Array:
    """Run the stack and its final norm.

    Args:
        ops: The backend's operations.
        weights: Tensors by checkpoint name.
        config: Sizes of the stack.
        prefix: What comes before `layers.0...` in the names, such as "talker.model.".
        x: (..., tokens, hidden) input embeddings.
        context: Which keys each token sees; it carries the positions and the cache.

    Returns:
        (..., tokens, hidden) hidden states after the final norm.
    """
    for n in range(config.num_hidden_layers):
        x = _layer(ops, weights, config, f"{prefix}layers.{n}.", x, context, n)
    return ops.rms_norm(x, weights[f"{prefix}norm.weight"], config.rms_norm_eps)


def _layer(
    ops: Ops,
    weights: Weights,
    config: DecoderConfig,
    prefix: str,
    x: Array,
    context: AttentionContext,
    layer: int,
) -> Array:
    def project(y: Array, name: str) -> Array:
        return ops.linear(y, weights[f"{prefix}{name}.weight"])

    normed = ops.rms_norm(x, weights[f"{prefix}input_layernorm.weight"], config.rms_norm_eps)
    attended = ops.attention(
        project(normed, "self_attn.q_proj"),
        project(normed, "self_attn.k_proj"),
        project(normed, "self_attn.v_proj"),
        spec=config.attention,
        context=context,
        layer=layer,
        q_norm=weights[f"{prefix}self_attn.q_norm.weight"],
        k_norm=weights[f"{prefix}self_attn.k_norm.weight"],
    )
    x = x + project(attended, "self_attn.o_proj")
    normed = ops.rms_norm(
        x, weights[f"{prefix}post_attention_layernorm.weight"], config.rms_norm_eps
    )
    gated = ops.swiglu(project(normed, "mlp.gate_proj"), project(normed, "mlp.up_proj"))
    return x + project(gated, "mlp.down_proj")
