"""The prompt of Qwen3-VL: a conversation in the template, with a token for each part of an image.

... <|vision_start|><|image_pad|>...<|image_pad|><|vision_end|> ...
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq

import numpy as np
from msgspec import Struct

from izwi.arrays import Int64
from izwi.errors import InvalidRequest
from izwi.model.step_batch import Span
from izwi.request.digests import place_keys
from izwi.request.request import EncodeInput, Request
from izwi.request.rotary import RotaryPositions
from izwi_models.qwen3_vl.config import VLConfig

IMAGE = "image"


class VLPrompt(Struct, frozen=True, eq=False, tag=True):
    """A conversation in the template.

    Attributes:
        token_ids: (positions,) int64; positions of images have the image pad id.
        content_keys: (positions,) int64: the token id, or for an image's position a digest of its
            pixels and the index there.
        in_thought: The prompt ends within the answer's thought.
        most_calls: Maximum number of function calls in the answer; -1 for no limit.
        image_starts: First position of each image.
        image_tokens: Number of positions of each image.
        encode_inputs: Patches of each image, (rows, columns, values) uint8.
        rotary: By what the positions turn; None without images.
    """

    token_ids: Int64
    content_keys: Int64
    in_thought: bool
    most_calls: int = 0
    image_starts: tuple[int, ...] = ()
    image_tokens: tuple[int, ...] = ()
    encode_inputs: tuple[EncodeInput, ...] = ()
    rotary: RotaryPositions | None = None

    @property
    def num_positions(self) -> int:
        """Number of positions of the prompt."""
        return len(self.token_ids)

    @property
    def encode_ends(self) -> tuple[int, ...]:
        """One past the last position of each image; see `izwi.request.request.KnowsEncodeEnds`."""
        return tuple(map(sum, zip(self.image_starts, self.image_tokens, strict=True)))

    def images_within(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield images that have positions in [start, stop): index, first position, and the end."""
        for n, (first, count) in enumerate(zip(self.image_starts, self.image_tokens, strict=True)):
            if first < stop and first + count > start:
                yield n, first, first + count


def prompt_of(span: Span | Request) -> VLPrompt:
    """Return the prompt of a request of this family."""
    request = span.request if isinstance(span, Span) else span
    assert isinstance(request.prompt, VLPrompt)
    return request.prompt


def place_images(
    config: VLConfig, ids: Seq[int], images: tuple[EncodeInput, ...], thought: tuple[bool, int]
) -> VLPrompt:
    """Give each image its positions.

    Args:
        config: Sizes, and the image pad id.
        ids: The conversation; each image is one pad.
        images: The images, in order.
        thought: `in_thought` and `most_calls` of the prompt.

    Raises:
        InvalidRequest: The template has not one pad for each image.
    """
    given = np.array(ids, np.int64)
    pads = np.flatnonzero(given == config.image_token_id)
    if len(pads) != len(images):
        raise InvalidRequest(
            f"the chat template made {len(pads)} places for {len(images)} images: images belong "
            "into messages of the user",
            param="messages",
        )
    if not images:
        return VLPrompt(given, given, *thought)
    merge = config.vision.spatial_merge_size
    grids = [(i.values.shape[0] // merge, i.values.shape[1] // merge) for i in images]
    counts = [rows * columns for rows, columns in grids]
    repeats = np.ones(len(given), np.int64)
    repeats[pads] = counts
    ends = np.cumsum(repeats)
    starts = ends[pads] - counts
    all_ids = np.repeat(given, repeats)
    keys = all_ids.copy()
    for image, start, count in zip(images, starts, counts, strict=True):
        keys[start : start + count] = place_keys(image.digest, count)
    return VLPrompt(
        all_ids,
        keys,
        *thought,
        tuple(starts.tolist()),
        tuple(counts),
        images,
        _rotary(len(all_ids), starts.tolist(), grids),
    )


def _rotary(length: int, starts: Seq[int], grids: Seq[tuple[int, int]]) -> RotaryPositions:
    """Return by what positions turn: text by one each, an image by its rows and columns."""
    axes = np.empty((3, length), np.int64)
    at = turned = 0  # the next position, and the next step of the rotation
    for start, (rows, columns) in zip(starts, grids, strict=True):
        axes[:, at:start] = np.arange(at, start) - at + turned
        turned += start - at
        at = start + rows * columns
        axes[0, start:at] = turned
        axes[1:, start:at] = np.indices((rows, columns)).reshape(2, -1) + turned
        turned += max(rows, columns)
    axes[:, at:] = np.arange(at, length) - at + turned
    return RotaryPositions(axes, turned - at)
