"""Speaker encoder: an ECAPA-TDNN that turns a clip's log mel into one vector.

Source: qwen-tts 0.1.1, core/models/modeling_qwen3_tts.py; Desplanques et al., "ECAPA-TDNN", 2020.
"""

from __future__ import annotations

import math

from izwi.ops import Array, Ops, Weights
from izwi_models.qwen3_tts.config import SpeakerEncoderConfig

_PREFIX = "speaker_encoder."
# Minimum variance under the square root of the pooled deviation.
_VARIANCE_FLOOR = 1e-12


def speaker_embedding(
    ops: Ops,
    weights: Weights,
    config: SpeakerEncoderConfig,
    mel: Array,
    lengths: Array | None = None,
) -> Array:
    """Compute one speaker vector for each clip. Clips have equal lengths or are padded.

    Args:
        ops: The backend's operations.
        weights: Tensors by checkpoint name.
        config: Sizes of the encoder.
        mel: (batch, frames, mel_dim) log mel.
        lengths: (batch,) int64 on the device: frames of each clip; the padding must be finite.
            None if no clip is padded.

    A clip needs more frames than the widest convolution reaches to either side, because its edges
    are reflected.

    Returns:
        (batch, enc_dim), not normalised.
    """
    kernels, dilations = config.enc_kernel_sizes, config.enc_dilations
    x = ops.transpose(mel, (0, 2, 1))  # (batch, channels, frames)
    clips = _Clips(ops) if lengths is None else _PaddedClips(ops, lengths, x.shape[2])
    x = _tdnn(clips, weights, "blocks.0", x, kernels[0], dilations[0])
    outputs = []
    for n in range(1, len(config.enc_channels) - 1):
        x = _se_res2net(clips, weights, config, n, x)
        outputs.append(x)
    x = _tdnn(clips, weights, "mfa", ops.concat(outputs, 1), kernels[-1], dilations[-1])
    pooled = _attentive_statistics(clips, weights, x)  # (batch, 2 * channels, 1)
    return _conv(clips, weights, "fc", pooled)[:, :, 0]


class _Clips:
    """Operations along time for clips without padding."""

    def __init__(self, ops: Ops):
        self.ops = ops

    def reflected(self, x: Array, reach: int) -> Array:
        """Pad both edges by reflection: (batch, channels, frames + 2 * reach)."""
        return self.ops.pad(x, reach, reach, "reflect")

    def mean(self, x: Array) -> Array:
        """Average over time: (batch, channels, 1)."""
        return self.ops.mean(x, 2)

    def softmax(self, scores: Array) -> Array:
        """Softmax over time, (batch, channels, frames)."""
        return self.ops.softmax(scores)


class _PaddedClips(_Clips):
    """The same operations for padded clips; the padding does not affect the results."""

    def __init__(self, ops: Ops, lengths: Array, frames: int):
        super().__init__(ops)
        self._frames = frames
        self._last = lengths[:, None] - 1
        self._real = (ops.arange(frames) <= self._last)[:, None]  # (batch, 1, frames)
        self._places: dict[int, Array] = {}  # (batch, frames + 2 * reach), by reach

    def reflected(self, x: Array, reach: int) -> Array:
        if reach not in self._places:
            at = abs(self.ops.arange(self._frames + 2 * reach) - reach)  # reflect the start,
            mirrored = self._last - abs(at - self._last)  # and the end of each clip
            self._places[reach] = self.ops.clip(mirrored, 0, None)
        return self.ops.take_columns(x, self._places[reach])

    def mean(self, x: Array) -> Array:
        return self.ops.masked_mean(x, self._real)

    def softmax(self, scores: Array) -> Array:
        return self.ops.softmax(self.ops.where(self._real, scores, -math.inf))


def _se_res2net(
    clips: _Clips, weights: Weights, config: SpeakerEncoderConfig, n: int, x: Array
) -> Array:
    """Run block n: groups of channels, each added to the next, then a gate over channels."""
    ops, name, scale = clips.ops, f"blocks.{n}", config.enc_res2net_scale
    kernel, dilation = config.enc_kernel_sizes[n], config.enc_dilations[n]
    wide = _tdnn(clips, weights, f"{name}.tdnn1", x)
    part = wide.shape[1] // scale
    outputs = [wide[:, :part]]
    for i in range(1, scale):
        piece = wide[:, i * part : (i + 1) * part]
        if i > 1:
            piece = piece + outputs[-1]
        block = f"{name}.res2net_block.blocks.{i - 1}"
        outputs.append(_tdnn(clips, weights, block, piece, kernel, dilation))
    y = _tdnn(clips, weights, f"{name}.tdnn2", ops.concat(outputs, 1))
    squeezed = ops.relu(_conv(clips, weights, f"{name}.se_block.conv1", clips.mean(y)))
    gate = ops.sigmoid(_conv(clips, weights, f"{name}.se_block.conv2", squeezed))
    return y * gate + x


def _attentive_statistics(clips: _Clips, weights: Weights, x: Array) -> Array:
    """Compute mean and deviation over time, weighted by attention: (b, c, t) -> (b, 2c, 1)."""
    ops, mean = clips.ops, clips.mean(x)
    deviation = ops.sqrt(ops.clip(clips.mean((x - mean) * (x - mean)), _VARIANCE_FLOOR, None))
    flat = x * 0.0  # adding to it repeats the statistics along time
    context = ops.concat([x, flat + mean, flat + deviation], 1)
    scores = ops.tanh(_tdnn(clips, weights, "asp.tdnn", context))
    weight = clips.softmax(_conv(clips, weights, "asp.conv", scores))
    mean = ops.sum(weight * x, 2)[:, :, None]
    variance = ops.sum(weight * (x - mean) * (x - mean), 2)[:, :, None]
    return ops.concat([mean, ops.sqrt(ops.clip(variance, _VARIANCE_FLOOR, None))], 1)


def _tdnn(
    clips: _Clips, weights: Weights, name: str, x: Array, kernel: int = 1, dilation: int = 1
) -> Array:
    return clips.ops.relu(_conv(clips, weights, f"{name}.conv", x, kernel, dilation))


def _conv(
    clips: _Clips, weights: Weights, name: str, x: Array, kernel: int = 1, dilation: int = 1
) -> Array:
    """Convolve with reflected edges, so that the length stays the same."""
    reach = dilation * (kernel - 1) // 2
    if reach:
        x = clips.reflected(x, reach)
    weight, bias = weights[f"{_PREFIX}{name}.weight"], weights[f"{_PREFIX}{name}.bias"]
    return clips.ops.conv1d(x, weight, bias, dilation=dilation)
