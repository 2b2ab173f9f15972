"""24 kHz audio to frames of codes (Mimi's encoder), whole clips at a time.

Attention runs over the whole clip, as in the pinned reference on a CPU: transformers 4.57 does not
apply the published window of 250 positions (10 s), but flash-attention and later versions do. The
codes of longer clips therefore depend on which of them made the codes of the training data.

Everything is causal, so padding after a clip changes only the end that a strided convolution fills
up to whole strides.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from izwi.ops.protocol import Array, AttentionContext, AttentionSpec, Ops, Weights
from izwi_models.qwen3_codec.config import CodecConfig, EncoderConfig
from izwi_models.qwen3_codec.quantizer import quantise

# Maximum number of samples in one pass of the convolutions (or one clip): 32 s. At the published
# sizes they need about 510 bytes a sample in 16 bits, and a GPU that captures graphs never frees
# this memory.
_MOST_SAMPLES = 32 * 24_000


class Convolution(NamedTuple):
    """Sizes of a convolution over time, and its left padding: zeros, or the first column."""

    stride: int = 1
    dilation: int = 1
    mode: str = "constant"


_DENSE = Convolution()


def encode(
    ops: Ops,
    weights: Weights,
    config: CodecConfig,
    samples: Array,
    lengths: Array | None = None,
) -> Array:
    """Encode whole clips of equal length, or padded to equal length.

    Args:
        ops: Operations.
        weights: Plain or prepared.
        config: The codec's configuration.
        samples: (batch, n) floats at 24 kHz, n at least 1.
        lengths: (batch,) int64 on the device, at least 1: samples of each clip, followed by any
            finite values. None: no padding.

    Returns: (batch, ceil(n / 1920), codebooks) int64. Only the first ceil(length / 1920) frames of
        a padded clip are valid.
    """
    latents = encode_latents(ops, weights, config, samples, lengths)
    return quantise(ops, weights, config, latents)


def encode_latents(
    ops: Ops,
    weights: Weights,
    config: CodecConfig,
    samples: Array,
    lengths: Array | None = None,
) -> Array:
    """Encode up to the quantiser; see `encode`. Differentiable.

    Returns:
        (batch, ceil(n / 1920), hidden) floats.
    """
    encoder, rows = config.encoder_config, max(1, _MOST_SAMPLES // samples.shape[1])
    parts = []
    for start in range(0, samples.shape[0], rows):
        ends = None if lengths is None else lengths[start : start + rows]
        part = samples[start : start + rows, None]
        parts.append(_convolutions(ops, weights, encoder, part, ends))
    x = parts[0] if len(parts) == 1 else ops.concat(parts, 0)
    if lengths is not None:
        lengths = _ceil_div(lengths, math.prod(encoder.upsampling_ratios))
    x = _transformer(ops, weights, encoder, ops.transpose(x, (0, 2, 1)))
    x = _conv(
        ops,
        weights,
        "encoder.downsample",
        ops.transpose(x, (0, 2, 1)),
        # replicated only in this layer; the published pad_mode is that of the others
        Convolution(config.downsample_stride, mode="replicate"),
        lengths,
    )
    return ops.transpose(x, (0, 2, 1))


def _conv(
    ops: Ops,
    weights: Weights,
    name: str,
    x: Array,
    shape: Convolution = _DENSE,
    lengths: Array | None = None,
) -> Array:
    """Convolve causally, the end padded to whole strides: time n becomes ceil(n / stride).

    With `lengths` (batch,), each row is padded at its own end, and later values are ignored.
    """
    stride, dilation, mode = shape
    if lengths is not None and stride > 1:
        x = _ended(ops, x, lengths, mode)
    weight = weights[f"{name}.conv.weight"]
    left = (weight.shape[-1] - 1) * dilation + 1 - stride
    right = -x.shape[-1] % stride
    padded = ops.pad(x, left, right, mode) if left or right else x
    bias = weights.get(f"{name}.conv.bias")
    return ops.conv1d(padded, weight, bias, stride=stride, dilation=dilation)


def _ended(ops: Ops, x: Array, lengths: Array, mode: str) -> Array:
    """Append to each row of (batch, channels, time) its padding, at the row's own end."""
    at, last = ops.arange(x.shape[-1]), lengths[:, None] - 1
    if mode == "replicate":
        return ops.take_columns(x, at - ops.clip(at - last, 0, None))
    return ops.where((at <= last)[:, None], x, 0.0)


def _ceil_div(lengths: Array, stride: int) -> Array:
    return (lengths + stride - 1) // stride


def _convolutions(
    ops: Ops, weights: Weights, config: EncoderConfig, x: Array, lengths: Array | None
) -> Array:
    """(batch, 1, n) to (batch, hidden, ceil(n / 960)). Layers count the activations between."""
    name, layer = "encoder.encoder.layers", 1
    x = _conv(ops, weights, f"{name}.0", x)
    for ratio in reversed(config.upsampling_ratios):  # listed in the order of Mimi's decoder
        for index in range(config.num_residual_layers):
            block, dilation = f"{name}.{layer}.block", config.dilation_growth_rate**index
            y = _conv(ops, weights, f"{block}.1", ops.elu(x), Convolution(dilation=dilation))
            x = x + _conv(ops, weights, f"{block}.3", ops.elu(y))
            layer += 1
        down = f"{name}.{layer + 1}"
        x = _conv(ops, weights, down, ops.elu(x), Convolution(ratio), lengths)
        lengths = None if lengths is None else _ceil_div(lengths, ratio)
        layer += 2
    return _conv(ops, weights, f"{name}.{layer + 1}", ops.elu(x))


def _transformer(ops: Ops, weights: Weights, config: EncoderConfig, x: Array) -> Array:
    """Attend over the clip; (batch, time, hidden) in and out. Without a final norm."""
    context = ops.dense_context(x.shape[0], x.shape[1], causal=True)
    for index in range(config.num_hidden_layers):
        layer = f"encoder.encoder_transformer.layers.{index}"
        y = _norm(ops, weights, config, f"{layer}.input_layernorm", x)
        y = _attention(ops, weights, config, index, context, y)
        x = x + y * weights[f"{layer}.self_attn_layer_scale.scale"]
        y = _norm(ops, weights, config, f"{layer}.post_attention_layernorm", x)
        y = ops.gelu(ops.linear(y, weights[f"{layer}.mlp.fc1.weight"]))
        y = ops.linear(y, weights[f"{layer}.mlp.fc2.weight"])
        x = x + y * weights[f"{layer}.mlp_layer_scale.scale"]
    return x


def _norm(ops: Ops, weights: Weights, config: EncoderConfig, name: str, x: Array) -> Array:
    return ops.layer_norm(x, weights[f"{name}.weight"], weights[f"{name}.bias"], config.norm_eps)


def _attention(
    ops: Ops,
    weights: Weights,
    config: EncoderConfig,
    index: int,
    context: AttentionContext,
    x: Array,
) -> Array:
    name = f"encoder.encoder_transformer.layers.{index}.self_attn"
    out = ops.attention(
        ops.linear(x, weights[f"{name}.q_proj.weight"]),
        ops.linear(x, weights[f"{name}.k_proj.weight"]),
        ops.linear(x, weights[f"{name}.v_proj.weight"]),
        spec=AttentionSpec(
            num_heads=config.num_attention_heads,
            num_kv_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            rope_theta=config.rope_theta,
        ),
        context=context,
        layer=index,
    )
    return ops.linear(out, weights[f"{name}.o_proj.weight"])
