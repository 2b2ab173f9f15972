"""Mimi's decoder, the codec of LFM2-Audio-1.5B: frames of codes to a stream of 24 kHz audio.

Two residual quantizers, the first of one codebook, give latents at 12.5 Hz; a transposed
convolution of each channel upsamples them to 25 Hz, a transformer attends to the last 10 s, and
convolutions upsample by 960. The decoder is strictly causal, so decoding in chunks with state
equals decoding everything in one pass.

Source: liquid_audio 1.3.0, moshi/ (Kyutai's Mimi), whose names the weights have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from izwi.model.layers import StateSpec
from izwi.ops import Array, AttentionSpec, Ops, Weights
from izwi_models.lfm2_audio.audio_config import MimiConfig
from izwi_models.lfm2_audio.audio_tensors import MIMI_KERNEL, MIMI_LAST_KERNEL, MIMI_UNIT_KERNEL

_NORM_EPS = 1e-5
_MIN_USAGE = 1e-5  # an entry that training never used must not cause a division by zero
_UPSAMPLING = 2  # from frames to positions of the transformer

# Names of derived tensors and of state. No checkpoint has these.
_TABLE = "table"  # (codebooks * size, dim), all codebooks concatenated
_OFFSETS = "offsets"  # (codebooks,) int64, first row of each in the table
_START = "start"  # positions so far
_UPSAMPLE = "upsample"


def prepare(ops: Ops, weights: Weights, config: MimiConfig) -> dict[str, Array]:
    """Derive the tensors that decoding reads, and drop the others.

    Codebooks are divided by their usage. Rows of query and key projections are reordered from
    rotation of neighbouring pairs to half-rotation, which the operations compute.

    Args:
        ops: The backend's operations.
        weights: Tensors by the names of `mimi_shapes`.
        config: Sizes.
    """
    projections = tuple(f"quantizer.rvq_{kind}.output_proj." for kind in ("first", "rest"))
    kept = ("decoder.", "decoder_transformer.", "upsample.", *projections)
    prepared = {name: array for name, array in weights.items() if name.startswith(kept)}
    books: list[Array] = []
    for index in range(config.num_codebooks):
        kind, layer = ("first", 0) if index == 0 else ("rest", index - 1)
        book = f"quantizer.rvq_{kind}.vq.layers.{layer}._codebook"
        usage = ops.clip(weights[f"{book}.cluster_usage"], _MIN_USAGE, None)
        books.append(weights[f"{book}.embedding_sum"] / usage[:, None])
    prepared[_TABLE] = ops.concat(books, 0)
    first_rows = np.arange(config.num_codebooks, dtype=np.int64) * config.codebook_size
    prepared[_OFFSETS] = ops.array(first_rows)
    order = ops.array(_half_rotation_order(config))
    for index in range(config.num_layers):
        attention = f"{_layer(index)}.self_attn"
        for ours, listed in (("in_proj_weight", "in_projs.0"), ("out_proj.weight", "out_projs.0")):
            if f"{attention}.{listed}.weight" in prepared:
                moved = prepared.pop(f"{attention}.{listed}.weight")
                prepared[f"{attention}.{ours}"] = moved
        name = f"{attention}.in_proj_weight"
        prepared[name] = ops.take(prepared[name], order)
    return prepared


def _half_rotation_order(config: MimiConfig) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the row order of (queries, keys, values): even rows of query and key heads first."""
    hidden, head_dim = config.hidden_size, config.head_dim
    rows = np.arange(2 * hidden, dtype=np.int64).reshape(-1, head_dim // 2, 2)
    turned = rows.transpose(0, 2, 1).reshape(-1)
    return np.concatenate([turned, np.arange(2 * hidden, 3 * hidden, dtype=np.int64)])


def state_shapes(config: MimiConfig) -> dict[str, StateSpec]:
    """Return the shapes of a stream's state, without the batch axis. Zeros start a stream.

    "start" counts the transformer's positions so far. The others are named after the layer whose
    past they hold: input columns of convolutions (channels, columns), keys and values of
    attention (window - 1, heads, head_dim).
    """
    heads = (config.window - 1, config.num_heads, config.head_dim)
    state = {_START: StateSpec((), "int64"), _UPSAMPLE: StateSpec((config.hidden_size, 1))}
    for index in range(config.num_layers):
        for part in ("keys", "values"):
            state[f"{_layer(index)}.{part}"] = StateSpec(heads)
    state["decoder.model.0"] = StateSpec((config.hidden_size, MIMI_KERNEL - 1))
    width = config.num_filters << len(config.ratios)
    for index in range(len(config.ratios)):
        layer = 2 + 3 * index
        state[f"decoder.model.{layer}"] = StateSpec((width, 1))
        width //= 2
        unit = f"decoder.model.{layer + 1}.block.1"
        state[unit] = StateSpec((width, MIMI_UNIT_KERNEL - 1))
    last = f"decoder.model.{2 + 3 * len(config.ratios)}"
    return state | {last: StateSpec((width, MIMI_LAST_KERNEL - 1))}


def decode(
    ops: Ops, weights: Weights, config: MimiConfig, codes: Array, state: Mapping[str, Array]
) -> tuple[Array, dict[str, Array]]:
    """Decode the next frames of each stream.

    Args:
        ops: The backend's operations.
        weights: From `prepare`.
        config: Sizes.
        codes: (batch, frames, codebooks) int64. Invalid codes, as in the padding of short rows, are
            replaced by the nearest valid one.
        state: One array (batch, ...) for each name of `state_shapes`. Rows may be at different
            frames.

    Returns: (batch, frames * 1920) floats in [-1, 1] at 24 kHz, and the state for the next frames.
        Samples are clipped; the reference does not clip.
    """
    stream = _Stream(ops, weights, state)
    x = _dequantize(ops, weights, config, codes)  # (batch, hidden, frames)
    x = _upsample(stream, x)
    x = _transformer(stream, config, x)  # (batch, positions, hidden)
    x = stream.conv("decoder.model.0", ops.transpose(x, (0, 2, 1)))
    for index, ratio in enumerate(config.ratios):
        layer = 2 + 3 * index
        x = stream.upsample(f"decoder.model.{layer}", ops.elu(x), ratio)
        unit = f"decoder.model.{layer + 1}"
        y = ops.elu(stream.conv(f"{unit}.block.1", ops.elu(x)))
        x = x + ops.conv1d(y, *stream.pair(f"{unit}.block.3.conv.conv"))
    x = stream.conv(f"decoder.model.{2 + 3 * len(config.ratios)}", ops.elu(x))
    return ops.clip(x[:, 0], -1.0, 1.0), stream.after


@dataclass(frozen=True, slots=True)
class _Stream:
    """Layers by name; each reads its state from `before` and writes the next to `after`."""

    ops: Ops
    weights: Weights
    before: Mapping[str, Array]
    after: dict[str, Array] = field(default_factory=dict)

    def pair(self, name: str) -> tuple[Array, Array]:
        return self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]

    def conv(self, name: str, x: Array) -> Array:
        out, self.after[name] = self.ops.causal_conv1d(
            x, *self.pair(f"{name}.conv.conv"), self.before[name]
        )
        return out

    def upsample(self, name: str, x: Array, stride: int) -> Array:
        out, self.after[name] = self.ops.causal_conv_transpose1d(
            x, *self.pair(f"{name}.convtr.convtr"), self.before[name], stride=stride
        )
        return out


