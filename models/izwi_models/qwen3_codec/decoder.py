"""Frames of codes to a stream of 24 kHz audio: the same code decodes one frame or a whole clip.

Decoding a whole clip is a stream of one chunk, with zeros as its state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from izwi.model.layers import StateSpec
from izwi.ops.protocol import Array, AttentionSpec, Conv, Ops, Snake, Weights
from izwi_models.qwen3_codec.config import CodecConfig, DecoderConfig
from izwi_models.qwen3_codec.quantizer import dequantise
from izwi_models.qwen3_codec.tensors import DECODER_KERNEL, DILATIONS, PRE_CONV_KERNEL

_START = "start"
_CONVNEXT_EPS = 1e-6  # not in the published config


def state_shapes(config: CodecConfig) -> dict[str, StateSpec]:
    """Return the shapes of a stream's state, without the batch axis. Zeros start a stream.

    "start" counts the frames so far. The others are named after their layers: input columns of
    convolutions (channels, columns), keys and values of attention (window - 1, heads, head_dim).
    """
    decoder = config.decoder_config
    columns = DECODER_KERNEL - 1
    heads = (decoder.sliding_window - 1, decoder.num_key_value_heads, decoder.head_dim)
    state = {
        _START: StateSpec((), "int64"),
        "pre_conv": StateSpec((decoder.codebook_dim, PRE_CONV_KERNEL - 1)),
    }
    for index in range(decoder.num_hidden_layers):
        for part in ("keys", "values"):
            state[f"pre_transformer.layers.{index}.{part}"] = StateSpec(heads)
    for index in range(len(decoder.upsampling_ratios)):
        state[f"upsample.{index}.1.dwconv"] = StateSpec((decoder.latent_dim, columns))
    state["decoder.0"] = StateSpec((decoder.latent_dim, columns))
    width = decoder.decoder_dim
    for index in range(1, len(decoder.upsample_rates) + 1):
        block = f"decoder.{index}.block"
        state[f"{block}.1"] = StateSpec((width, 1))
        width //= 2
        for unit, dilation in enumerate(DILATIONS, start=2):
            state[f"{block}.{unit}.conv1"] = StateSpec((width, columns * dilation))
    state[f"decoder.{len(decoder.upsample_rates) + 2}"] = StateSpec((width, columns))
    return state


def zero_state(ops: Ops, config: CodecConfig, batch: int) -> dict[str, Array]:
    """Return the state of `batch` new streams."""
    return {
        name: ops.zeros((batch, *spec.shape))
        if spec.dtype == "float"
        else ops.array(np.zeros((batch, *spec.shape), np.int64))
        for name, spec in state_shapes(config).items()
    }


def decode(
    ops: Ops, weights: Weights, config: CodecConfig, codes: Array, state: Mapping[str, Array]
) -> tuple[Array, dict[str, Array]]:
    """Decode the next frames of each stream.

    Args:
        ops: Operations.
        weights: Plain or prepared.
        config: The codec's configuration.
        codes: (batch, frames, codebooks) int64.
        state: One array (batch, ...) for each name of `state_shapes`. Rows may be at different
            frames.

    Returns:
        (batch, frames * 1920) floats in [-1, 1] at 24 kHz, and the state for the next frames.
    """
    latents = dequantise(ops, weights, config, codes)
    return decode_latents(ops, weights, config, latents, state)


def decode_latents(
    ops: Ops, weights: Weights, config: CodecConfig, latents: Array, state: Mapping[str, Array]
) -> tuple[Array, dict[str, Array]]:
    """Decode the result of `dequantise`; see `decode`. Differentiable.

    Args:
        ops: Operations.
        weights: Plain or prepared.
        config: The codec's configuration.
        latents: (batch, codebook_dim, frames) floats.
        state: See `decode`.
    """
    decoder = config.decoder_config
    stream = _Stream(ops, weights, state)
    stream.after[_START] = state[_START] + latents.shape[-1]
    x = stream.conv("pre_conv", latents)  # (batch, latent_dim, frames)
    x = _transformer(stream, decoder, x)
    for index, ratio in enumerate(decoder.upsampling_ratios):
        x = stream.upsample(f"upsample.{index}.0", x, ratio)
        x = _convnext(stream, f"upsample.{index}.1", x)
    x = stream.conv("decoder.0", x)  # (batch, decoder_dim, frames * 4)
    for index, rate in enumerate(decoder.upsample_rates, start=1):
        x = _block(stream, f"decoder.{index}.block", x, rate)
    last = len(decoder.upsample_rates) + 1
    x = stream.conv(f"decoder.{last + 1}", x, snake=stream.snake(f"decoder.{last}"))
    return ops.clip(x[:, 0], -1.0, 1.0), stream.after


@dataclass(frozen=True, slots=True)
class _Stream:
    """Layers by name; each reads its state from `before` and writes the next to `after`."""

    ops: Ops
    weights: Weights
    before: Mapping[str, Array]
    after: dict[str, Array] = field(default_factory=dict)

    def weight(self, name: str) -> Array:
        return self.weights[f"decoder.{name}"]

    def linear(self, name: str, x: Array) -> Array:
        return self.ops.linear(x, self.weight(f"{name}.weight"), self.weight(f"{name}.bias"))

    def snake(self, name: str) -> Snake:
        return self.weight(f"{name}.alpha"), self.weight(f"{name}.beta")

    def weight_and_bias(self, name: str) -> Conv:
        return self.weight(f"{name}.conv.weight"), self.weight(f"{name}.conv.bias")

    def conv(self, name: str, x: Array, *, groups: int = 1, snake: Snake | None = None) -> Array:
        out, self.after[name] = self.ops.causal_conv1d(
            x, *self.weight_and_bias(name), self.before[name], groups=groups, snake=snake
        )
        return out

    def upsample(self, name: str, x: Array, stride: int, snake: Snake | None = None) -> Array:
        weight, bias = self.weight_and_bias(name)
        if weight.shape[-1] == stride:  # columns do not overlap: no state
            return self.ops.causal_conv_transpose1d(x, weight, bias, x[..., :0], stride=stride)[0]
        out, self.after[name] = self.ops.causal_conv_transpose1d(
            x, weight, bias, self.before[name], stride=stride, snake=snake
        )
        return out


def _transformer(stream: _Stream, config: DecoderConfig, x: Array) -> Array:
    """Attend over the last frames; (batch, latent_dim, frames) in and out."""
    ops, name = stream.ops, "pre_transformer"
    x = stream.linear(f"{name}.input_proj", ops.transpose(x, (0, 2, 1)))
    for index in range(config.num_hidden_layers):
        layer = f"{name}.layers.{index}"
        norm = stream.weight(f"{layer}.input_layernorm.weight")
        y = _attention(stream, config, layer, ops.rms_norm(x, norm, config.rms_norm_eps))
        x = x + y * stream.weight(f"{layer}.self_attn_layer_scale.scale")
        norm = stream.weight(f"{layer}.post_attention_layernorm.weight")
        y = _mlp(stream, f"{layer}.mlp", ops.rms_norm(x, norm, config.rms_norm_eps))
        x = x + y * stream.weight(f"{layer}.mlp_layer_scale.scale")
    x = ops.rms_norm(x, stream.weight(f"{name}.norm.weight"), config.rms_norm_eps)
    return ops.transpose(stream.linear(f"{name}.output_proj", x), (0, 2, 1))


def _attention(stream: _Stream, config: DecoderConfig, layer: str, x: Array) -> Array:
    ops, name = stream.ops, f"{layer}.self_attn"
    keys, values = f"{layer}.keys", f"{layer}.values"
    out, stream.after[keys], stream.after[values] = ops.window_attention(
        ops.linear(x, stream.weight(f"{name}.q_proj.weight")),
        ops.linear(x, stream.weight(f"{name}.k_proj.weight")),
        ops.linear(x, stream.weight(f"{name}.v_proj.weight")),
        spec=AttentionSpec(
            num_heads=config.num_attention_heads,
            num_kv_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            rope_theta=config.rope_theta,
        ),
        window=config.sliding_window,
        start=stream.before[_START],
        k_state=stream.before[keys],
        v_state=stream.before[values],
    )
    return ops.linear(out, stream.weight(f"{name}.o_proj.weight"))


def _mlp(stream: _Stream, name: str, x: Array) -> Array:
    ops = stream.ops
    gate = ops.linear(x, stream.weight(f"{name}.gate_proj.weight"))
    up = ops.linear(x, stream.weight(f"{name}.up_proj.weight"))
    return ops.linear(ops.swiglu(gate, up), stream.weight(f"{name}.down_proj.weight"))


def _convnext(stream: _Stream, name: str, x: Array) -> Array:
    """Mix time by channel, then channels by time; (batch, channels, time) in and out."""
    ops = stream.ops
    y = stream.conv(f"{name}.dwconv", x, groups=x.shape[1])
    weight, bias = stream.weight(f"{name}.norm.weight"), stream.weight(f"{name}.norm.bias")
    y = ops.layer_norm(ops.transpose(y, (0, 2, 1)), weight, bias, _CONVNEXT_EPS)
    y = stream.linear(f"{name}.pwconv2", ops.gelu(stream.linear(f"{name}.pwconv1", y)))
    return x + ops.transpose(y * stream.weight(f"{name}.gamma"), (0, 2, 1))


def _block(stream: _Stream, name: str, x: Array, rate: int) -> Array:
    """Upsample by `rate` to half the channels, then refine."""
    x = stream.upsample(f"{name}.1", x, rate, stream.snake(f"{name}.0"))
    for index, dilation in enumerate(DILATIONS, start=2):
        unit = f"{name}.{index}"
        conv = f"{unit}.conv1"  # the convolution with state
        x, stream.after[conv] = stream.ops.residual_unit(
            x,
            (stream.snake(f"{unit}.act1"), stream.snake(f"{unit}.act2")),
            (stream.weight_and_bias(conv), stream.weight_and_bias(f"{unit}.conv2")),
            stream.before[conv],
            dilation=dilation,
        )
    return x
