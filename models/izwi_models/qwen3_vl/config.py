"""Sizes of a Qwen3-VL checkpoint and the tensors they imply. Knows no arithmetic.

Source: transformers 5.23, models/qwen3_vl; the published config.json of the 2B, 4B and 8B, whose
rotation transformers 5 writes as rope_parameters, 4.57 as rope_scaling and rope_theta.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isqrt
from pathlib import Path
from typing import Any

from izwi.checkpoints.folder import parse_config, read_json
from izwi.errors import CheckpointError
from izwi.inputs.images import ImageSizing
from izwi.model.layers import PagedAttention
from izwi.ops.attention_spec import AttentionSpec
from izwi_models.qwen3.config import TextConfig, layer_matrices
from izwi_models.qwen3.config import tensor_shapes as decoder_shapes

VISION_PREFIX = "model.visual."
TEXT_PREFIX = "model.language_model."
EMBEDDING = "model.language_model.embed_tokens.weight"
HEAD = "lm_head.weight"

Shapes = dict[str, tuple[int, ...]]

# Limits of transformers' image processor, for checkpoints whose preprocessor_config.json has none.
_MIN_PIXELS, _MAX_PIXELS = 56 * 56, 28 * 28 * 1280
# An image becomes at most 4,096 tokens of the published sizes, whatever the checkpoint allows:
# attention of the encoder grows with the square, and the memory plan includes the largest image.
_MOST_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """The image encoder, named as in the published config.json."""

    depth: int
    hidden_size: int
    hidden_act: str
    intermediate_size: int
    num_heads: int
    in_channels: int
    patch_size: int
    spatial_merge_size: int
    temporal_patch_size: int
    out_hidden_size: int
    num_position_embeddings: int
    deepstack_visual_indexes: tuple[int, ...]

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.hidden_size // self.num_heads

    @property
    def patch_values(self) -> int:
        """Numbers of a patch of one image."""
        return self.in_channels * self.patch_size**2

    @property
    def side(self) -> int:
        """Rows, and columns, of the learned positions."""
        return isqrt(max(0, self.num_position_embeddings))

    @property
    def merged_width(self) -> int:
        """Width of the patches that become one token."""
        return self.hidden_size * self.spatial_merge_size**2

    @property
    def token_pixels(self) -> int:
        """Pixels of a token's side."""
        return self.patch_size * self.spatial_merge_size

    @property
    def output_width(self) -> int:
        """Width of an image's token: its embedding, then what each DeepStack layer adds."""
        return self.out_hidden_size * (1 + len(self.deepstack_visual_indexes))


@dataclass(frozen=True, slots=True)
class VisionTextConfig(TextConfig):
    """The decoder; its queries and keys turn by three axes."""

    rope_sections: tuple[int, ...] = ()

    @property
    def attention(self) -> AttentionSpec:
        """Sizes of one layer's attention."""
        return AttentionSpec(
            num_heads=self.num_attention_heads,
            num_kv_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            rope_theta=self.rope_theta,
            norm_eps=self.rms_norm_eps,
            rope_sections=self.rope_sections,
        )

    @property
    def layers(self) -> tuple[PagedAttention, ...]:
        """What each layer caches of a position."""
        layer = PagedAttention(
            self.num_key_value_heads,
            self.head_dim,
            self.rope_theta,
            rope_sections=self.rope_sections,
        )
        return (layer,) * self.num_hidden_layers


@dataclass(frozen=True, slots=True)
class VLConfig:
    """One checkpoint."""

    vision_config: VisionConfig
    text_config: VisionTextConfig
    image_token_id: int
    vision_start_token_id: int
    vision_end_token_id: int

    @property
    def vision(self) -> VisionConfig:
        """The image encoder."""
        return self.vision_config

    @property
    def text(self) -> VisionTextConfig:
        """The decoder."""
        return self.text_config


@dataclass(frozen=True, slots=True)
class PixelConfig:
    """How pixels become the encoder's input: preprocessor_config.json.

    Attributes:
        sizing: To what sizes images are scaled.
        mean: Subtracted from each channel, after pixels are scaled to [0, 1].
        std: Divides each channel then.
    """

    sizing: ImageSizing
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)


def read_config(folder: Path) -> VLConfig:
    """Read config.json.

    Raises:
        CheckpointError: The file is broken, a key is missing, or a value is not supported; the
            message names it.
    """
    where = folder / "config.json"
    return config_of(read_json(where), str(where))


def config_of(values: Mapping[str, Any], where: str) -> VLConfig:
    """Return the configuration that a config.json holds; see `read_config`."""
    text = values.get("text_config")
    if isinstance(text, Mapping):
        # which of the two says whether the head is tied, depends on the release
        tied = {"tie_word_embeddings": values.get("tie_word_embeddings", False)}
        values = {**values, "text_config": {**tied, **text, **_rotation(text)}}
    config = parse_config(VLConfig, values, where)
    for name, is_wrong in _wrong(config, _rope(text if isinstance(text, Mapping) else {})).items():
        if is_wrong:
            raise CheckpointError(f"{where}: {name} has a value not supported")
    return config


