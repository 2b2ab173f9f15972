"""The image encoder of Qwen3-VL: patches to tokens of the decoder's width.

Attention is bidirectional over all patches of an image, and never crosses images, so images are
encoded one by one. Some layers give tokens of their own (DeepStack), which the decoder adds after
its first layers. Source: transformers 5.23, models/qwen3_vl, `Qwen3VLVisionModel`.
"""

from __future__ import annotations

import math

from izwi.ops import Array, AttentionContext, AttentionSpec, Ops, Weights
from izwi_models.qwen3_vl.config import VISION_PREFIX, PixelConfig, VisionConfig
from izwi_models.qwen3_vl.pixels import UInt8, axial_angles, learned_positions, normalized

_NORM_EPS = 1e-6
# Numbers that a pass keeps at once for each patch: arrays of the width, and of the MLP's width.
_PEAK_ARRAYS, _PEAK_INNER_ARRAYS = 14, 2


class ImageSizes:
    """The largest image, for the memory plan. Implements `izwi.model.encoders.EncoderSizes`."""

    def __init__(self, config: VisionConfig, pixels: PixelConfig):
        self._config = config
        factor, most = pixels.sizing.factor, pixels.sizing.max_pixels
        side = max(1, math.isqrt(most // factor**2)) * config.spatial_merge_size
        self._shape = (side, side, config.patch_values)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shape of the largest image's patches: (rows, columns, values)."""
        return (self._shape,)

    def max_pieces(self, shape: tuple[int, ...]) -> int:  # noqa: ARG002
        """Return 1: images are encoded one by one."""
        return 1

    def peak_values(self, shape: tuple[int, ...], pieces: int) -> int:  # noqa: ARG002
        """Return the most numbers that encoding an image keeps at once."""
        config = self._config
        width = _PEAK_ARRAYS * config.hidden_size + _PEAK_INNER_ARRAYS * config.intermediate_size
        tokens = config.output_width // config.spatial_merge_size**2
        return shape[0] * shape[1] * (width + tokens)


class ImageEncoder:
    """The encoder on one device."""

    def __init__(self, ops: Ops, weights: Weights, config: VisionConfig, pixels: PixelConfig):
        """Bind the encoder.

        Args:
            ops: The backend's operations.
            weights: Tensors by checkpoint name, after `flatten_patch_weight`.
            config: Sizes.
            pixels: How pixels are normalized.
        """
        self._ops, self._weights, self._config, self._pixels = ops, weights, config, pixels
        heads = config.num_heads
        self._spec = AttentionSpec(heads, heads, config.head_dim, rope_theta=None)

    def encode(self, patches: UInt8) -> Array:
        """Encode one image.

        Args:
            patches: (rows, columns, 3 * patch_size ** 2), from `patches_of`.

        Returns:
            (tokens, (1 + DeepStack layers) * width): each token's embedding, and what is added to
            its state after each of the decoder's first layers.
        """
        ops, config = self._ops, self._config
        rows, columns, _ = patches.shape
        x = self._embedded(patches, rows, columns)  # (patches, hidden)
        context = ops.dense_context(1, x.shape[0], causal=False)
        angles = ops.array(axial_angles(config, rows, columns), wide=True)[:, None]
        turn = ops.sin(angles + math.pi / 2), ops.sin(angles)
        outputs: list[Array] = []
        for n in range(config.depth):
            x = self._layer(f"blocks.{n}.", x, turn, context)
            if n in config.deepstack_visual_indexes:
                which = config.deepstack_visual_indexes.index(n)
                outputs.append(self._merge(f"deepstack_merger_list.{which}", x, after=True))
        return ops.concat([self._merge("merger", x, after=False), *outputs], 1)

    def _embedded(self, patches: UInt8, rows: int, columns: int) -> Array:
        ops, config = self._ops, self._config
        x = ops.array(normalized(self._pixels, patches.reshape(rows * columns, -1)))
        # an image is a film of equal pictures: each channel's patch is repeated
        x = x.reshape(rows * columns, config.in_channels, 1, config.patch_size**2)
        x = ops.concat([x] * config.temporal_patch_size, 2).reshape(rows * columns, -1)
        x = self._affine("patch_embed.proj", x)
        index, weight = learned_positions(config, rows, columns)
        table, at = self._weights[VISION_PREFIX + "pos_embed.weight"], ops.array(index)
        share = ops.array(weight, wide=True)
        learned = sum(ops.cast(ops.take(table, at[:, n])) * share[:, n : n + 1] for n in range(4))
        return x + ops.cast(learned, x)

    def _layer(
        self, prefix: str, x: Array, turn: tuple[Array, Array], context: AttentionContext
    ) -> Array:
        ops, width = self._ops, self._config.hidden_size
        qkv = self._affine(f"{prefix}attn.qkv", self._normed(f"{prefix}norm1", x))
        q, k = (self._rotated(qkv[:, n * width : (n + 1) * width], turn) for n in range(2))
        attended = ops.attention(
            q[None], k[None], qkv[None, :, 2 * width :], spec=self._spec, context=context, layer=0
        )[0]
        x = x + self._affine(f"{prefix}attn.proj", attended)
        inner = self._affine(f"{prefix}mlp.linear_fc1", self._normed(f"{prefix}norm2", x))
        return x + self._affine(f"{prefix}mlp.linear_fc2", ops.gelu_tanh(inner))

    def _rotated(self, x: Array, turn: tuple[Array, Array]) -> Array:
        """Rotate (patches, hidden) in float32: the first half of a head pairs with the second."""
        ops, (cos, sin) = self._ops, turn
        half = self._config.head_dim // 2
        heads = ops.cast(x).reshape(x.shape[0], -1, 2 * half)
        first, second = heads[..., :half], heads[..., half:]
        turned = ops.concat([first * cos - second * sin, second * cos + first * sin], -1)
        return ops.cast(turned, x).reshape(x.shape)

    def _merge(self, name: str, x: Array, *, after: bool) -> Array:
        """Merge the patches of each token; the norm is before or after they are joined."""
        ops, merged = self._ops, self._config.merged_width
        if after:
            x = self._normed(f"{name}.norm", x.reshape(-1, merged))
        else:
            x = self._normed(f"{name}.norm", x).reshape(-1, merged)
        return self._affine(f"{name}.linear_fc2", ops.gelu(self._affine(f"{name}.linear_fc1", x)))

    def _affine(self, name: str, x: Array) -> Array:
        name = VISION_PREFIX + name
        weights = self._weights
        return self._ops.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def _normed(self, name: str, x: Array) -> Array:
        name, weights = VISION_PREFIX + name, self._weights
        return self._ops.layer_norm(
            x, weights[f"{name}.weight"], weights[f"{name}.bias"], _NORM_EPS
        )


def flatten_patch_weight(weights: dict[str, Array]) -> None:
    """Make the convolution over patches, which do not overlap, a product; changes `weights`."""
    name = VISION_PREFIX + "patch_embed.proj.weight"
    weights[name] = weights[name].reshape(weights[name].shape[0], -1)
