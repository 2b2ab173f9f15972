"""The audio encoder of Qwen3-ASR (AuT): mel frames to tokens of the decoder's width.

Sound is cut into chunks of 1 s for the convolutions and into windows of 8 s for attention, which
looks both ways inside a window and never across. So each window is encoded on its own, exactly,
and windows of different requests run as one batch.

Source: qwen_asr 0.0.6, modeling_qwen3_asr.Qwen3ASRAudioEncoder with its flash-attention windows,
which transformers 5 computes too (the eager path of qwen_asr forgets them).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from izwi.ops import Array, AttentionContext, AttentionSpec, Ops, Weights
from izwi_models.qwen3_asr.config import AUDIO_PREFIX, AudioConfig

_NORM_EPS = 1e-5
_MAX_TIMESCALE = 10_000.0


def encode_windows(
    ops: Ops,
    weights: Weights,
    config: AudioConfig,
    mel: Array,
    *,
    pad_chunks: bool = True,
    positions: Array | None = None,
) -> Array:
    """Encode windows of equal length.

    Args:
        ops: The backend's operations.
        weights: Tensors by checkpoint name.
        config: Sizes of the encoder.
        mel: (batch, 128, frames) with at most `n_window_infer` frames (8 s).
        pad_chunks: Fill a short last chunk with zeros to a whole one, as the reference does for
            sound of 1 s and more. Sound below 1 s is one chunk that keeps its length.
        positions: `chunk_positions(config)` on the device; made here where None.

    Returns:
        (batch, config.num_tokens(frames), output_dim).
    """
    if positions is None:
        positions = ops.array(chunk_positions(config))
    x = _convolve(ops, weights, config, mel, pad_chunks, positions)  # (batch, tokens, d_model)
    context = ops.dense_context(x.shape[0], x.shape[1], causal=False)
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
    for n in (1, 2, 3):
        name = f"{AUDIO_PREFIX}conv2d{n}"
        x = ops.gelu(
            ops.conv2d(x, weights[f"{name}.weight"], weights[f"{name}.bias"], stride=2, padding=1)
        )
    _, channels, height, tokens = x.shape
    x = ops.transpose(x, (0, 3, 1, 2)).reshape(batch * chunks, tokens, channels * height)
    x = ops.linear(x, weights[f"{AUDIO_PREFIX}conv_out.weight"]) + positions[:tokens]
    x = x.reshape(batch, chunks * tokens, config.d_model)
    # tokens of padding stand behind all others
    return x[:, : config.num_tokens(frames)]


def _layer(
    ops: Ops,
    weights: Weights,
    prefix: str,
    x: Array,
    spec: AttentionSpec,
    context: AttentionContext,
) -> Array:
    normed = _layer_norm(ops, weights, f"{prefix}self_attn_layer_norm", x)
    attended = ops.attention(
        _affine(ops, weights, f"{prefix}self_attn.q_proj", normed),
        _affine(ops, weights, f"{prefix}self_attn.k_proj", normed),
        _affine(ops, weights, f"{prefix}self_attn.v_proj", normed),
        spec=spec,
        context=context,
        layer=0,
    )
    x = x + _affine(ops, weights, f"{prefix}self_attn.out_proj", attended)
    normed = _layer_norm(ops, weights, f"{prefix}final_layer_norm", x)
    inner = ops.gelu(_affine(ops, weights, f"{prefix}fc1", normed))
    return x + _affine(ops, weights, f"{prefix}fc2", inner)


def _attention(config: AudioConfig) -> AttentionSpec:
    heads = config.encoder_attention_heads
    return AttentionSpec(heads, heads, config.d_model // heads, rope_theta=None)


def _affine(ops: Ops, weights: Weights, name: str, x: Array) -> Array:
    return ops.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])


def _layer_norm(ops: Ops, weights: Weights, name: str, x: Array) -> Array:
    return ops.layer_norm(x, weights[f"{name}.weight"], weights[f"{name}.bias"], _NORM_EPS)
