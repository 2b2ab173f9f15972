"""The codec's config.json. Knows no tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from izwi.checkpoints.folder import parse_config
from izwi.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """The keys of `encoder_config` that the encoder reads, by their published names.

    Published keys that are not used: `sliding_window`, because the pinned reference attends over
    the whole clip, and all keys of Mimi's own decoder.
    """

    codebook_dim: int
    codebook_size: int
    compress: int
    dilation_growth_rate: int
    head_dim: int
    hidden_act: str
    hidden_size: int
    intermediate_size: int
    kernel_size: int
    last_kernel_size: int
    norm_eps: float
    num_attention_heads: int
    num_filters: int
    num_hidden_layers: int
    num_key_value_heads: int
    num_quantizers: int
    num_residual_layers: int
    num_semantic_quantizers: int
    pad_mode: str
    residual_kernel_size: int
    rope_theta: float
    upsampling_ratios: tuple[int, ...]
    use_causal_conv: bool
    use_conv_shortcut: bool
    vector_quantization_hidden_dimension: int


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """The keys of `decoder_config` that the decoder reads, by their published names."""

    codebook_dim: int
    codebook_size: int
    decoder_dim: int
    head_dim: int
    hidden_act: str
    hidden_size: int
    intermediate_size: int
    latent_dim: int
    num_attention_heads: int
    num_hidden_layers: int
    num_key_value_heads: int
    num_quantizers: int
    rms_norm_eps: float
    rope_theta: float
    sliding_window: int
    upsample_rates: tuple[int, ...]
    upsampling_ratios: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CodecConfig:
    """One codec checkpoint.

    Attributes:
        encoder_valid_num_quantizers: Codes in a frame; the encoder has more codebooks than that.
        input_sample_rate: Sample rate of the audio to encode, Hz.
        output_sample_rate: Sample rate of the decoded audio, Hz.
        encode_downsample_rate: Input samples of one frame.
        decode_upsample_rate: Output samples of one frame.
    """

    encoder_valid_num_quantizers: int
    input_sample_rate: int
    output_sample_rate: int
    encode_downsample_rate: int
    decode_upsample_rate: int
    encoder_config: EncoderConfig
    decoder_config: DecoderConfig

    @property
    def downsample_stride(self) -> int:
        """Return the stride of the encoder's last convolution, after the strided ones (2)."""
        return self.encode_downsample_rate // math.prod(self.encoder_config.upsampling_ratios)


def codec_config(values: Mapping[str, Any], where: str) -> CodecConfig:
    """Read a parsed config.json.

    Args:
        values: The JSON object.
        where: Name of the file in messages, usually its path.

    Raises:
        CheckpointError: A key is missing or has an unsupported value; the message names it.
    """
    config = parse_config(CodecConfig, values, where)
    encoder, decoder = config.encoder_config, config.decoder_config
    upsampling = math.prod(decoder.upsample_rates) * math.prod(decoder.upsampling_ratios)
    strides = math.prod(encoder.upsampling_ratios)
    vq_dim = encoder.vector_quantization_hidden_dimension
    wanted = {
        "decode_upsample_rate": (config.decode_upsample_rate, upsampling),
        "encode_downsample_rate": (
            config.encode_downsample_rate,
            config.downsample_stride * strides,
        ),
        "decoder_config.num_quantizers": (
            decoder.num_quantizers,
            config.encoder_valid_num_quantizers,
        ),
        "decoder_config.hidden_act": (decoder.hidden_act, "silu"),
        "encoder_config.codebook_dim": (encoder.codebook_dim, vq_dim),
        "encoder_config.hidden_act": (encoder.hidden_act, "gelu"),
        "encoder_config.num_semantic_quantizers": (encoder.num_semantic_quantizers, 1),
        "encoder_config.pad_mode": (encoder.pad_mode, "constant"),
        "encoder_config.use_causal_conv": (encoder.use_causal_conv, True),
        "encoder_config.use_conv_shortcut": (encoder.use_conv_shortcut, False),
    }
    for key, (found, expected) in wanted.items():
        if found != expected:
            raise CheckpointError(f"{where}: {key} is {found!r}, only {expected!r} is supported")
    if encoder.num_quantizers < config.encoder_valid_num_quantizers:
        raise CheckpointError(
            f"{where}: encoder_config.num_quantizers is {encoder.num_quantizers}, less than "
            f"encoder_valid_num_quantizers ({config.encoder_valid_num_quantizers})"
        )
    if vq_dim == encoder.hidden_size:  # the reference then has no projections
        raise CheckpointError(
            f"{where}: encoder_config.vector_quantization_hidden_dimension must differ from "
            f"hidden_size ({vq_dim})"
        )
    return config