def _dequantize(ops: Ops, weights: Weights, config: MimiConfig, codes: Array) -> Array:
    codes = ops.clip(codes, 0, config.codebook_size - 1)
    rows = ops.take(weights[_TABLE], codes + weights[_OFFSETS])
    first, rest = rows[:, :, 0], ops.sum(rows[:, :, 1:], axis=2)  # (batch, frames, codebook_dim)
    out = ops.linear(first, weights["quantizer.rvq_first.output_proj.weight"][:, :, 0])
    out = out + ops.linear(rest, weights["quantizer.rvq_rest.output_proj.weight"][:, :, 0])
    return ops.transpose(out, (0, 2, 1))


def _upsample(stream: _Stream, x: Array) -> Array:
    """Compute two positions from each frame and the previous one; x is (batch, hidden, frames)."""
    weight = stream.weights["upsample.convtr.convtr.convtr.weight"]  # (hidden, 1, 4)
    joined = stream.ops.concat([stream.before[_UPSAMPLE], x], 2)
    stream.after[_UPSAMPLE] = joined[..., -1:]
    now, past = joined[..., 1:, None], joined[..., :-1, None]
    out = now * weight[:, :, :_UPSAMPLING] + past * weight[:, :, _UPSAMPLING:]
    return out.reshape(x.shape[0], x.shape[1], _UPSAMPLING * x.shape[2])


def _transformer(stream: _Stream, config: MimiConfig, x: Array) -> Array:
    """(batch, hidden, positions) -> (batch, positions, hidden)."""
    ops = stream.ops
    stream.after[_START] = stream.before[_START] + x.shape[-1]
    x = ops.transpose(x, (0, 2, 1))
    for index in range(config.num_layers):
        layer = _layer(index)
        y = ops.layer_norm(x, *stream.pair(f"{layer}.norm1"), _NORM_EPS)
        y = _attention(stream, config, layer, y)
        x = x + y * stream.weights[f"{layer}.layer_scale_1.scale"]
        y = ops.layer_norm(x, *stream.pair(f"{layer}.norm2"), _NORM_EPS)
        y = ops.gelu(ops.linear(y, stream.weights[f"{layer}.linear1.weight"]))
        y = ops.linear(y, stream.weights[f"{layer}.linear2.weight"])
        x = x + y * stream.weights[f"{layer}.layer_scale_2.scale"]
    return x


def _attention(stream: _Stream, config: MimiConfig, layer: str, x: Array) -> Array:
    ops, width = stream.ops, config.hidden_size
    keys, values = f"{layer}.keys", f"{layer}.values"
    qkv = ops.linear(x, stream.weights[f"{layer}.self_attn.in_proj_weight"])
    out, stream.after[keys], stream.after[values] = ops.window_attention(
        qkv[..., :width],
        qkv[..., width : 2 * width],
        qkv[..., 2 * width :],
        spec=AttentionSpec(
            config.num_heads, config.num_heads, config.head_dim, rope_theta=config.rope_theta
        ),
        window=config.window,
        start=stream.before[_START],
        k_state=stream.before[keys],
        v_state=stream.before[values],
    )
    return ops.linear(out, stream.weights[f"{layer}.self_attn.out_proj.weight"])


def _layer(index: int) -> str:
    return f"decoder_transformer.transformer.layers.{index}"
