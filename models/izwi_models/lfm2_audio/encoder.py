"""The audio encoder of LFM2-Audio: mel frames to rows of the backbone's width.

A FastConformer: convolutions reduce eight frames (80 ms) to one token, conformer layers attend in
both directions over the whole segment with relative positions, and a small adapter follows.
Segments are encoded independently; in a batch, padding is masked.

Source: liquid_audio 1.3.0, model/conformer (NeMo's ConformerEncoder) and model/mlp.py.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from izwi.ops import Array, AttentionSpec, Ops, Weights
from izwi_models.lfm2_audio.audio_config import EncoderConfig

_NORM_EPS = 1e-5  # of layer norms and batch norms
_MAX_TIMESCALE = 10_000.0
# Maximum number of values that the first convolution computes in one pass: its output is 64 times
# larger than its input.
_MOST_NUMBERS = 256 * 64 * 2048

# Names of the tensors that `pack_encoder` concatenates. No checkpoint has these.
_QKV = ("self_attn.linear_qkv", ("self_attn.linear_q", "self_attn.linear_k", "self_attn.linear_v"))
_FOLDED = "conv.folded"


class AudioMask(NamedTuple):
    """Which positions of padded segments are audio, after each convolution.

    Attributes:
        columns: (batch, 1, positions, 1) bool for the input and for the outputs of the first two
            convolutions.
        tokens: (batch, tokens, 1) bool.
        num_tokens: (batch,) int64.
    """

    columns: tuple[Array, ...]
    tokens: Array
    num_tokens: Array


def pack_encoder(ops: Ops, weights: Weights, config: EncoderConfig) -> dict[str, Array]:
    """Concatenate weights that share an input, and fold batch norms into convolutions.

    `encode` also accepts unpacked weights and then packs them on each call, so that gradients reach
    them. Serving packs once.

    Args:
        ops: The backend's operations.
        weights: Tensors by checkpoint name; those outside the encoder stay as they are.
        config: Sizes of the encoder.
    """
    packed = dict(weights)
    joined, parts = _QKV
    for n in range(config.n_layers):
        layer = f"conformer.layers.{n}."
        for kind in ("weight", "bias"):
            packed[f"{layer}{joined}.{kind}"] = _joined(ops, weights, layer, kind)
            for part in parts:
                del packed[f"{layer}{part}.{kind}"]
        folded = _folded(ops, weights, layer)
        packed[f"{layer}{_FOLDED}.weight"], packed[f"{layer}{_FOLDED}.bias"] = folded
        unread = (f"{layer}conv.depthwise_conv.", f"{layer}conv.batch_norm.")
        packed = {name: array for name, array in packed.items() if not name.startswith(unread)}
    return packed


def distance_table(config: EncoderConfig, tokens: int) -> npt.NDArray[np.float32]:
    """Return sinusoids of distances tokens - 1 down to 1 - tokens, sines and cosines alternating.

    Angles are float32 products, as in the reference; they are imprecise for large distances.

    Returns: (2 * tokens - 1, d_model). The table of fewer tokens is its middle part.
    """
    even = np.arange(0, config.d_model, 2, dtype=np.float32)
    rates = np.exp(even * np.float32(-math.log(_MAX_TIMESCALE) / config.d_model))
    distances = np.arange(tokens - 1, -tokens, -1, dtype=np.float32)
    angles = distances[:, None] * rates
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(len(distances), -1)


def encode(
    ops: Ops,
    weights: Weights,
    config: EncoderConfig,
    mel: Array,
    num_frames: Array | None = None,
    table: Array | None = None,
) -> Array:
    """Encode segments of equal length, or padded to equal length.

    Args:
        ops: The backend's operations.
        weights: Plain or packed.
        config: Sizes of the encoder.
        mel: (batch, feat_in, frames), see `features.log_mel`; any finite values after a segment.
        num_frames: (batch,) int64 on the device, at least 1: frames of each segment. None: all.
        table: `distance_table` on the device, of at least as many tokens; made here where None.

    Returns: (batch, config.num_tokens(frames), d_model). With the last two arguments, all inputs
        are on the device.
    """
    tokens = config.num_tokens(mel.shape[-1])
    if table is None:
        table = ops.array(distance_table(config, tokens))
    centre = table.shape[0] // 2
    distances = table[centre + 1 - tokens : centre + tokens]
    mask = None if num_frames is None else _audio_mask(ops, mel.shape[-1], num_frames)
    x = _subsample(ops, weights, config, ops.transpose(mel, (0, 2, 1)), mask)
    for n in range(config.n_layers):
        x = _layer(ops, weights, config, f"conformer.layers.{n}.", x, _Segments(distances, mask))
    return x


def adapt(ops: Ops, weights: Weights, x: Array) -> Array:
    """Project encoded tokens, (..., d_model), to the backbone's width."""
    x = _affine(
        ops, weights, "audio_adapter.model.1", _norm(ops, weights, "audio_adapter.model.0", x)
    )
    return _affine(ops, weights, "audio_adapter.model.3", ops.gelu(x))


