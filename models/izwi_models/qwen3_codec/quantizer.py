"""Latents to codes and codes to latents, with residual codebooks; the first is separate."""

from __future__ import annotations

import numpy as np

from izwi.ops.protocol import Array, Ops, Weights
from izwi_models.qwen3_codec.config import CodecConfig

# Names that `prepare` adds. No checkpoint has them, so they tell prepared weights from plain ones.
_ENTRIES = "encoder.quantizer.entries"  # + .N: (size, dim), codebook N of a frame
_TABLE = "decoder.quantizer.table"  # (codebooks * size, dim), all codebooks concatenated
_OFFSETS = "decoder.quantizer.offsets"  # (codebooks,) int64, first row of each in the table

_SEMANTIC = "encoder.quantizer.semantic_residual_vector_quantizer"
_ACOUSTIC = "encoder.quantizer.acoustic_residual_vector_quantizer"
_FIRST = "decoder.quantizer.rvq_first"
_REST = "decoder.quantizer.rvq_rest"

_MIN_USAGE = 1e-5  # an entry that training never used must not cause a division by zero


def prepare(ops: Ops, weights: Weights, config: CodecConfig) -> dict[str, Array]:
    """Derive the codebooks once and drop unused tensors.

    Every function of this package also accepts unprepared weights and then derives the codebooks on
    each call, so that gradients reach them. Serving passes prepared weights.
    """
    derived = _encoder_codebooks(ops, weights, config) | _decoder_table(ops, weights, config)
    unread = (
        *(
            f"{group}.{part}."
            for group in (_SEMANTIC, _ACOUSTIC)
            for part in ("layers", "output_proj")
        ),
        *(f"{group}.{part}." for group in (_FIRST, _REST) for part in ("vq", "input_proj")),
    )
    kept = {name: tensor for name, tensor in weights.items() if not name.startswith(unread)}
    return kept | derived


def quantise(ops: Ops, weights: Weights, config: CodecConfig, latents: Array) -> Array:
    """Turn encoder latents into codes.

    Codebook 0 codes its own projection of the latents. The others code another projection of the
    same latents, each the residual of the previous ones.

    Args:
        ops: Operations.
        weights: Plain or prepared.
        config: The codec's configuration.
        latents: (batch, frames, hidden) floats of `encode_latents`.

    Returns:
        (batch, frames, codebooks) int64.
    """
    if f"{_ENTRIES}.0" not in weights:
        weights = {**weights, **_encoder_codebooks(ops, weights, config)}
    codes: list[Array] = []
    for group, first, stop in (
        (_SEMANTIC, 0, 1),
        (_ACOUSTIC, 1, config.encoder_valid_num_quantizers),
    ):
        residual = ops.linear(latents, weights[f"{group}.input_proj.weight"][:, :, 0])
        for index in range(first, stop):
            entries = weights[f"{_ENTRIES}.{index}"]
            code = ops.nearest(residual, entries)  # (batch, frames)
            residual = residual - ops.take(entries, code)
            codes.append(code)
    return ops.stack(codes, axis=-1)


def dequantise(ops: Ops, weights: Weights, config: CodecConfig, codes: Array) -> Array:
    """Turn codes into latents for the decoder.

    Args:
        ops: Operations.
        weights: Plain or prepared.
        config: The codec's configuration.
        codes: (batch, frames, codebooks) int64. Negative codes, which pad short rows, count as 0.

    Returns:
        (batch, codebook_dim, frames) floats.
    """
    if _TABLE not in weights:
        weights = {**weights, **_decoder_table(ops, weights, config)}
    rows = ops.take(weights[_TABLE], ops.clip(codes, 0, None) + weights[_OFFSETS])
    first = rows[:, :, 0]  # rows: (batch, frames, codebooks, codebook_dim / 2)
    rest = ops.sum(rows[:, :, 1:], axis=2)
    out = ops.linear(first, weights[f"{_FIRST}.output_proj.weight"][:, :, 0])
    out = out + ops.linear(rest, weights[f"{_REST}.output_proj.weight"][:, :, 0])
    return ops.transpose(out, (0, 2, 1))


def _encoder_codebooks(ops: Ops, weights: Weights, config: CodecConfig) -> dict[str, Array]:
    books: dict[str, Array] = {}
    for index in range(config.encoder_valid_num_quantizers):
        layer = f"{_SEMANTIC}.layers.0" if index == 0 else f"{_ACOUSTIC}.layers.{index - 1}"
        total = weights[f"{layer}.codebook.embed_sum"]
        usage = weights[f"{layer}.codebook.cluster_usage"]
        books[f"{_ENTRIES}.{index}"] = _entries(ops, total, usage)
    return books


def _decoder_table(ops: Ops, weights: Weights, config: CodecConfig) -> dict[str, Array]:
    num_codebooks = config.decoder_config.num_quantizers
    books: list[Array] = []
    for index in range(num_codebooks):
        layer = f"{_FIRST}.vq.layers.0" if index == 0 else f"{_REST}.vq.layers.{index - 1}"
        total = weights[f"{layer}._codebook.embedding_sum"]
        usage = weights[f"{layer}._codebook.cluster_usage"]
        books.append(_entries(ops, total, usage))
    offsets = np.arange(num_codebooks, dtype=np.int64) * config.decoder_config.codebook_size
    return {_TABLE: ops.concat(books, axis=0), _OFFSETS: ops.array(offsets)}


def _entries(ops: Ops, total: Array, usage: Array) -> Array:
    """Return the mean of each entry: (size, dim) sums divided by (size,) counts."""
    return total / ops.clip(usage, _MIN_USAGE, None)[:, None]
