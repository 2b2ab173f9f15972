"""Configuration of LFM2-Audio's features, encoder and codecs. Knows no tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from izwi.checkpoints.folder import parse_config
from izwi.errors import CheckpointError

# Of both codecs.
SAMPLE_RATE = 24_000  # Hz
FRAME_SAMPLES = 1920  # 80 ms


@dataclass(frozen=True, slots=True)
class PreprocessorConfig:
    """The keys of `preprocessor` that the features read, by their published names."""

    sample_rate: int
    normalize: str
    window_size: float
    window_stride: float
    window: str
    features: int
    n_fft: int
    log: bool
    frame_splicing: int
    pad_to: int


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """The keys of `encoder` that the conformer reads, by their published names."""

    feat_in: int
    feat_out: int
    n_layers: int
    d_model: int
    subsampling: str
    subsampling_factor: int
    subsampling_conv_channels: int
    causal_downsampling: bool
    reduction: str | None
    ff_expansion_factor: int
    self_attention_model: str
    n_heads: int
    att_context_size: tuple[int, ...]
    xscaling: bool
    untie_biases: bool
    conv_kernel_size: int
    conv_norm_type: str

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.d_model // self.n_heads

    @property
    def num_bands(self) -> int:
        """Return the number of rows of mel bands after subsampling."""
        return -(-self.feat_in // self.subsampling_factor)

    def num_tokens(self, frames: int) -> int:
        """Return the number of tokens for this number of mel frames."""
        return -(-frames // self.subsampling_factor)


@dataclass(frozen=True, slots=True)
class MimiConfig:
    """Sizes of Mimi. Its weight file has none; the defaults are Kyutai's.

    Attributes:
        num_codebooks: Codes of a frame; the file has `num_file_codebooks`.
        codebook_size: Entries of a codebook.
        codebook_dim: Their width.
        hidden_size: Width of the latents and of the transformer.
        num_layers: Layers of the transformer.
        num_heads: Attention heads of the transformer.
        intermediate_size: Width of its feed-forward layers.
        window: Positions at 25 Hz that each position attends to, including itself.
        rope_theta: Base of its rotation.
        num_filters: Channels before the last convolution.
        ratios: Upsampling of each block of the convolutional decoder.
        num_file_codebooks: See `num_codebooks`.
    """

    num_codebooks: int = 8
    codebook_size: int = 2048
    codebook_dim: int = 256
    hidden_size: int = 512
    num_layers: int = 8
    num_heads: int = 8
    intermediate_size: int = 2048
    window: int = 250
    rope_theta: float = 10_000.0
    num_filters: int = 64
    ratios: tuple[int, ...] = (8, 6, 5, 4)
    num_file_codebooks: int = 32

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_heads


@dataclass(frozen=True, slots=True)
class DetokenizerConfig:
    """The keys of audio_detokenizer/config.json that the detokenizer reads.

    Attributes:
        layer_types: "conv", or either name of windowed attention.
        intermediate_size: Width of the feed-forward layers before adjustment.
        sliding_window: Positions at 75 Hz that one of them sees, itself included.
    """

    hidden_size: int
    num_hidden_layers: int
    layer_types: tuple[str, ...]
    num_attention_heads: int
    num_key_value_heads: int
    intermediate_size: int
    norm_eps: float
    rope_theta: float
    sliding_window: int
    vocab_size: int
    conv_L_cache: int = 3  # noqa: N815 (the published key)
    conv_bias: bool = False
    block_auto_adjust_ff_dim: bool = True
    block_multiple_of: int = 256
    block_ffn_dim_multiplier: float | None = 1.0

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def feed_forward_size(self) -> int:
        """Width of the feed-forward layers, as the reference adjusts it."""
        size = self.intermediate_size
        if not self.block_auto_adjust_ff_dim:
            return size
        size = int(2 * size / 3)
        if self.block_ffn_dim_multiplier is not None:
            size = int(self.block_ffn_dim_multiplier * size)
        return -(-size // self.block_multiple_of) * self.block_multiple_of


def preprocessor_config(values: Mapping[str, Any], where: str) -> PreprocessorConfig:
    """Read `preprocessor` of config.json.

    Raises:
        CheckpointError: A key is missing or asks for something that is not implemented.
    """
    config = parse_config(PreprocessorConfig, values, where)
    wanted = {
        "sample_rate": 16_000,
        "normalize": "per_feature",
        "window_size": 0.025,
        "window_stride": 0.01,
        "window": "hann",
        "n_fft": 512,
        "log": True,
        "frame_splicing": 1,
        "pad_to": 0,
    }
    _check(config, wanted, where)
    return config


def encoder_config(values: Mapping[str, Any], where: str) -> EncoderConfig:
    """Read `encoder` of config.json.

    Raises:
        CheckpointError: A key is missing or asks for something that is not implemented.
    """
    config = parse_config(EncoderConfig, values, where)
    wanted = {
        "feat_out": -1,
        "subsampling": "dw_striding",
        "subsampling_factor": 8,
        "causal_downsampling": False,
        "reduction": None,
        "self_attention_model": "rel_pos",
        "att_context_size": (-1, -1),
        "xscaling": False,
        "untie_biases": True,
        "conv_norm_type": "batch_norm",
    }
    _check(config, wanted, where)
    if config.d_model % config.n_heads or config.conv_kernel_size % 2 == 0:
        raise CheckpointError(
            f"{where}: n_heads ({config.n_heads}) must divide d_model ({config.d_model}), and "
            f"conv_kernel_size ({config.conv_kernel_size}) must be odd"
        )
    return config


def detokenizer_config(values: Mapping[str, Any], where: str) -> DetokenizerConfig:
    """Read audio_detokenizer/config.json.

    Written by newer versions of transformers it has `rope_parameters` in place of `rope_theta`;
    of older ones `block_ff_dim`, which then counts, beside `intermediate_size`.

    Raises:
        CheckpointError: A key is missing or asks for something that is not implemented.
    """
    values = dict(values)
    rotation = values.get("rope_parameters")
    if "rope_theta" not in values and isinstance(rotation, Mapping) and "rope_theta" in rotation:
        values["rope_theta"] = rotation["rope_theta"]
    if "block_ff_dim" in values:
        values["intermediate_size"] = values["block_ff_dim"]
    config = parse_config(DetokenizerConfig, values, where)
    _check(config, {"conv_bias": False}, where)
    unknown = set(config.layer_types) - {"conv", "full_attention", "sliding_attention"}
    if unknown or len(config.layer_types) != config.num_hidden_layers:
        raise CheckpointError(
            f"{where}: layer_types must name num_hidden_layers ({config.num_hidden_layers}) layers "
            f"of conv or sliding_attention, got {list(config.layer_types)}"
        )
    return config


def _check(config: object, wanted: Mapping[str, object], where: str) -> None:
    for key, expected in wanted.items():
        found = getattr(config, key)
        if found != expected:
            raise CheckpointError(f"{where}: {key} is {found!r}, only {expected!r} is supported")