def _audio_mask(ops: Ops, frames: int, num_frames: Array) -> AudioMask:
    columns: list[Array] = []
    for _ in range(3):
        columns.append((ops.arange(frames) < num_frames[:, None])[:, None, :, None])
        frames, num_frames = -(-frames // 2), (num_frames + 1) // 2  # each halves, rounding up
    tokens = (ops.arange(frames) < num_frames[:, None])[..., None]
    return AudioMask(tuple(columns), tokens, num_frames)


def _subsample(
    ops: Ops, weights: Weights, config: EncoderConfig, x: Array, mask: AudioMask | None
) -> Array:
    """(batch, frames, bands) -> (batch, tokens, d_model), in parts that fit into memory.

    A part that begins inside a segment begins one token early, because the convolutions read zeros
    before a part, which affects only its first token.
    """
    batch, frames, bands = x.shape
    factor = config.subsampling_factor
    numbers = config.subsampling_conv_channels * -(-bands // 2) * batch
    most = max(2 * factor, 2 * _MOST_NUMBERS // numbers // factor * factor)
    if frames <= most:
        return _convolve(ops, weights, x, () if mask is None else mask.columns)
    parts: list[Array] = []
    for start in range(0, frames, most - factor):
        first = max(0, start - factor)
        stop = min(start + most - factor, frames)
        columns = () if mask is None else mask.columns
        near = [c[:, :, first >> n : -(-stop // (1 << n))] for n, c in enumerate(columns)]
        part = _convolve(ops, weights, x[:, first:stop], tuple(near))
        parts.append(part[:, (start - first) // factor :])
    return ops.concat(parts, 1)


def _convolve(ops: Ops, weights: Weights, x: Array, columns: tuple[Array, ...]) -> Array:
    """Convolve all frames together; padding reads as zeros."""
    x = x[:, None]  # (batch, channels, positions, bands)
    for n, layer in enumerate((0, 2, 5)):
        if columns:
            x = ops.where(columns[n], x, 0.0)
        weight, bias = _pair(weights, f"conformer.pre_encode.conv.{layer}")
        x = ops.conv2d(x, weight, bias, stride=2, padding=1, groups=x.shape[1])
        if layer:
            weight, bias = _pair(weights, f"conformer.pre_encode.conv.{layer + 1}")
            x = ops.conv2d(x, weight, bias, stride=1, padding=0)
        x = ops.relu(x)
    batch, channels, tokens, bands = x.shape
    x = ops.transpose(x, (0, 2, 1, 3)).reshape(batch, tokens, channels * bands)
    return _affine(ops, weights, "conformer.pre_encode.out", x)


class _Segments(NamedTuple):
    """Inputs of the layers besides the tokens.

    Attributes:
        distances: (2 * tokens - 1, d_model); see `distance_table`.
        mask: None if no segment is padded.
    """

    distances: Array
    mask: AudioMask | None


def _layer(
    ops: Ops, weights: Weights, config: EncoderConfig, layer: str, x: Array, segments: _Segments
) -> Array:
    x = x + 0.5 * _feed_forward(
        ops, weights, f"{layer}feed_forward1", f"{layer}norm_feed_forward1", x
    )
    x = x + _attend(ops, weights, config, layer, x, segments)
    x = x + _mix(ops, weights, layer, x, segments.mask)
    x = x + 0.5 * _feed_forward(
        ops, weights, f"{layer}feed_forward2", f"{layer}norm_feed_forward2", x
    )
    return _norm(ops, weights, f"{layer}norm_out", x)


def _feed_forward(ops: Ops, weights: Weights, name: str, norm: str, x: Array) -> Array:
    x = ops.silu(_affine(ops, weights, f"{name}.linear1", _norm(ops, weights, norm, x)))
    return _affine(ops, weights, f"{name}.linear2", x)


def _attend(
    ops: Ops, weights: Weights, config: EncoderConfig, layer: str, x: Array, segments: _Segments
) -> Array:
    width, mask = config.d_model, segments.mask
    weight, bias = (_joined(ops, weights, layer, kind) for kind in ("weight", "bias"))
    qkv = ops.linear(_norm(ops, weights, f"{layer}norm_self_att", x), weight, bias)
    attended = ops.relative_attention(
        qkv[..., :width],
        qkv[..., width : 2 * width],
        qkv[..., 2 * width :],
        ops.linear(segments.distances, weights[f"{layer}self_attn.linear_pos.weight"]),
        spec=AttentionSpec(config.n_heads, config.n_heads, config.head_dim, rope_theta=None),
        biases=(weights[f"{layer}self_attn.pos_bias_u"], weights[f"{layer}self_attn.pos_bias_v"]),
        key_lengths=None if mask is None else mask.num_tokens,
    )
    return _affine(ops, weights, f"{layer}self_attn.linear_out", attended)


def _mix(ops: Ops, weights: Weights, layer: str, x: Array, mask: AudioMask | None) -> Array:
    """Run the convolution module: gate, mix each channel over nearby tokens, project."""
    weight, bias = _pair(weights, f"{layer}conv.pointwise_conv1")
    x = ops.linear(_norm(ops, weights, f"{layer}norm_conv", x), weight[:, :, 0], bias)
    width = x.shape[-1] // 2
    x = x[..., :width] * ops.sigmoid(x[..., width:])
    if mask is not None:
        x = ops.where(mask.tokens, x, 0.0)
    weight, bias = _folded(ops, weights, layer)
    reach = weight.shape[-1] // 2
    x = ops.pad(ops.transpose(x, (0, 2, 1)), reach, reach)
    x = ops.silu(ops.conv1d(x, weight, bias, groups=width))  # (batch, d_model, tokens)
    weight, bias = _pair(weights, f"{layer}conv.pointwise_conv2")
    return ops.linear(ops.transpose(x, (0, 2, 1)), weight[:, :, 0], bias)


def _joined(ops: Ops, weights: Weights, layer: str, kind: str) -> Array:
    joined, parts = _QKV
    packed = weights.get(f"{layer}{joined}.{kind}")
    if packed is not None:
        return packed
    return ops.concat([weights[f"{layer}{part}.{kind}"] for part in parts], 0)


def _folded(ops: Ops, weights: Weights, layer: str) -> tuple[Array, Array]:
    """Return weight and bias of the depthwise convolution with the batch norm folded in."""
    if f"{layer}{_FOLDED}.weight" in weights:
        return _pair(weights, f"{layer}{_FOLDED}")
    weight, bias = _pair(weights, f"{layer}conv.depthwise_conv")
    norm = f"{layer}conv.batch_norm"
    gain, shift = _pair(weights, norm)
    mean, variance = weights[f"{norm}.running_mean"], weights[f"{norm}.running_var"]
    gain = gain / ops.sqrt(variance + _NORM_EPS)
    return weight * gain[:, None, None], (bias - mean) * gain + shift


def _pair(weights: Weights, name: str) -> tuple[Array, Array]:
    return weights[f"{name}.weight"], weights[f"{name}.bias"]


def _affine(ops: Ops, weights: Weights, name: str, x: Array) -> Array:
    return ops.linear(x, *_pair(weights, name))


def _norm(ops: Ops, weights: Weights, name: str, x: Array) -> Array:
    return ops.layer_norm(x, *_pair(weights, name), _NORM_EPS)
