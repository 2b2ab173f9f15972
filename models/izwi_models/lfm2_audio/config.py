"""Sizes of an LFM2-Audio checkpoint, and the tensors of its language model.

Source: liquid-audio 1.3.0, model/lfm2_audio.py and model/transformer.py; transformers, models/lfm2.
The encoder and the codecs read their own parts of the configuration, in files of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from izwi.checkpoints.folder import parse_config, read_json
from izwi.errors import CheckpointError
from izwi.model.layers import CacheSpec, PagedAttention, ShortConv
from izwi.ops.attention_spec import AttentionSpec

ARCHITECTURE = "Lfm2AudioForConditionalGeneration"

# Folder with the codec of LFM2.5-Audio.
DETOKENIZER_FOLDER = "audio_detokenizer"
# Ids that are constants in the published code.
END_ID = 7  # <|im_end|>
AUDIO_START_ID = 128  # <|audio_start|>
TEXT_END_ID = 130  # <|text_end|>
END_OF_AUDIO = 2048  # the last code of every codebook
CODES = END_OF_AUDIO + 1

_CONV, _ATTENTION = "conv", "full_attention"
_MOST_LAYERS, _MOST_FFN_FACTOR = 1024, 64  # published: 16, and 1.0
# Constants of the depthformer in the published code.
_DEPTH_HEADS, _DEPTH_KV_HEADS, _DEPTH_ROPE_THETA, _DEPTH_NORM_EPS = 32, 8, 1e6, 1e-5
_DEPTH_MULTIPLE_OF = 256

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class BackboneConfig:
    """The LFM2 backbone (`lfm` in config.json), with derived values.

    Attributes:
        ffn_size: Inner width of the gated MLP.
        layer_types: "conv" or "full_attention", one a layer.
        conv_width: Taps of a short convolution (`conv_L_cache`).
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    norm_eps: float
    rope_theta: float
    ffn_size: int
    layer_types: tuple[str, ...]
    conv_width: int

    @property
    def attention(self) -> AttentionSpec:
        """Sizes of one attention layer."""
        return AttentionSpec(
            num_heads=self.num_attention_heads,
            num_kv_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            rope_theta=self.rope_theta,
            norm_eps=self.norm_eps,
        )

    @property
    def layers(self) -> tuple[CacheSpec, ...]:
        """What each layer caches of a sequence."""
        attention = PagedAttention(self.num_key_value_heads, self.head_dim, self.rope_theta)
        conv = ShortConv(self.hidden_size, self.conv_width)
        return tuple(conv if kind == _CONV else attention for kind in self.layer_types)

    def is_conv(self, layer: int) -> bool:
        """Return whether a layer mixes positions by a short convolution instead of attention."""
        return self.layer_types[layer] == _CONV


@dataclass(frozen=True, slots=True)
class DepthformerConfig:
    """The transformer over the codebooks of one frame (`depthformer` in config.json)."""

    layers: int
    dim: int
    tie: bool

    @property
    def ffn_size(self) -> int:
        """Inner width of the gated MLP."""
        return _rounded_up(int(2 * (4 * self.dim) / 3), _DEPTH_MULTIPLE_OF)

    @property
    def norm_eps(self) -> float:
        """Epsilon of all its norms."""
        return _DEPTH_NORM_EPS

    @property
    def attention(self) -> AttentionSpec:
        """Sizes of one layer's attention, with heads in the half-rotation layout."""
        return AttentionSpec(
            num_heads=_DEPTH_HEADS,
            num_kv_heads=_DEPTH_KV_HEADS,
            head_dim=self.dim // _DEPTH_HEADS,
            rope_theta=_DEPTH_ROPE_THETA,
            norm_eps=_DEPTH_NORM_EPS,
        )


@dataclass(frozen=True, slots=True)
class LFM2AudioConfig:
    """One checkpoint.

    Attributes:
        codebooks: Number of ids in one audio frame.
        interleaved_n_text: Text tokens before each block of frames, in interleaved generation.
        interleaved_n_audio: Frames of each block.
        tie_audio_embeddings: Whether the output head is the embedding of the frames.
        preprocessor: As in config.json, for the audio encoder's features.
        encoder: As in config.json, for the audio encoder.
        lfm: The backbone.
        depthformer: Sizes of the depthformer.
    """

    codebooks: int
    interleaved_n_text: int
    interleaved_n_audio: int
    tie_audio_embeddings: bool
    preprocessor: Mapping[str, Any]
    encoder: Mapping[str, Any]
    lfm: BackboneConfig
    depthformer: DepthformerConfig


