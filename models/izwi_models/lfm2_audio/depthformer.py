"""The depthformer: draws the codes of one frame, codebook by codebook, from a backbone state.

The input of codebook i is the i-th slice of a projection of the state plus the embedding of the
previous code; each codebook has its own norm and output head. Source: liquid-audio 1.3.0,
model/lfm2_audio.py and model/transformer.py, whose rotation pairs neighbouring elements: `pack`
reorders the rows of queries and keys so that the usual half-rotation gives the same result.
"""

from __future__ import annotations

import numpy as np

from izwi.model.protocol import Pick
from izwi.ops import Array, AttentionContext, Ops, Weights
from izwi_models.lfm2_audio.config import END_OF_AUDIO, DepthformerConfig, LFM2AudioConfig

_PREFIX = "depthformer.layers."
_QKV = "operator.qkv_proj.weight"
_HEAD_NORMS = tuple(f"operator.bounded_attention.{name}_layernorm.weight" for name in "qk")
_GATE_UP, _GATE, _UP = (f"feed_forward.{name}.weight" for name in ("gate_up", "w1", "w3"))
_DOWN, _OUT = "feed_forward.w2.weight", "operator.out_proj.weight"
_NORM, _MLP_NORM = "operator_norm.weight", "ffn_norm.weight"


def pack(ops: Ops, weights: Weights, config: LFM2AudioConfig) -> dict[str, Array]:
    """Prepare the depthformer's weights for `draw_frames`; others are not changed."""
    packed, depth = dict(weights), config.depthformer
    rows, in_head = _half_rotation_rows(depth)
    for n in range(depth.layers):
        layer = f"{_PREFIX}{n}."
        for name in _HEAD_NORMS:
            column = packed[layer + name][:, None]
            packed[layer + name] = ops.take(column, ops.array(in_head)).reshape(-1)
        qkv = ops.take(packed[layer + _QKV], ops.array(rows))
        gate_up = ops.concat([packed.pop(layer + _GATE), packed.pop(layer + _UP)], 0)
        for norm_name, name, joined in ((_NORM, _QKV, qkv), (_MLP_NORM, _GATE_UP, gate_up)):
            norm, weight = ops.fold_norm(packed.pop(layer + norm_name), joined)
            if norm is not None:
                packed[layer + norm_name] = norm
            packed[layer + name] = ops.quantize(weight)
        for name in (_OUT, _DOWN):
            packed[layer + name] = ops.quantize(packed[layer + name])
    packed["depth_linear.weight"] = ops.quantize(packed["depth_linear.weight"])
    for n in range(config.codebooks):
        codebook = f"depth_embeddings.{n}."
        own = "embedding" if depth.tie else "to_logits"
        norm, head = ops.fold_norm(
            packed.pop(f"{codebook}embedding_norm.weight"), packed[f"{codebook}{own}.weight"]
        )
        if norm is not None:
            packed[f"{codebook}embedding_norm.weight"] = norm
        packed[f"{codebook}to_logits.weight"] = ops.quantize(head)
    return packed


def draw_frames(
    ops: Ops, weights: Weights, config: LFM2AudioConfig, hidden: Array, pick: Pick
) -> Array:
    """Draw one frame from each state, all rows at once.

    Args:
        ops: The backend's operations.
        weights: From `pack`.
        config: Sizes.
        hidden: (rows, hidden) states of the backbone.
        pick: Draws the ids of a codebook from its logits.

    Returns: (rows, codebooks) int64. A frame that begins with END_OF_AUDIO has END_OF_AUDIO in
        every codebook.
    """
    depth = config.depthformer
    inputs = ops.linear(hidden, weights["depth_linear.weight"], weights["depth_linear.bias"])
    inputs = inputs.reshape(hidden.shape[0], config.codebooks, depth.dim)
    context = ops.scratch_context(hidden.shape[0], config.codebooks, depth.layers, depth.attention)
    x, ids = inputs[:, :1], []
    for n in range(config.codebooks):
        out = _decode(ops, weights, depth, x, context)
        context.advance(1)
        ids.append(pick(_logits(ops, weights, depth, out[:, 0], n), n))
        if n + 1 < config.codebooks:
            before = ops.take(weights[f"depth_embeddings.{n}.embedding.weight"], ids[-1])
            x = inputs[:, n + 1 : n + 2] + before[:, None]
    frames = ops.stack(ids, 1)
    return ops.where(frames[:, :1] != END_OF_AUDIO, frames, END_OF_AUDIO)


def _decode(
    ops: Ops, weights: Weights, config: DepthformerConfig, x: Array, context: AttentionContext
) -> Array:
    """Run the layers on one position of each row: (rows, 1, dim), without a final norm."""
    eps = config.norm_eps
    q_name, k_name = _HEAD_NORMS
    for n in range(config.layers):
        layer = f"{_PREFIX}{n}."
        attended = ops.normed_attention(
            x,
            weights.get(layer + _NORM),
            eps,
            weights[layer + _QKV],
            spec=config.attention,
            context=context,
            layer=n,
            q_norm=weights[layer + q_name],
            k_norm=weights[layer + k_name],
        )
        x = ops.linear_add(attended, weights[layer + _OUT], x)
        gated = ops.gated_linear(x, weights.get(layer + _MLP_NORM), eps, weights[layer + _GATE_UP])
        x = ops.linear_add(gated, weights[layer + _DOWN], x)
    return x


def _logits(
    ops: Ops, weights: Weights, config: DepthformerConfig, x: Array, codebook: int
) -> Array:
    prefix = f"depth_embeddings.{codebook}."
    norm = weights.get(f"{prefix}embedding_norm.weight")
    return ops.normed_linear(x, norm, config.norm_eps, weights[f"{prefix}to_logits.weight"])


def _half_rotation_rows(config: DepthformerConfig) -> tuple[list[int], list[int]]:
    """Return the order of qkv_proj's rows, and of elements of a head, for the half-rotation layout.

    Neighbours 2i and 2i + 1 of a query or key head go to i and i + head_dim / 2; values stay.
    """
    spec = config.attention
    in_head = [*range(0, spec.head_dim, 2), *range(1, spec.head_dim, 2)]
    rotated = spec.num_heads + spec.num_kv_heads
    heads = np.arange(rotated)[:, None] * spec.head_dim + np.array(in_head)
    values = np.arange(spec.num_kv_heads * spec.head_dim) + rotated * spec.head_dim
    return [*heads.ravel().tolist(), *values.tolist()], in_head
