"""The Qwen3 dense decoder stack, used by talker, code predictor, transcriber and chat.

Pre-norm layers of grouped-query attention, with an RMS norm over each query and key head before
the rotation, and a SwiGLU MLP. Source: transformers, models/qwen3 (4.57).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from izwi.ops import Array, AttentionContext, Ops, Weights
from izwi.ops.frames import FrameLayer
from izwi_models.qwen3.config import MLP_NORM, NORM, DecoderConfig

# Names of the tensors that `pack` concatenates. No checkpoint has these, so they identify packed
# weights.
_QKV = ("self_attn.qkv_proj", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"))
_GATE_UP = ("mlp.gate_up_proj", ("mlp.gate_proj", "mlp.up_proj"))
_ALONE = ("self_attn.o_proj", "mlp.down_proj")
# Ends the name of a norm that is part of a weight: nothing but adapters of that weight needs it.
FOLDED = ".folded"
# The products of a layer in their order, each with the weights of the checkpoint that it joins.
PRODUCTS = (_QKV, (_ALONE[0], _ALONE[:1]), _GATE_UP, (_ALONE[1], _ALONE[1:]))


def pack(
    ops: Ops, weights: dict[str, Array], config: DecoderConfig, prefix: str
) -> dict[str, Array]:
    """Concatenate weights that share an input, for fewer and longer products, and prepare them.

    `decode` also accepts unpacked weights and then packs them on each call, so that gradients reach
    them. Serving packs once.

    Args:
        ops: The backend's operations.
        weights: Tensors by checkpoint name, changed in place, so that both forms are never held
            of all; those outside the stack stay as they are.
        config: Sizes of the stack.
        prefix: See `decode`.

    Returns: The same weights with `qkv_proj` and `gate_up_proj` in place of the parts of each
        layer, and all factors of products processed by `Ops.fold_norm` and `Ops.quantize`. A folded
        norm is under its name with `FOLDED`.
    """
    packed = weights
    for n in range(config.num_hidden_layers):
        layer = f"{prefix}layers.{n}."
        for norm_name, (joined, parts) in ((NORM, _QKV), (MLP_NORM, _GATE_UP)):
            arrays = [packed.pop(f"{layer}{part}.weight") for part in parts]
            own = packed.pop(layer + norm_name)
            norm, weight = ops.fold_norm(own, ops.concat(arrays, 0))
            if norm is None:
                packed[layer + norm_name + FOLDED] = own
            else:
                packed[layer + norm_name] = norm
            packed[f"{layer}{joined}.weight"] = ops.quantize(weight)
        for part in _ALONE:
            packed[f"{layer}{part}.weight"] = ops.quantize(packed[f"{layer}{part}.weight"])
    return packed


def frame_layer(weights: Weights, layer: str) -> FrameLayer:
    """Return the weights of a packed layer, whose names begin with `layer`."""
    return FrameLayer(
        weights.get(layer + NORM),
        weights[f"{layer}{_QKV[0]}.weight"],
        weights[f"{layer}{_ALONE[0]}.weight"],
        weights.get(layer + MLP_NORM),
        weights[f"{layer}{_GATE_UP[0]}.weight"],
        weights[f"{layer}{_ALONE[1]}.weight"],
        weights[f"{layer}self_attn.q_norm.weight"],
        weights[f"{layer}self_attn.k_norm.weight"],
    )


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
        x: (..., tokens, hidden) input embeddings. It may be wider: the next `hidden` columns are
            added to the states after the first layer, those behind them after the second, and so on
            (DeepStack).
        context: Which keys each token attends to, with positions and cache.

    Returns:
        (..., tokens, hidden) hidden states after the final norm.
    """
    width = config.hidden_size
    added = [x[..., at : at + width] for at in range(width, x.shape[-1], width)]
    x = x[..., :width] if added else x
    for n in range(config.num_hidden_layers):
        attend = partial(ops.normed_attention, spec=config.attention, context=context, layer=n)
        x = _layer(ops, weights, config, f"{prefix}layers.{n}.", x, attend)
        if n < len(added):
            x = x + added[n]
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
        weights.get(prefix + NORM),
        eps,
        _joined(ops, weights, prefix, *_QKV),
        q_norm=weights[f"{prefix}self_attn.q_norm.weight"],
        k_norm=weights[f"{prefix}self_attn.k_norm.weight"],
    )
    add = ops.split_linear_add if config.is_split else ops.linear_add
    x = add(attended, weights[f"{prefix}self_attn.o_proj.weight"], x)
    norm = weights.get(prefix + MLP_NORM)
    gated = ops.gated_linear(x, norm, eps, _joined(ops, weights, prefix, *_GATE_UP))
    return add(gated, weights[f"{prefix}mlp.down_proj.weight"], x)


def _joined(ops: Ops, weights: Weights, prefix: str, joined: str, parts: tuple[str, ...]) -> Array:
    packed = weights.get(f"{prefix}{joined}.weight")
    if packed is not None:
        return packed
    return ops.concat([weights[f"{prefix}{part}.weight"] for part in parts], 0)
