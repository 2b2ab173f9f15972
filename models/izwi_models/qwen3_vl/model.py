"""Qwen3-VL for the engine: images are encoded, then the conversation with their tokens is decoded.

The input of a position is its embedding. In a step with images it is wider: behind the embedding
stands what the first layers add to the state (DeepStack), zeros for text. Steps of text alone have
no such columns.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from pathlib import Path

import numpy as np
import numpy.typing as npt

from izwi.arrays import Int64
from izwi.checkpoints.weight_files import tensor_names
from izwi.errors import InvalidRequest
from izwi.model.protocol import ModelBackend
from izwi.model.sizes import ModelSizes, TensorShapes
from izwi.model.step_batch import Row, Span
from izwi.ops import Array, Ops, Weights
from izwi.ops.ranks import ALONE, RankNumber
from izwi.request.request import EncodeInput
from izwi_models.qwen3.decoder import pack
from izwi_models.qwen3.stop_ids import read_stop_ids
from izwi_models.qwen3.token_model import (
    TokenModel,
    last_tokens,
    logged_tokens,
    token_head,
    token_sizes,
)
from izwi_models.qwen3.tokenizer import QwenTokenizer
from izwi_models.qwen3_vl.config import (
    EMBEDDING,
    HEAD,
    TEXT_PREFIX,
    PixelConfig,
    VLConfig,
    packable,
    read_config,
    read_pixel_config,
    tensor_shapes,
)
from izwi_models.qwen3_vl.encoder import ImageEncoder, ImageSizes, flatten_patch_weight
from izwi_models.qwen3_vl.prompt import IMAGE, VLPrompt, place_images, prompt_of

# Tokens of the largest example image: larger ones run the same kernels.
_EXAMPLE_TOKENS = 1024


class Qwen3VL(TokenModel):
    """One checkpoint on one device. Implements `CapturableModel`, `Encodes` and `SpellsTokens`."""

    def __init__(
        self,
        ops: Ops,
        weights: Weights,
        config: VLConfig,
        pixels: PixelConfig,
        end_ids: tuple[int, ...],
        folder: Path,
    ):
        """Bind encoder and decoder.

        Args:
            ops: The backend's operations.
            weights: Tensors by checkpoint name.
            config: Sizes.
            pixels: How pixels are normalized.
            end_ids: Ids that end an answer.
            folder: Has the tokenizer, which only grammars need.
        """
        head = token_head(ops, weights, config.text, EMBEDDING, HEAD)
        super().__init__(ops, weights, config.text, TEXT_PREFIX, head)
        self.end_ids, self._folder, self._config = end_ids, folder, config
        self._sizing = pixels.sizing
        self._images = ImageEncoder(ops, weights, config.vision, pixels)
        self.whole_encoders = (ImageSizes(config.vision, pixels),)

    def encode(self, inputs: Seq[EncodeInput]) -> list[Array]:
        """Encode images one by one: (tokens, (1 + DeepStack layers) * hidden) each, in order."""
        return [self._images.encode(image.values) for image in inputs]

    def example_prompts(self) -> list[VLPrompt]:
        """Return prompts of one image each, from the smallest to one of 1,024 tokens."""
        sizing = self._sizing
        largest = min(sizing.max_pixels // sizing.factor**2, self.max_positions)
        count = -(-sizing.min_pixels // sizing.factor**2)
        counts = []
        while count <= min(_EXAMPLE_TOKENS, largest):
            counts.append(count)
            count *= 2
        return [self._example(count) for count in counts]

    def _example(self, tokens: int) -> VLPrompt:
        vision = self._config.vision
        merge = vision.spatial_merge_size
        patches = np.zeros((merge, merge * tokens, vision.patch_values), np.uint8)
        image = EncodeInput(IMAGE, patches)
        return place_images(self._config, [self._config.image_token_id], (image,), (False, 0))

    def inputs(self, rows: Seq[Row]) -> npt.NDArray[np.int64] | None:
        """Return (positions, 1) token ids; None if some of the positions are of an image."""
        usual = last_tokens(rows)
        if usual is not None:
            return usual
        return None if any(map(_has_image, rows)) else _token_ids(rows)[:, None]

    def content_keys(self, span: Span) -> list[int]:
        """Return content keys of positions: token ids, or digests of images."""
        keys: list[int] = prompt_of(span).content_keys[span.start : span.stop].tolist()
        return keys + logged_tokens(span)

    def embed(self, rows: Seq[Row]) -> Array:
        """Return the rows' inputs, concatenated: tokens, and encoded images."""
        ops, ids = self._ops, _token_ids(rows)
        places = np.arange(len(ids))  # row of each input: in the tokens, then in the images
        images: list[Array] = []
        offset, behind = 0, len(ids)
        for row in rows:
            for n, first, end in prompt_of(row).images_within(row.start, row.stop):
                low, high = max(row.start, first), min(row.stop, end)
                images.append(row.encoded[n][low - first : high - first])
                at = offset + low - row.start
                places[at : at + high - low] = np.arange(behind, behind + high - low)
                behind += high - low
            offset += row.stop - row.start
        if not images:
            return self.embed_inputs(ops.array(ids[:, None]))
        both = ops.array(np.stack([ids, places]))
        tokens = ops.take(self._weights[EMBEDDING], both[0])
        tokens = ops.pad(tokens, 0, images[0].shape[1] - tokens.shape[1])
        return ops.take(ops.concat([tokens, *images], 0), both[1])

    def spell_vocabulary(self) -> tuple[list[bytes], list[int]]:
        """Return the bytes of each id, and the ids of added tokens, which grammars name by id."""
        return QwenTokenizer(self._folder).spell_vocabulary(self.tracks[0].vocabulary)


