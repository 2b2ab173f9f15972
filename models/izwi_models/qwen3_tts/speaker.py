"""The speaker encoder: an ECAPA-TDNN that turns a clip's log mel into one vector.

Source: qwen-tts 0.1.1, core/models/modeling_qwen3_tts.py; Desplanques et al., "ECAPA-TDNN", 2020.
"""

from __future__ import annotations

from izwi.ops import Array, Ops, Weights
from izwi_models.qwen3_tts.config import SpeakerEncoderConfig

_PREFIX = "speaker_encoder."
# Least variance under the square root of the pooled deviation.
_VARIANCE_FLOOR = 1e-12


def speaker_embedding(
    ops: Ops, weights: Weights, config: SpeakerEncoderConfig, mel: Array
) -> Array:
    """Embed clips of equal length.

    Args:
        ops: The backend's operations.
        weights: Tensors by checkpoint name.
        config: Sizes of the encoder.
        mel: (batch, frames, mel_dim) log mel, with more frames than the widest
            convolution reaches to either side, since a reflection must fit into the clip.

    Returns:
        (batch, enc_dim), not normalised.
    """
    kernels, dilations = config.enc_kernel_sizes, config.enc_dilations
    x = ops.transpose(mel, (0, 2, 1))  # (batch, channels, frames)
    x = _tdnn(ops, weights, "blocks.0", x, kernels[0], dilations[0])
    outputs = []
    for n in range(1, len(config.enc_channels) - 1):
        x = _se_res2net(ops, weights, config, n, x)
        outputs.append(x)
    x = _tdnn(ops, weights, "mfa", ops.concat(outputs, 1), kernels[-1], dilations[-1])
    pooled = _attentive_statistics(ops, weights, x)  # (batch, 2 * channels, 1)
    return _conv(ops, weights, "fc", pooled)[:, :, 0]


def _se_res2net(
    ops: Ops, weights: Weights, config: SpeakerEncoderConfig, n: int, x: Array
) -> Array:
    """Block n: narrow parts that hear each other's output, then a gate over channels."""
    name, scale = f"blocks.{n}", config.enc_res2net_scale
    kernel, dilation = config.enc_kernel_sizes[n], config.enc_dilations[n]
    wide = _tdnn(ops, weights, f"{name}.tdnn1", x)
    part = wide.shape[1] // scale
    outputs = [wide[:, :part]]
    for i in range(1, scale):
        piece = wide[:, i * part : (i + 1) * part]
        if i > 1:
            piece = piece + outputs[-1]
        block = f"{name}.res2net_block.blocks.{i - 1}"
        outputs.append(_tdnn(ops, weights, block, piece, kernel, dilation))
    y = _tdnn(ops, weights, f"{name}.tdnn2", ops.concat(outputs, 1))
    squeezed = ops.relu(_conv(ops, weights, f"{name}.se_block.conv1", ops.mean(y, 2)))
    gate = ops.sigmoid(_conv(ops, weights, f"{name}.se_block.conv2", squeezed))
    return y * gate + x


def _attentive_statistics(ops: Ops, weights: Weights, x: Array) -> Array:
    """Mean and deviation over time, weighted by attention: (b, c, t) -> (b, 2c, 1)."""
    mean = ops.mean(x, 2)
    deviation = ops.sqrt(ops.clip(ops.mean((x - mean) * (x - mean), 2), _VARIANCE_FLOOR, None))
    flat = x * 0.0  # adding to it repeats the statistics along time
    context = ops.concat([x, flat + mean, flat + deviation], 1)
    scores = ops.tanh(_tdnn(ops, weights, "asp.tdnn", context))
    weight = ops.softmax(_conv(ops, weights, "asp.conv", scores))
    mean = ops.sum(weight * x, 2)[:, :, None]
    variance = ops.sum(weight * (x - mean) * (x - mean), 2)[:, :, None]
    return ops.concat([mean, ops.sqrt(ops.clip(variance, _VARIANCE_FLOOR, None))], 1)


def _tdnn(
    ops: Ops, weights: Weights, name: str, x: Array, kernel: int = 1, dilation: int = 1
) -> Array:
    return ops.relu(_conv(ops, weights, f"{name}.conv", x, kernel, dilation))


def _conv(
    ops: Ops, weights: Weights, name: str, x: Array, kernel: int = 1, dilation: int = 1
) -> Array:
    """Convolve without changing the length: the edges are reflected."""
    reach = dilation * (kernel - 1) // 2
    if reach:
        x = ops.pad(x, reach, reach, "reflect")
    weight, bias = weights[f"{_PREFIX}{name}.weight"], weights[f"{_PREFIX}{name}.bias"]
    return ops.conv1d(x, weight, bias, dilation=dilation)