def read_pixel_config(folder: Path, config: VLConfig) -> PixelConfig:
    """Read preprocessor_config.json; without it, the processor's defaults hold.

    Raises:
        CheckpointError: A value contradicts config.json, or is not supported.
    """
    path, vision = folder / "preprocessor_config.json", config.vision
    values = read_json(path) if path.is_file() else {}
    expected = {
        "patch_size": vision.patch_size,
        "merge_size": vision.spatial_merge_size,
        "temporal_patch_size": vision.temporal_patch_size,
        "resample": 3,  # bicubic
    }
    for key, value in expected.items():
        if values.get(key, value) != value:
            raise CheckpointError(f"{path}: {key} must be {value}, got {values[key]!r}")
    for key in ("do_resize", "do_rescale", "do_normalize"):
        if values.get(key) is False:
            raise CheckpointError(f"{path}: {key} must be true")
    size = values.get("size") or {}
    if not isinstance(size, Mapping):
        raise CheckpointError(f"{path}: size must have shortest_edge and longest_edge in pixels")
    least = values.get("min_pixels", size.get("shortest_edge", _MIN_PIXELS))
    most = values.get("max_pixels", size.get("longest_edge", _MAX_PIXELS))
    if not (type(least) is int and type(most) is int and 0 < least <= most):
        raise CheckpointError(f"{path}: size must have shortest_edge and longest_edge in pixels")
    factor = vision.token_pixels
    sizing = ImageSizing(factor, least, max(least, min(most, _MOST_TOKENS * factor**2)))
    mean, std = (values.get(f"image_{name}", (0.5,) * 3) for name in ("mean", "std"))
    return parse_config(PixelConfig, {"sizing": sizing, "mean": mean, "std": std}, str(path))


def tensor_shapes(config: VLConfig, *, with_head: bool | None = None) -> Shapes:
    """Return the name and shape of each tensor in the published layout.

    Args:
        config: Sizes.
        with_head: Whether the checkpoint has an output head besides the embedding. A tied
            checkpoint may have one; None follows `tie_word_embeddings`.
    """
    text = config.text
    table = (text.vocab_size, text.hidden_size)
    shapes = {VISION_PREFIX + name: shape for name, shape in _vision_shapes(config.vision).items()}
    shapes |= {EMBEDDING: table, **decoder_shapes(text, TEXT_PREFIX)}
    if with_head is None:
        with_head = not text.tie_word_embeddings
    return shapes | {HEAD: table} if with_head else shapes


def packable(shapes: Mapping[str, tuple[int, ...]]) -> frozenset[str]:
    """Return the matrices that may stay packed: the decoder's, the embedding and the head."""
    return layer_matrices(shapes, TEXT_PREFIX) | ({EMBEDDING, HEAD} & shapes.keys())


def _vision_shapes(config: VisionConfig) -> Shapes:
    width, inner = config.hidden_size, config.intermediate_size
    patch = (config.in_channels, config.temporal_patch_size, *[config.patch_size] * 2)
    shapes: Shapes = {
        "patch_embed.proj.weight": (width, *patch),
        "patch_embed.proj.bias": (width,),
        "pos_embed.weight": (config.num_position_embeddings, width),
    }
    layer = _norm("norm1", width) | _norm("norm2", width)
    layer |= _affine("attn.qkv", 3 * width, width) | _affine("attn.proj", width, width)
    layer |= _affine("mlp.linear_fc1", inner, width) | _affine("mlp.linear_fc2", width, inner)
    for n in range(config.depth):
        shapes |= {f"blocks.{n}.{name}": shape for name, shape in layer.items()}
    shapes |= _merger(config, "merger", width)
    for n in range(len(config.deepstack_visual_indexes)):
        shapes |= _merger(config, f"deepstack_merger_list.{n}", config.merged_width)
    return shapes


def _merger(config: VisionConfig, name: str, normed: int) -> Shapes:
    merged = config.merged_width
    return (
        _norm(f"{name}.norm", normed)
        | _affine(f"{name}.linear_fc1", merged, merged)
        | _affine(f"{name}.linear_fc2", config.out_hidden_size, merged)
    )


def _affine(name: str, out: int, into: int) -> Shapes:
    return {f"{name}.weight": (out, into), f"{name}.bias": (out,)}


def _norm(name: str, width: int) -> Shapes:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def _rope(text: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what the file says of the rotation, under either name."""
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    return rope if isinstance(rope, Mapping) else {}


def _rotation(text: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the rotation to keys of `VisionTextConfig`."""
    rope = _rope(text)
    made: dict[str, Any] = {"rope_sections": rope.get("mrope_section", (24, 20, 20))}
    return made | ({"rope_theta": rope["rope_theta"]} if "rope_theta" in rope else {})


def _wrong(config: VLConfig, rope: Mapping[str, Any]) -> dict[str, bool]:
    """Values by name, and whether this code cannot compute them."""
    vision, text = config.vision, config.text
    sections = text.rope_sections
    layers = vision.deepstack_visual_indexes
    return {
        "vision_config.hidden_act": vision.hidden_act not in ("gelu_pytorch_tanh", "gelu_new"),
        "vision_config.hidden_size": vision.hidden_size % (4 * vision.num_heads) != 0,
        "vision_config.in_channels": vision.in_channels != 3,
        "vision_config.patch_size": min(
            vision.patch_size, vision.spatial_merge_size, vision.temporal_patch_size
        )
        < 1,
        "vision_config.num_position_embeddings": vision.side < 1
        or vision.side**2 != vision.num_position_embeddings,
        "vision_config.deepstack_visual_indexes": list(layers) != sorted(set(layers))
        or not all(0 <= n < vision.depth for n in layers)
        or len(layers) > text.num_hidden_layers,
        "vision_config.out_hidden_size": vision.out_hidden_size != text.hidden_size,
        "text_config.hidden_act": text.hidden_act != "silu",
        "text_config.attention_bias": text.attention_bias,
        "text_config.rope_scaling": rope.get("rope_type", "default") not in ("default", "mrope")
        or not rope.get("mrope_interleaved", True),
        "text_config.rope_scaling.mrope_section": len(sections) != 3
        or min(sections) < 0
        or sum(sections) != text.head_dim // 2
        or 3 * max(sections[1:]) > text.head_dim // 2 + 2,
        "image_token_id": not 0 <= config.image_token_id < text.vocab_size,
    }
