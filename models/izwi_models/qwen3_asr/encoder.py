"""The audio encoder of Qwen3-ASR (AuT): mel frames to tokens of the decoder's width.

Audio is split into chunks of 1 s for the convolutions and into windows of 8 s for attention, which
is bidirectional within a window and never crosses windows. Each window can therefore be encoded
independently without approximation, and windows of different requests run as one batch.

Source: qwen_asr 0.0.6, modeling_qwen3_asr.Qwen3ASRAudioEncoder with its flash-attention windows,
which transformers 5 also computes (the eager path of qwen_asr omits them).
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from izwi.ops import Array, AttentionContext, AttentionSpec, Ops, Weights
from izwi_models.qwen3_asr.config import AUDIO_PREFIX, AudioConfig

_NORM_EPS = 1e-5
_MAX_TIMESCALE = 10_000.0
# Maximum number of values that the first convolution computes in one pass: 32 chunks of the
# published sizes. Its output is 120 times larger than its input, and a GPU that captures graphs
# never frees this memory.
_MOST_NUMBERS = 32 * 480 * 64 * 50

# Arrays of the size of the first convolution's output that a pass keeps at once, and numbers kept
# for each token beside them (measured on a GPU).
_PEAK_ARRAYS, _PEAK_TOKEN_ARRAYS = 3, 8

_QKV = ("self_attn.qkv_proj", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"))


def peak_values(config: AudioConfig, mels: int, frames: int, pieces: int) -> int:
    """Return the most numbers that encoding windows keeps at once.

    Args:
        config: Sizes of the encoder.
        mels: Mel bands.
        frames: Mel frames of a window.
        pieces: Windows of a batch.
    """
    chunks = pieces * -(-frames // config.chunk_frames)
    widened = config.downsample_hidden_size * -(-mels // 2) * -(-config.chunk_frames // 2)
    passing = min(max(_MOST_NUMBERS, widened), chunks * widened)
    tokens = chunks * config.chunk_tokens * config.d_model
    return _PEAK_ARRAYS * passing + _PEAK_TOKEN_ARRAYS * tokens


class Windows(NamedTuple):
    """Optional information about the windows for `encode_windows`, on the device.

    Attributes:
        positions: `chunk_positions(config)`; computed if None.
        num_tokens: (batch,) int64, at least 1: tokens of each window. Later ones are padding,
            masked in attention. None: no padding.
    """

    positions: Array | None = None
    num_tokens: Array | None = None


_WHOLE = Windows()


class PaddedClips(NamedTuple):
    """Information about the clips for `encode_clips`, on the device.

    Attributes:
        positions: `chunk_positions(config)`.
        num_tokens: (batch,) int64, at least 1: tokens of each clip.
        is_audio: (batch, 1, 1, columns) bool for the outputs of the first and second convolution:
            columns that come from the clip. See `audio_columns`.
    """

    positions: Array
    num_tokens: Array
    is_audio: tuple[Array, ...]


def pack_encoder(ops: Ops, weights: Weights, config: AudioConfig) -> dict[str, Array]:
    """Concatenate weights that share an input, for fewer and longer products.

    `encode_windows` also accepts unpacked weights and then packs them on each call, so that
    gradients reach them. Serving packs once.

    Args:
        ops: The backend's operations.
        weights: Tensors by checkpoint name; those outside the encoder stay as they are.
        config: Sizes of the encoder.

    Returns:
        The weights with `qkv_proj` in place of its parts in each layer.
    """
    packed = dict(weights)
    joined, parts = _QKV
    for n in range(config.encoder_layers):
        for kind in ("weight", "bias"):
            names = [f"{AUDIO_PREFIX}layers.{n}.{part}.{kind}" for part in parts]
            arrays = [packed.pop(name) for name in names]
            packed[f"{AUDIO_PREFIX}layers.{n}.{joined}.{kind}"] = ops.concat(arrays, 0)
    return packed


def encode_windows(
    ops: Ops,
    weights: Weights,
    config: AudioConfig,
    mel: Array,
    *,
    windows: Windows = _WHOLE,
    pad_chunks: bool = True,
) -> Array:
    """Encode windows of equal length, or padded to equal length.

    Args:
        ops: The backend's operations.
        weights: Tensors by checkpoint name.
        config: Sizes of the encoder.
        mel: (batch, 128, frames) with at most `n_window_infer` frames (8 s).
        windows: Positions and lengths, if known.
        pad_chunks: Fill a short last chunk with zeros to a whole one, as the reference does for
            audio of 1 s and more. Audio below 1 s is one chunk that keeps its length.

    Returns:
        (batch, config.num_tokens(frames), output_dim).
    """
    positions = windows.positions
    if positions is None:
        positions = ops.array(chunk_positions(config))
    x = _convolve(ops, weights, config, mel, pad_chunks, positions)  # (batch, tokens, d_model)
    return _attend(ops, weights, config, x, windows.num_tokens)


def encode_clips(
    ops: Ops, weights: Weights, config: AudioConfig, mel: Array, clips: PaddedClips
) -> Array:
    """Encode clips below 1 s: each is one chunk that keeps its length, padded to a whole chunk.

    A convolution of an unpadded clip reads zeros after its last column. After a padded clip, the
    previous convolution has left its response to zeros plus its bias, so this is cleared.

    Args:
        ops: The backend's operations.
        weights: Tensors by checkpoint name.
        config: Sizes of the encoder.
        mel: (batch, 128, chunk_frames), zeros after each clip.
        clips: How long each of them is.

    Returns:
        (batch, config.chunk_tokens, output_dim); a clip's tokens come first.
    """
    x = _convolve_chunks(ops, weights, mel[:, None], clips.positions, clips.is_audio)
    return _attend(ops, weights, config, x, clips.num_tokens)


def _attend(
    ops: Ops, weights: Weights, config: AudioConfig, x: Array, num_tokens: Array | None
) -> Array:
    """(batch, tokens, d_model) -> (batch, tokens, output_dim)."""
    context = ops.dense_context(x.shape[0], x.shape[1], causal=False, key_lengths=num_tokens)
    spec = _attention(config)
    for n in range(config.encoder_layers):
        x = _layer(ops, weights, f"{AUDIO_PREFIX}layers.{n}.", x, spec, context)
    x = _layer_norm(ops, weights, f"{AUDIO_PREFIX}ln_post", x)
    x = ops.gelu(_affine(ops, weights, f"{AUDIO_PREFIX}proj1", x))
    return _affine(ops, weights, f"{AUDIO_PREFIX}proj2", x)


def chunk_positions(config: AudioConfig) -> npt.NDArray[np.float32]:
    """Sinusoids added to the tokens of every chunk: (chunk_tokens, d_model), sines then cosines."""
    half = config.d_model // 2
    rates = np.exp(-np.log(_MAX_TIMESCALE) / (half - 1) * np.arange(half))
    angles = np.arange(config.chunk_tokens)[:, None] * rates
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


def audio_columns(config: AudioConfig) -> tuple[npt.NDArray[np.bool_], ...]:
    """Return the columns of a clip of this many mel frames, after each of two convolutions.

    Returns:
        (chunk_frames + 1, 1, 1, columns) each, by the number of frames.
    """
    frames = np.arange(config.chunk_frames + 1)[:, None]
    columns = (-(-frames // 2), -(-frames // 4))  # each halves, rounding up
    return tuple((np.arange(most[-1, 0]) < most)[:, None, None] for most in columns)


def _convolve(
    ops: Ops, weights: Weights, config: AudioConfig, mel: Array, pad_chunks: bool, positions: Array
) -> Array:
    batch, mels, frames = mel.shape
    length = config.chunk_frames if pad_chunks else min(frames, config.chunk_frames)
    chunks = -(-frames // length)
    if chunks * length != frames:
        mel = ops.pad(mel, 0, chunks * length - frames)
    x = ops.transpose(mel.reshape(batch, mels, chunks, length), (0, 2, 1, 3))
    x = x.reshape(batch * chunks, 1, mels, length)
    widened = config.downsample_hidden_size * -(-mels // 2) * -(-length // 2)
    most = max(1, min(config.conv_chunksize, _MOST_NUMBERS // widened))
    parts = [
        _convolve_chunks(ops, weights, x[start : start + most], positions)
        for start in range(0, batch * chunks, most)
    ]
    x = parts[0] if len(parts) == 1 else ops.concat(parts, 0)
    x = x.reshape(batch, chunks * x.shape[1], config.d_model)
    # tokens of padding come last
    return x[:, : config.num_tokens(frames)]


def _convolve_chunks(
    ops: Ops, weights: Weights, x: Array, positions: Array, is_audio: Seq[Array] = ()
) -> Array:
    """(chunks, 1, mels, frames) -> (chunks, tokens, d_model)."""
    for n in (1, 2, 3):
        name = f"{AUDIO_PREFIX}conv2d{n}"
        x = ops.gelu(
            ops.conv2d(x, weights[f"{name}.weight"], weights[f"{name}.bias"], stride=2, padding=1)
        )
        if n <= len(is_audio):
            x = ops.where(is_audio[n - 1], x, 0.0)
    chunks, channels, height, tokens = x.shape
    x = ops.transpose(x, (0, 3, 1, 2)).reshape(chunks, tokens, channels * height)
    return ops.linear(x, weights[f"{AUDIO_PREFIX}conv_out.weight"]) + positions[:tokens]


def _layer(
    ops: Ops,
    weights: Weights,
    prefix: str,
    x: Array,
    spec: AttentionSpec,
    context: AttentionContext,
) -> Array:
    normed = _layer_norm(ops, weights, f"{prefix}self_attn_layer_norm", x)
    weight, bias = (_joined(ops, weights, prefix, kind) for kind in ("weight", "bias"))
    qkv = ops.linear(normed, weight, bias)
    width = x.shape[-1]
    attended = ops.attention(
        qkv[..., :width],
        qkv[..., width : 2 * width],
        qkv[..., 2 * width :],
        spec=spec,
        context=context,
        layer=0,
    )
    x = x + _affine(ops, weights, f"{prefix}self_attn.out_proj", attended)
    normed = _layer_norm(ops, weights, f"{prefix}final_layer_norm", x)
    inner = ops.gelu(_affine(ops, weights, f"{prefix}fc1", normed))
    return x + _affine(ops, weights, f"{prefix}fc2", inner)


def _joined(ops: Ops, weights: Weights, prefix: str, kind: str) -> Array:
    joined, parts = _QKV
    packed = weights.get(f"{prefix}{joined}.{kind}")
    if packed is not None:
        return packed
    return ops.concat([weights[f"{prefix}{part}.{kind}"] for part in parts], 0)


def _attention(config: AudioConfig) -> AttentionSpec:
    heads = config.encoder_attention_heads
    return AttentionSpec(heads, heads, config.d_model // heads, rope_theta=None)


def _affine(ops: Ops, weights: Weights, name: str, x: Array) -> Array:
    return ops.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])


def _layer_norm(ops: Ops, weights: Weights, name: str, x: Array) -> Array:
    return ops.layer_norm(x, weights[f"{name}.weight"], weights[f"{name}.bias"], _NORM_EPS)
