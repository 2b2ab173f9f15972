"""The Qwen3 dense decoder stack, used by talker, code predictor, transcriber and chat.

Pre-norm layers of grouped-query attention, with an RMS norm over each query and key head before
the rotation, and a SwiGLU MLP. Source: transformers, models/qwen3 (4.57).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial

from izwi.model.layers import PagedAttention
from izwi.ops import Array, AttentionContext, AttentionSpec, Ops, Weights

# Names of the tensors that `pack` concatenates. No checkpoint has these, so they identify packed
# weights.
_QKV = ("self_attn.qkv_proj", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"))
_GATE_UP = ("mlp.gate_up_proj", ("mlp.gate_proj", "mlp.up_proj"))
# The norms before these.
_NORM, _MLP_NORM = "input_layernorm.weight", "post_attention_layernorm.weight"
_ALONE = ("self_attn.o_proj", "mlp.down_proj")


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


def stack_of(config: object) -> DecoderConfig:
    """Return the stack's sizes from a larger configuration with the same names."""
    return DecoderConfig(
        **{field.name: getattr(config, field.name) for field in fields(DecoderConfig)}
    )


@dataclass(frozen=True, slots=True)
class TextConfig:
    """A decoder of text and its vocabulary, named as in the published config.json.

    Rotary sections have no effect: all rows are equal.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    hidden_act: str
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    attention_bias: bool
    tie_word_embeddings: bool

    @property
    def decoder(self) -> DecoderConfig:
        """Sizes of the decoder stack."""
        return stack_of(self)


def tensor_shapes(config: DecoderConfig, prefix: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the stack's tensors: `{prefix}layers.N.*` and `{prefix}norm.weight`."""
    hidden, inner, head = config.hidden_size, config.intermediate_size, config.head_dim
    q_width, kv_width = config.num_attention_heads * head, config.num_key_value_heads * head
    layer = {
        _NORM: (hidden,),
        "self_attn.q_proj.weight": (q_width, hidden),
        "self_attn.k_proj.weight": (kv_width, hidden),
        "self_attn.v_proj.weight": (kv_width, hidden),
        "self_attn.o_proj.weight": (hidden, q_width),
        "self_attn.q_norm.weight": (head,),
        "self_attn.k_norm.weight": (head,),
        _MLP_NORM: (hidden,),
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


def pack(ops: Ops, weights: Weights, config: DecoderConfig, prefix: str) -> dict[str, Array]:
    """Concatenate weights that share an input, for fewer and longer products, and prepare them.

    `decode` also accepts unpacked weights and then packs them on each call, so that gradients reach
    them. Serving packs once.

    Args:
        ops: The backend's operations.
        weights: Tensors by checkpoint name; those outside the stack stay as they are.
        config: Sizes of the stack.
        prefix: See `decode`.

    Returns: The weights with `qkv_proj` and `gate_up_proj` in place of the parts of each layer, and
        all factors of products processed by `Ops.fold_norm` and `Ops.quantize`. Folded norms are
        removed.
    """
    packed = dict(weights)
    for n in range(config.num_hidden_layers):
        layer = f"{prefix}layers.{n}."
        for norm_name, (joined, parts) in ((_NORM, _QKV), (_MLP_NORM, _GATE_UP)):
            arrays = [packed.pop(f"{layer}{part}.weight") for part in parts]
            norm, weight = ops.fold_norm(packed.pop(layer + norm_name), ops.concat(arrays, 0))
            if norm is not None:
                packed[layer + norm_name] = norm
            packed[f"{layer}{joined}.weight"] = ops.quantize(weight)
        for part in _ALONE:
            packed[f"{layer}{part}.weight"] = ops.quantize(packed[f"{layer}{part}.weight"])
    return packed


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
        prefix: Prefix of `layers.0...` in the names, such as "talker.model.".
        x: (..., tokens, hidden) input embeddings.
        context: Which keys each token attends to, with positions and cache.

    Returns:
        (..., tokens, hidden) hidden states after the final norm.
    """
    for n in range(config.num_hidden_layers):
        attend = partial(ops.normed_attention, spec=config.attention, context=context, layer=n)
        x = _layer(ops, weights, config, f"{prefix}layers.{n}.", x, attend)
    return ops.rms_norm(x, weights[f"{prefix}norm.weight"], config.rms_norm_eps)


def _layer(
    ops: Ops,
    weights: Weights,
    config: DecoderConfig,
    prefix: str,
    x: Array,
    attend: Callable[..., Array],
) -> Array:
    """Run a layer; `attend` is `Ops.normed_attention` of this layer's cache."""
    eps = config.rms_norm_eps
    attended = attend(
        x,
        weights.get(prefix + _NORM),
        eps,
        _joined(ops, weights, prefix, *_QKV),
        q_norm=weights[f"{prefix}self_attn.q_norm.weight"],
        k_norm=weights[f"{prefix}self_attn.k_norm.weight"],
    )
    x = ops.linear_add(attended, weights[f"{prefix}self_attn.o_proj.weight"], x)
    norm = weights.get(prefix + _MLP_NORM)
    gated = ops.gated_linear(x, norm, eps, _joined(ops, weights, prefix, *_GATE_UP))
    return ops.linear_add(gated, weights[f"{prefix}mlp.down_proj.weight"], x)


def _joined(ops: Ops, weights: Weights, prefix: str, joined: str, parts: tuple[str, ...]) -> Array:
    packed = weights.get(f"{prefix}{joined}.weight")
    if packed is not None:
        return packed
    return ops.concat([weights[f"{prefix}{part}.weight"] for part in parts], 0)
