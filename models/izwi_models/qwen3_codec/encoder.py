"""24 kHz sound to frames of codes (Mimi's encoder), whole clips at a time.

Attention runs over the whole clip, as in the pinned reference on a CPU: transformers 4.57 does
not apply the published window of 250 positions (10 s), though flash-attention and later versions
do, so codes of longer clips depend on which of them made the training data's codes.
"""

from __future__ import annotations

from izwi.ops.protocol import Array, AttentionContext, AttentionSpec, Ops, Weights
from izwi_models.qwen3_codec.config import CodecConfig, EncoderConfig
from izwi_models.qwen3_codec.quantizer import quantise


def encode(ops: Ops, weights: Weights, config: CodecConfig, samples: Array) -> Array:
    """Encode whole clips of equal length.

    Args:
        ops: Operations.
        weights: Plain or prepared.
        config: The codec's configuration.
        samples: (batch, n) floats at 24 kHz, n at least 1.

    Returns:
        (batch, ceil(n / 1920), codebooks) int64.
    """
    return quantise(ops, weights, config, encode_latents(ops, weights, config, samples))


def encode_latents(ops: Ops, weights: Weights, config: CodecConfig, samples: Array) -> Array:
    """Encode up to the quantiser; see `encode`. Differentiable.

    Returns:
        (batch, ceil(n / 1920), hidden) floats.
    """
    x = _convolutions(ops, weights, config.encoder_config, samples[:, None])
    x = _transformer(ops, weights, config.encoder_config, ops.transpose(x, (0, 2, 1)))
    x = _conv(
        ops,
        weights,
        "encoder.downsample",
        ops.transpose(x, (0, 2, 1)),
        stride=config.downsample_stride,
        mode="replicate",  # this one layer; the published pad_mode is that of the others
    )
    return ops.transpose(x, (0, 2, 1))


def _conv(
    ops: Ops,
    weights: Weights,
    name: str,
    x: Array,
    *,
    stride: int = 1,
    dilation: int = 1,
    mode: str = "constant",
) -> Array:
    """Convolve causally, the end padded to whole strides: time n becomes ceil(n / stride)."""
    weight = weights[f"{name}.conv.weight"]
    left = (weight.shape[-1] - 1) * dilation + 1 - stride
    right = -x.shape[-1] % stride
    padded = ops.pad(x, left, right, mode) if left or right else x
    bias = weights.get(f"{name}.conv.bias")
    return ops.conv1d(padded, weight, bias, stride=stride, dilation=dilation)


def _convolutions(ops: Ops, weights: Weights, config: EncoderConfig, x: Array) -> Array:
    """(batch, 1, n) to (batch, hidden, ceil(n / 960)). Layers count the activations between."""
    name, layer = "encoder.encoder.layers", 1
    x = _conv(ops, weights, f"{name}.0", x)
    for ratio in reversed(config.upsampling_ratios):  # listed in the order of Mimi's decoder
        for index in range(config.num_residual_layers):
            block, dilation = f"{name}.{layer}.block", config.dilation_growth_rate**index
            y = _conv(ops, weights, f"{block}.1", ops.elu(x), dilation=dilation)
            x = x + _conv(ops, weights, f"{block}.3", ops.elu(y))
            layer += 1
        x = _conv(ops, weights, f"{name}.{layer + 1}", ops.elu(x), stride=ratio)
        layer += 2
    return _conv(ops, weights, f"{name}.{layer + 1}", ops.elu(x))


def _transformer(ops: Ops, weights: Weights, config: EncoderConfig, x: Array) -> Array:
    """Attend over the clip; (batch, time, hidden) in and out. There is no final norm."""
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