def read_config(folder: Path) -> LFM2AudioConfig:
    """Read config.json.

    Raises:
        CheckpointError: The file is broken, a key is missing, or a value is not supported; the
            message names it.
    """
    path = folder / "config.json"
    return checked_config(read_json(path), str(path))


def checked_config(values: Mapping[str, Any], where: str) -> LFM2AudioConfig:
    """Fill the configuration from the object in config.json; raises as `read_config`."""
    lfm = values.get("lfm")
    if isinstance(lfm, Mapping):
        values = {**values, "lfm": _backbone_values(lfm, f"{where}.lfm")}
    config = parse_config(LFM2AudioConfig, values, where)
    backbone, depth = config.lfm, config.depthformer
    kinds = set(backbone.layer_types)
    wrong = {
        "codebooks": config.codebooks < 1,
        "interleaved_n_text": config.interleaved_n_text < 1,
        "interleaved_n_audio": config.interleaved_n_audio < 1,
        "lfm.layer_types": not kinds <= {_CONV, _ATTENTION}
        or len(backbone.layer_types) != backbone.num_hidden_layers,
        "lfm.layer_types: no attention": _ATTENTION not in kinds,
        "lfm.vocab_size": backbone.vocab_size <= TEXT_END_ID,
        "lfm.conv_L_cache": backbone.conv_width < 2,
        "depthformer.dim": depth.dim % (2 * _DEPTH_HEADS) != 0,
    }
    for name, is_wrong in wrong.items():
        if is_wrong:
            raise CheckpointError(f"{where}: {name} has a value not supported")
    return config


