"""The LFM2 backbone: short convolutions and attention under one gated MLP a layer.

A layer adds `operator(operator_norm(x))` to x and then the MLP of `ffn_norm`. The operator is
grouped-query attention with an RMS norm over each head, or a gated short convolution: three
projections B, C and u of the input, out_proj(C * conv(B * u)), where conv reads the last
`conv_width - 1` positions. Source: transformers 4.57.6, models/lfm2.
"""

from __future__ import annotations

from dataclasses import dataclass

from izwi.ops import Array, AttentionContext, Ops, Weights
from izwi_models.lfm2_audio.config import BackboneConfig

PREFIX = "lfm."
EMBEDDING = f"{PREFIX}embed_tokens.weight"

# Names of the tensors that `pack` concatenates. No checkpoint has these.
_QKV = ("self_attn.qkv_proj", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"))
_CONV_IN = ("conv.in_proj", ("conv.in_proj",))
_GATE_UP = ("feed_forward.gate_up", ("feed_forward.w1", "feed_forward.w3"))
_NORM, _MLP_NORM = "operator_norm.weight", "ffn_norm.weight"


def pack(ops: Ops, weights: dict[str, Array], config: BackboneConfig) -> dict[str, Array]:
    """Concatenate weights that share an input, and prepare them for products.

    Args:
        ops: The backend's operations.
        weights: Tensors by checkpoint name, changed in place; those outside the backbone stay as
            they are.
        config: Sizes.

    Returns: The same weights, for `hidden_states`.
    """
    packed = weights
    for n in range(config.num_hidden_layers):
        layer = f"{PREFIX}layers.{n}."
        is_conv = config.is_conv(n)
        for norm_name, (joined, parts) in (
            (_NORM, _CONV_IN if is_conv else _QKV),
            (_MLP_NORM, _GATE_UP),
        ):
            arrays = [packed.pop(f"{layer}{part}.weight") for part in parts]
            norm, weight = ops.fold_norm(packed.pop(layer + norm_name), ops.concat(arrays, 0))
            if norm is not None:
                packed[layer + norm_name] = norm
            packed[f"{layer}{joined}.weight"] = ops.quantize(weight)
        if is_conv:
            taps = f"{layer}conv.conv.weight"
            packed[taps] = packed[taps].reshape(config.hidden_size, config.conv_width)
        for part in ("conv.out_proj" if is_conv else "self_attn.out_proj", "feed_forward.w2"):
            packed[f"{layer}{part}.weight"] = ops.quantize(packed[f"{layer}{part}.weight"])
    return packed


def hidden_states(
    ops: Ops, weights: Weights, config: BackboneConfig, x: Array, context: AttentionContext
) -> Array:
    """Run the backbone and its final norm.

    Args:
        ops: The backend's operations.
        weights: From `pack`.
        config: Sizes.
        x: (positions, hidden) input embeddings of packed sequences.
        context: Which positions each one attends to, and their cached state.

    Returns:
        (positions, hidden) hidden states after the final norm.
    """
    eps = config.norm_eps
    convs = attentions = 0
    for n in range(config.num_hidden_layers):
        layer = _Layer(ops, weights, config, f"{PREFIX}layers.{n}.")
        if config.is_conv(n):
            x = _short_conv(layer, x, context, convs)
            convs += 1
        else:
            x = _attend(layer, x, context, attentions)
            attentions += 1
        gated = ops.gated_linear(x, layer.norm(_MLP_NORM), eps, layer[f"{_GATE_UP[0]}.weight"])
        x = ops.linear_add(gated, layer["feed_forward.w2.weight"], x)
    return ops.rms_norm(x, weights[f"{PREFIX}embedding_norm.weight"], eps)


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer's weights, by their names within the layer, and its context."""

    ops: Ops
    weights: Weights
    config: BackboneConfig
    prefix: str

    def __getitem__(self, name: str) -> Array:
        return self.weights[self.prefix + name]

    def norm(self, name: str) -> Array | None:
        """Return the weight of a norm, or None if it was folded into the following product."""
        return self.weights.get(self.prefix + name)


def _attend(layer: _Layer, x: Array, context: AttentionContext, number: int) -> Array:
    """Run the operator of an attention layer; `number` is the number of those before it."""
    attended = layer.ops.normed_attention(
        x,
        layer.norm(_NORM),
        layer.config.norm_eps,
        layer[f"{_QKV[0]}.weight"],
        spec=layer.config.attention,
        context=context,
        layer=number,
        q_norm=layer["self_attn.q_layernorm.weight"],
        k_norm=layer["self_attn.k_layernorm.weight"],
    )
    return layer.ops.linear_add(attended, layer["self_attn.out_proj.weight"], x)


def _short_conv(layer: _Layer, x: Array, context: AttentionContext, number: int) -> Array:
    """Run the operator of a convolution layer; `number` is the number of those before it."""
    ops, eps = layer.ops, layer.config.norm_eps
    projected = ops.normed_linear(x, layer.norm(_NORM), eps, layer["conv.in_proj.weight"])
    taps = layer["conv.conv.weight"]
    mixed = ops.gated_short_conv(projected, taps, context=context, layer=number)
    return ops.linear_add(mixed, layer["conv.out_proj.weight"], x)
