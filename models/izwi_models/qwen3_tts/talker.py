"""The talker and its code predictor: embeddings, codec logits, and the codebooks of one frame.

Source: qwen-tts 0.1.1, core/models/modeling_qwen3_tts.py. Its rotary embedding has three rows of
positions, which are always equal, so the plain one of `izwi_models.qwen3.decoder` is used here.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import numpy.typing as npt

from izwi.model.protocol import Pick
from izwi.ops import Array, AttentionContext, Ops, Weights
from izwi.ops.frames import FrameStack
from izwi_models.qwen3.config import layer_matrices
from izwi_models.qwen3.decoder import decode, frame_layer, pack
from izwi_models.qwen3_tts.config import TTSConfig
from izwi_models.qwen3_tts.prompt import NOTHING

PREFIX = "talker.model."  # of the names of its stack's tensors
_TEXT = "talker.model.text_embedding.weight"
_HEAD = "talker.codec_head.weight"
_PREDICTOR = "talker.code_predictor."
_TO_PREDICTOR = f"{_PREDICTOR}small_to_mtp_projection"

# Names that `prepare` adds. No checkpoint has them, so their presence marks prepared weights.
_TABLE = "talker.code_table"  # (rows, hidden): embeddings of all codebooks, zeros before each
_OFFSETS = "talker.code_offsets"  # (codebooks,) int64, row of the first code of each in the table
_PREDICTOR_TABLE = f"{_PREDICTOR}code_table"  # the same rows, projected to the predictor's width


def packable(shapes: Mapping[str, tuple[int, ...]]) -> frozenset[str]:
    """Return the matrices that may stay packed: products of the stacks, heads, and text."""
    others = {name for name in shapes if name in (_TEXT, _HEAD) or "lm_head." in name}
    stacks = (PREFIX, f"{_PREDICTOR}model.")
    return frozenset(others).union(*(layer_matrices(shapes, stack) for stack in stacks))


def prepare(ops: Ops, weights: dict[str, Array], config: TTSConfig) -> dict[str, Array]:
    """Prepare weights for serving: join tables, project the predictor's, quantize the heads.

    Otherwise every frame would join and project again. All functions of this module also accept
    plain weights, which training needs for gradients. The weights are changed in place.
    """
    talker = config.talker_config
    ready = pack(ops, weights, talker, PREFIX)
    ready = pack(ops, ready, talker.code_predictor_config, f"{_PREDICTOR}model.")
    names = _embedding_names(talker.num_code_groups)
    sizes = [weights[name].shape[0] for name in names]
    offsets = _table_offsets(sizes)
    nothing = ops.zeros((1, weights[names[0]].shape[1]))
    table = ops.concat([part for name in names for part in (nothing, weights[name])], 0)
    for name, offset, size in zip(names, offsets.tolist(), sizes, strict=True):
        ready[name] = table[offset : offset + size]  # a view, which takes no memory
    ready[_TABLE], ready[_OFFSETS] = table, ops.array(offsets)
    if f"{_TO_PREDICTOR}.weight" in weights:
        ready[_PREDICTOR_TABLE] = _to_predictor(ops, weights, table)
    for name in (_HEAD, *(_head_name(n) for n in range(1, talker.num_code_groups))):
        ready[name] = ops.quantize(ready[name])
    return ready


def embed_text(ops: Ops, weights: Weights, ids: Array) -> Array:
    """Embed text tokens and project them to the talker's width: (n,) int64 -> (n, hidden)."""
    x = ops.take(weights[_TEXT], ids)
    name = "talker.text_projection.linear_fc"
    x = ops.silu(ops.linear(x, weights[f"{name}1.weight"], weights[f"{name}1.bias"]))
    return ops.linear(x, weights[f"{name}2.weight"], weights[f"{name}2.bias"])


def embed_codec(ops: Ops, weights: Weights, ids: Array) -> Array:
    """Embed ids of the codec vocabulary (codes of codebook 0, controls): (n,) -> (n, hidden)."""
    return ops.take(weights["talker.model.codec_embedding.weight"], ids)


def embed_frame(ops: Ops, weights: Weights, codes: Array) -> Array:
    """Sum the embeddings of a frame's codes.

    Args:
        ops: The backend's operations.
        weights: Tensors by checkpoint name.
        codes: (n, codebooks) int64; codebook 0 has ids of the talker's codec vocabulary. With
            prepared weights, the id NOTHING adds zeros.

    Returns:
        (n, hidden).
    """
    if _TABLE in weights:
        return ops.sum(ops.take(weights[_TABLE], codes + weights[_OFFSETS]), 1)
    names = _embedding_names(codes.shape[1])
    parts = [ops.take(weights[name], codes[:, place]) for place, name in enumerate(names)]
    return ops.sum(ops.stack(parts, 1), 1)


def hidden_states(
    ops: Ops, weights: Weights, config: TTSConfig, x: Array, context: AttentionContext
) -> Array:
    """Run the talker: input embeddings (..., tokens, hidden) -> states after the final norm."""
    return decode(ops, weights, config.talker_config, PREFIX, x, context)


def codec_logits(ops: Ops, weights: Weights, hidden: Array) -> Array:
    """Compute logits of codebook 0: (..., hidden) -> (..., codec vocabulary)."""
    return ops.linear(hidden, weights[_HEAD])