def _backbone_values(lfm: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return values under our names, from older and newer spellings of the published files.

    Source: transformers 4.57.6, Lfm2Config and Lfm2MLP.
    """
    if lfm.get("conv_bias", False):
        raise CheckpointError(f"{where}: conv_bias has a value not supported")
    heads = lfm.get("num_attention_heads")
    if not isinstance(heads, int) or heads < 1 or not isinstance(lfm.get("hidden_size"), int):
        raise CheckpointError(f"{where}: num_attention_heads or hidden_size is not a count")
    rope = lfm.get("rope_parameters")
    rotation = rope if isinstance(rope, Mapping) else lfm
    theta = lfm.get("theta", rotation.get("rope_theta", 1e6))
    return {
        **lfm,
        "head_dim": lfm.get("head_dim") or lfm["hidden_size"] // heads,
        "ffn_size": _ffn_size(lfm, where),
        "layer_types": _layer_types(lfm, where),
        "conv_width": lfm.get("conv_L_cache", 3),
        "rope_theta": theta,
    }


def _ffn_size(lfm: Mapping[str, Any], where: str) -> int:
    """Return the inner width of the MLP: the value in the file, or two thirds of it, rounded up."""
    size = lfm.get("block_ff_dim", lfm.get("intermediate_size"))
    if not isinstance(size, int):
        raise CheckpointError(f"{where} lacks the key 'block_ff_dim'")
    if not lfm.get("block_auto_adjust_ff_dim", True):
        return size
    size, factor = 2 * size // 3, lfm.get("block_ffn_dim_multiplier", 1.0)
    if factor is None:
        return size
    multiple_of = lfm.get("block_multiple_of", 256)
    if not isinstance(factor, int | float) or not 0 < factor <= _MOST_FFN_FACTOR:
        raise CheckpointError(f"{where}: block_ffn_dim_multiplier has a value not supported")
    if not isinstance(multiple_of, int) or multiple_of < 1:
        raise CheckpointError(f"{where}: block_multiple_of must be a positive integer")
    return _rounded_up(int(factor * size), multiple_of)


def _layer_types(lfm: Mapping[str, Any], where: str) -> list[str]:
    listed = lfm.get("layer_types")
    if listed is not None:
        if not isinstance(listed, list):
            raise CheckpointError(f"{where}: layer_types must be a list")
        return listed
    attending, count = lfm.get("full_attn_idxs"), lfm.get("num_hidden_layers")
    if not isinstance(attending, list):
        raise CheckpointError(f"{where} lacks the key 'layer_types'")
    if not isinstance(count, int) or not 0 < count <= _MOST_LAYERS:
        raise CheckpointError(f"{where}: num_hidden_layers must be from 1 to {_MOST_LAYERS}")
    return [_ATTENTION if n in attending else _CONV for n in range(count)]


def _rounded_up(size: int, multiple_of: int) -> int:
    return -(-size // multiple_of) * multiple_of


def tensor_shapes(config: LFM2AudioConfig) -> Shapes:
    """Return names and shapes of backbone, embedding of frames, and depthformer."""
    hidden, dim = config.lfm.hidden_size, config.depthformer.dim
    shapes = _backbone_shapes(config.lfm)
    shapes["audio_embedding.embedding.weight"] = (config.codebooks * CODES, hidden)
    shapes["depth_linear.weight"] = (config.codebooks * dim, hidden)
    shapes["depth_linear.bias"] = (config.codebooks * dim,)
    shapes |= _depthformer_shapes(config.depthformer)
    for n in range(config.codebooks):
        shapes[f"depth_embeddings.{n}.embedding.weight"] = (CODES, dim)
        shapes[f"depth_embeddings.{n}.embedding_norm.weight"] = (dim,)
        if not config.depthformer.tie:
            shapes[f"depth_embeddings.{n}.to_logits.weight"] = (CODES, dim)
    return shapes


def unused_shapes(config: LFM2AudioConfig) -> Shapes:
    """Return tensors that a file may have and generation ignores: training's, and tied copies."""
    hidden, dim = config.lfm.hidden_size, config.depthformer.dim
    shapes: Shapes = {
        "audio_embedding.embedding_norm.weight": (hidden,),
        "audio_embedding.to_logits.weight": (config.codebooks * CODES, hidden),
        "codebook_offsets": (config.codebooks,),
        "audio_loss_weights": (config.codebooks,),
    }
    if config.depthformer.tie:
        for n in range(config.codebooks):
            shapes[f"depth_embeddings.{n}.to_logits.weight"] = (CODES, dim)
    return shapes


def _backbone_shapes(config: BackboneConfig) -> Shapes:
    hidden, inner, head = config.hidden_size, config.ffn_size, config.head_dim
    q_width, kv_width = config.num_attention_heads * head, config.num_key_value_heads * head
    every: Shapes = {
        "operator_norm.weight": (hidden,),
        "ffn_norm.weight": (hidden,),
        "feed_forward.w1.weight": (inner, hidden),
        "feed_forward.w3.weight": (inner, hidden),
        "feed_forward.w2.weight": (hidden, inner),
    }
    conv: Shapes = {
        "conv.in_proj.weight": (3 * hidden, hidden),
        "conv.conv.weight": (hidden, 1, config.conv_width),
        "conv.out_proj.weight": (hidden, hidden),
    }
    attention: Shapes = {
        "self_attn.q_proj.weight": (q_width, hidden),
        "self_attn.k_proj.weight": (kv_width, hidden),
        "self_attn.v_proj.weight": (kv_width, hidden),
        "self_attn.out_proj.weight": (hidden, q_width),
        "self_attn.q_layernorm.weight": (head,),
        "self_attn.k_layernorm.weight": (head,),
    }
    shapes: Shapes = {
        "lfm.embed_tokens.weight": (config.vocab_size, hidden),
        "lfm.embedding_norm.weight": (hidden,),
    }
    for n in range(config.num_hidden_layers):
        own = every | (conv if config.is_conv(n) else attention)
        shapes |= {f"lfm.layers.{n}.{name}": shape for name, shape in own.items()}
    return shapes


def _depthformer_shapes(config: DepthformerConfig) -> Shapes:
    dim, inner, attention = config.dim, config.ffn_size, config.attention
    width = (attention.num_heads + 2 * attention.num_kv_heads) * attention.head_dim
    layer: Shapes = {
        "operator.qkv_proj.weight": (width, dim),
        "operator.out_proj.weight": (dim, dim),
        "operator.bounded_attention.q_layernorm.weight": (attention.head_dim,),
        "operator.bounded_attention.k_layernorm.weight": (attention.head_dim,),
        "operator_norm.weight": (dim,),
        "ffn_norm.weight": (dim,),
        "feed_forward.w1.weight": (inner, dim),
        "feed_forward.w3.weight": (inner, dim),
        "feed_forward.w2.weight": (dim, inner),
    }
    return {
        f"depthformer.layers.{n}.{name}": shape
        for n in range(config.layers)
        for name, shape in layer.items()
    }