def load_model(folder: Path, backend: ModelBackend) -> Qwen3VL:
    """Read a checkpoint in the published layout.

    Raises:
        CheckpointError: A file, key or tensor is missing or wrong; it is named.
    """
    config = read_config(folder)
    pixels = read_pixel_config(folder, config)
    shapes = _shapes(folder, config)
    weights = dict(backend.load_weights(folder, shapes, packable(shapes)))
    if config.text.tie_word_embeddings:
        weights.pop(HEAD, None)
    flatten_patch_weight(weights)
    weights = pack(backend.ops, weights, config.text, TEXT_PREFIX)
    end_ids = read_stop_ids(folder, config.text.vocab_size)
    return Qwen3VL(backend.ops, weights, config, pixels, end_ids, folder)


def read_sizes(folder: Path, ranks: RankNumber = ALONE) -> ModelSizes:
    """Read the sizes of a checkpoint, without its weights; raises CheckpointError."""
    if ranks != ALONE:
        raise InvalidRequest("Qwen3-VL cannot be shared by several ranks", param="tensor_parallel")
    config = read_config(folder)
    shapes = _shapes(folder, config)
    sizes = ImageSizes(config.vision, read_pixel_config(folder, config))
    return token_sizes(config.text, shapes, packable=packable(shapes), whole_encoders=(sizes,))


def _shapes(folder: Path, config: VLConfig) -> TensorShapes:
    # a tied checkpoint may repeat the embedding as the head, which is then checked and dropped
    with_head = not config.text.tie_word_embeddings or HEAD in tensor_names(folder)
    return tensor_shapes(config, with_head=with_head)


def _has_image(row: Row) -> bool:
    return next(prompt_of(row).images_within(row.start, row.stop), None) is not None


def _token_ids(rows: Seq[Row]) -> Int64:
    """Return token ids of the rows' positions, concatenated: prompts, then emitted tokens."""
    parts: list[Int64] = []
    for row in rows:
        known = prompt_of(row).token_ids
        parts.append(known[row.start : row.stop])
        parts.append(np.array(logged_tokens(row), np.int64))
    return np.concatenate(parts)