def predict_codes(
    ops: Ops, weights: Weights, config: TTSConfig, hidden: Array, first_ids: Array, pick: Pick
) -> Array:
    """Draw codebooks 1.. of one frame for all rows at once.

    Args:
        ops: The backend's operations.
        weights: Tensors by checkpoint name.
        config: The checkpoint's configuration.
        hidden: (rows, hidden) talker states that the first ids were drawn from.
        first_ids: (rows,) int64 drawn for codebook 0.
        pick: Draws the ids of a codebook from its logits.

    Returns:
        (rows, codebooks) int64, including the first ids.
    """
    predictor = config.talker_config.code_predictor_config
    groups, num_layers = predictor.num_code_groups, predictor.num_hidden_layers
    first = _embed_for_predictor(ops, weights, first_ids, 0)
    x = ops.stack([_to_predictor(ops, weights, hidden), first], 1)  # (rows, 2, predictor hidden)
    if _TABLE in weights:  # a stack has joined weights
        drawn = ops.draw_codes(partial(_frame_stack, weights, config), x, pick)
        if drawn is not None:
            return ops.concat([first_ids[:, None], drawn], 1)
    context = ops.scratch_context(hidden.shape[0], groups, num_layers, predictor.attention)
    ids = [first_ids]
    for codebook in range(1, groups):
        out = decode(ops, weights, predictor, f"{_PREDICTOR}model.", x, context)
        context.advance(x.shape[1])
        ids.append(pick(_code_logits(ops, weights, out[:, -1], codebook), codebook))
        if codebook + 1 < groups:  # the last code is never fed back
            x = _embed_for_predictor(ops, weights, ids[-1], codebook)[:, None]
    return ops.stack(ids, 1)


def predictor_logits(
    ops: Ops, weights: Weights, config: TTSConfig, hidden: Array, codes: Array
) -> Array:
    """Compute logits of codebooks 1.. from the true codes (teacher forcing).

    Args:
        ops: The backend's operations.
        weights: Tensors by checkpoint name.
        config: The checkpoint's configuration.
        hidden: (n, hidden) talker states, one for each frame.
        codes: (n, codebooks) int64, the target frames of these states.

    Returns:
        (n, codebooks - 1, predictor vocabulary); [:, j] are the logits of codebook j + 1.
    """
    predictor = config.talker_config.code_predictor_config
    groups = codes.shape[1]
    inputs = [hidden, embed_codec(ops, weights, codes[:, 0])]
    inputs += [_embed_code(ops, weights, codes[:, j], j) for j in range(1, groups - 1)]
    x = _to_predictor(ops, weights, ops.stack(inputs, 1))  # (n, codebooks, predictor hidden)
    context = ops.dense_context(x.shape[0], groups)
    out = decode(ops, weights, predictor, f"{_PREDICTOR}model.", x, context)
    return ops.stack([_code_logits(ops, weights, out[:, j], j) for j in range(1, groups)], 1)


def _frame_stack(weights: Weights, config: TTSConfig) -> FrameStack:
    """Return the code predictor with prepared weights."""
    predictor = config.talker_config.code_predictor_config
    layers = [
        frame_layer(weights, f"{_PREDICTOR}model.layers.{n}.")
        for n in range(predictor.num_hidden_layers)
    ]
    codebooks = range(1, predictor.num_code_groups)
    embeds = [weights[name] for name in _embedding_names(len(codebooks))]
    if _PREDICTOR_TABLE in weights:
        sizes = [embed.shape[0] for embed in embeds]
        table = weights[_PREDICTOR_TABLE]
        places = zip(_table_offsets(sizes).tolist(), sizes, strict=True)
        embeds = [table[first : first + size] for first, size in places]
    return FrameStack(
        layers,
        [weights[_head_name(n)] for n in codebooks],
        embeds[1:],
        weights[f"{_PREDICTOR}model.norm.weight"],
        predictor.attention,
        predictor.rms_norm_eps,
    )


def _table_offsets(sizes: list[int]) -> npt.NDArray[np.int64]:
    """Return the row of the first code of each codebook in the joined table."""
    return -NOTHING + np.cumsum([0, *(size + 1 for size in sizes[:-1])])


def _embedding_names(num_codebooks: int) -> list[str]:
    own = [f"{_PREDICTOR}model.codec_embedding.{n}.weight" for n in range(num_codebooks - 1)]
    return ["talker.model.codec_embedding.weight", *own]


def _embed_code(ops: Ops, weights: Weights, ids: Array, codebook: int) -> Array:
    return ops.take(weights[_embedding_names(codebook + 1)[codebook]], ids)


def _embed_for_predictor(ops: Ops, weights: Weights, ids: Array, codebook: int) -> Array:
    """Embed codes in the predictor's width: (n,) int64 -> (n, predictor hidden)."""
    if _PREDICTOR_TABLE in weights:
        return ops.take(weights[_PREDICTOR_TABLE], ids + weights[_OFFSETS][codebook])
    return _to_predictor(ops, weights, _embed_code(ops, weights, ids, codebook))


def _code_logits(ops: Ops, weights: Weights, hidden: Array, codebook: int) -> Array:
    return ops.linear(hidden, weights[_head_name(codebook)])


def _head_name(codebook: int) -> str:
    return f"{_PREDICTOR}lm_head.{codebook - 1}.weight"


def _to_predictor(ops: Ops, weights: Weights, x: Array) -> Array:
    """Project the talker's width to the predictor's, if they differ."""
    if f"{_TO_PREDICTOR}.weight" not in weights:
        return x
    return ops.linear(x, weights[f"{_TO_PREDICTOR}.weight"], weights[f"{_TO_PREDICTOR}.bias"])
