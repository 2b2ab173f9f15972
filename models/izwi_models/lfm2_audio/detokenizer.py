"""The codec of LFM2.5-Audio: a small LFM2 turns frames of codes into spectra and 24 kHz audio.

A frame's embedding is repeated for six spectra (75 Hz). Short convolutions and attention over the
last 30 of them are causal. But each spectrum gives 1,280 samples, and the next one begins 320
samples later, so a sample is final only when all spectra that cover it are computed. Audio
therefore lags codes by 480 samples (20 ms): the first 480 of a stream are silence, to be dropped,
and its last 480 come with an extra frame after the end, whose codes are all END.

Source: liquid_audio 1.3.0, detokenizer.py; transformers, models/lfm2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from izwi.model.layers import StateSpec
from izwi.ops import Array, AttentionSpec, Ops, Weights
from izwi_models.lfm2_audio.audio_config import FRAME_SAMPLES, DetokenizerConfig
from izwi_models.lfm2_audio.audio_tensors import (
    DETOKENIZER_CODEBOOK_SIZE,
    DETOKENIZER_CODEBOOKS,
    DETOKENIZER_FFT,
)

LOOKAHEAD_SAMPLES = 480
END = -1  # a code of frames after the end of a stream

_SPECTRA = 6  # of each frame
_HOP = FRAME_SAMPLES // _SPECTRA
_REACH = DETOKENIZER_FFT // _HOP  # spectra that contribute to each sample
# Squared periodic Hann windows a quarter apart add up to this.
_ENVELOPE = 1.5
_MIN_ENVELOPE = 1e-3  # only dropped samples have less

# Names of derived tensors and of state. No checkpoint has these.
_OFFSETS = "offsets"  # (codebooks,) int64, first row of each codebook in the table
_WINDOW = "squared_window"  # (_REACH, _HOP)
_START = "start"  # spectra so far
_COLUMNS = "columns"  # inputs of the last spectra


def prepare(ops: Ops, weights: Weights, config: DetokenizerConfig) -> dict[str, Array]:
    """Derive the tensors that decoding reads, and drop the others.

    Args:
        ops: The backend's operations.
        weights: Tensors by the names of `detokenizer_shapes`.
        config: Sizes.
    """
    unread = ("lfm.embed_tokens.weight", "istft.window")
    prepared = {name: array for name, array in weights.items() if name not in unread}
    for index in range(config.num_hidden_layers):
        mlp = f"lfm.layers.{index}.feed_forward"
        pair = [prepared.pop(f"{mlp}.w1.weight"), prepared.pop(f"{mlp}.w3.weight")]
        prepared[f"{mlp}.gate_up"] = ops.concat(pair, 0)
    rows = np.arange(DETOKENIZER_CODEBOOKS, dtype=np.int64) * DETOKENIZER_CODEBOOK_SIZE
    prepared[_OFFSETS] = ops.array(rows)
    turn = 2 * np.pi * np.arange(DETOKENIZER_FFT) / DETOKENIZER_FFT
    squared = (0.5 - 0.5 * np.cos(turn)) ** 2
    prepared[_WINDOW] = ops.array(squared.reshape(_REACH, _HOP).astype(np.float32))
    return prepared


def state_shapes(config: DetokenizerConfig) -> dict[str, StateSpec]:
    """Return the shapes of a stream's state, without the batch axis. Zeros start a stream.

    "start" counts the spectra so far, "columns" has the inputs of the last three: their samples are
    computed again, because storing them would need float32. The others are named after their layer:
    input columns of convolutions (channels, columns), keys and values of attention (window - 1,
    heads, head_dim).
    """
    state = {_START: StateSpec((), "int64")}
    for index, kind in enumerate(config.layer_types):
        layer = f"lfm.layers.{index}"
        if kind == "conv":
            state[f"{layer}.conv"] = StateSpec((config.hidden_size, config.conv_L_cache - 1))
            continue
        heads = (config.sliding_window - 1, config.num_key_value_heads, config.head_dim)
        state[f"{layer}.keys"] = state[f"{layer}.values"] = StateSpec(heads)
    return state | {_COLUMNS: StateSpec((_REACH - 1, config.hidden_size))}


def decode(
    ops: Ops, weights: Weights, config: DetokenizerConfig, codes: Array, state: Mapping[str, Array]
) -> tuple[Array, dict[str, Array]]:
    """Decode the next frames of each stream.

    Args:
        ops: The backend's operations.
        weights: From `prepare`.
        config: Sizes.
        codes: (batch, frames, codebooks) int64. A frame whose first code is END, or not a code, is
            after the end of its stream, as are all later ones of the row.
        state: One array (batch, ...) for each name of `state_shapes`. Rows may be at different
            frames.

    Returns: (batch, frames * 1920) float32 in [-1, 1] at 24 kHz, and the state for the next frames.
        Sample i of a stream is sample i - 480 of its audio. Samples are clipped; the reference does
        not clip.
    """
    stream = _Stream(ops, weights, config, state)
    known = ops.clip(codes, 0, DETOKENIZER_CODEBOOK_SIZE - 1)
    x = ops.take(weights["emb.emb.weight"], known + weights[_OFFSETS])
    x = _repeated(ops, ops.mean(x, axis=2)[:, :, 0])  # (batch, spectra, hidden)
    for index, kind in enumerate(config.layer_types):
        layer = f"lfm.layers.{index}"
        y = stream.norm(f"{layer}.operator_norm", x)
        x = x + (_convolve if kind == "conv" else _attend)(stream, layer, y)
        y = ops.linear(
            stream.norm(f"{layer}.ffn_norm", x), weights[f"{layer}.feed_forward.gate_up"]
        )
        y = ops.swiglu(y[..., : config.feed_forward_size], y[..., config.feed_forward_size :])
        x = x + ops.linear(y, weights[f"{layer}.feed_forward.w2.weight"])
    x = stream.norm("lfm.embedding_norm", x)
    stream.after[_START] = state[_START] + x.shape[1]
    is_audio = (codes[:, :, :1] >= 0) & (codes[:, :, :1] < DETOKENIZER_CODEBOOK_SIZE)
    samples = _overlap(stream, x, _repeated(ops, is_audio)[..., 0])
    return ops.clip(samples, -1.0, 1.0), stream.after


@dataclass(frozen=True, slots=True)
class _Stream:
    """Layers by name; each reads its state from `before` and writes the next to `after`."""

    ops: Ops
    weights: Weights
    config: DetokenizerConfig
    before: Mapping[str, Array]
    after: dict[str, Array] = field(default_factory=dict)

    def linear(self, name: str, x: Array) -> Array:
        return self.ops.linear(x, self.weights[f"{name}.weight"])

    def norm(self, name: str, x: Array) -> Array:
        return self.ops.rms_norm(x, self.weights[f"{name}.weight"], self.config.norm_eps)


def _repeated(ops: Ops, x: Array) -> Array:
    """(batch, frames, n) -> (batch, spectra, n)."""
    batch, frames, width = x.shape
    return ops.stack([x] * _SPECTRA, axis=2).reshape(batch, frames * _SPECTRA, width)


def _convolve(stream: _Stream, layer: str, x: Array) -> Array:
    """Gate, mix each channel with its last columns, gate again."""
    ops, name, width = stream.ops, f"{layer}.conv", x.shape[-1]
    gates = stream.linear(f"{name}.in_proj", x)
    b, c, u = (gates[..., n * width : (n + 1) * width] for n in range(3))
    y, stream.after[name] = ops.causal_conv1d(
        ops.transpose(b * u, (0, 2, 1)),
        stream.weights[f"{name}.conv.weight"],
        None,
        stream.before[name],
        groups=width,
    )
    return stream.linear(f"{name}.out_proj", c * ops.transpose(y, (0, 2, 1)))


def _attend(stream: _Stream, layer: str, x: Array) -> Array:
    ops, config, name = stream.ops, stream.config, f"{layer}.self_attn"
    keys, values = f"{layer}.keys", f"{layer}.values"
    out, stream.after[keys], stream.after[values] = ops.window_attention(
        _normed_heads(stream, f"{name}.q_layernorm", stream.linear(f"{name}.q_proj", x)),
        _normed_heads(stream, f"{name}.k_layernorm", stream.linear(f"{name}.k_proj", x)),
        stream.linear(f"{name}.v_proj", x),
        spec=AttentionSpec(
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
            rope_theta=config.rope_theta,
        ),
        window=config.sliding_window,
        start=stream.before[_START],
        k_state=stream.before[keys],
        v_state=stream.before[values],
    )
    return stream.linear(f"{name}.out_proj", out)


def _normed_heads(stream: _Stream, norm: str, x: Array) -> Array:
    heads = x.reshape(*x.shape[:-1], -1, stream.config.head_dim)
    return stream.norm(norm, heads).reshape(*x.shape)


def _overlap(stream: _Stream, x: Array, is_audio: Array) -> Array:
    """Add up the samples of overlapping spectra and divide by the sum of their windows.

    Args:
        stream: State with the last spectra.
        x: (batch, spectra, hidden) inputs of the spectra.
        is_audio: (batch, spectra) bool, false after the end.

    Returns:
        (batch, spectra * 320) float32.
    """
    ops, weights = stream.ops, stream.weights
    batch, spectra, _ = x.shape
    past = _REACH - 1
    joined = ops.concat([stream.before[_COLUMNS], x], 1)
    stream.after[_COLUMNS] = joined[:, spectra:]
    places = stream.before[_START][:, None] - past + ops.arange(past)
    there = ops.concat([places >= 0, is_audio], 1)  # (batch, past + spectra)
    frames = ops.spectral_frames(joined, weights["lin.weight"], weights["lin.bias"])
    frames = ops.where(there[..., None], frames, 0.0)
    parts = frames.reshape(batch, past + spectra, _REACH, _HOP)
    # part n of a spectrum overlaps the first part of the nth spectrum after it
    samples = sum(parts[:, past - n : past - n + spectra, n] for n in range(_REACH))
    lacking = sum(
        ops.where(~there[:, past - n : past - n + spectra, None], weights[_WINDOW][n], 0.0)
        for n in range(_REACH)
    )
    samples = samples / ops.clip(_ENVELOPE - lacking, _MIN_ENVELOPE, None)
    samples = samples.reshape(batch, spectra * _HOP)
    begun = ops.arange(spectra * _HOP) >= LOOKAHEAD_SAMPLES - _HOP * stream.before[_START][:, None]
    return ops.where(begun, samples, 0.0)
