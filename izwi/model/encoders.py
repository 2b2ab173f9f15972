"""Protocols of models with audio or images in their prompts: encoders."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from typing import Protocol, runtime_checkable

from izwi.ops.protocol import Array
from izwi.request.request import EncodeInput, Prompt


@runtime_checkable
class Encodes(Protocol):
    """A model whose prompts contain audio or images."""

    def encode(self, inputs: Seq[EncodeInput]) -> list[Array]:
        """Run the encoders; equal shapes may be one batch."""
        ...


class EncoderSizes(Protocol):
    """The batches that an encoder takes, and what they need: known without its weights."""

    @property
    def shapes(self) -> Seq[tuple[int, ...]]:
        """Shapes of values, ascending, that differ along the axis."""
        ...

    def max_pieces(self, shape: tuple[int, ...]) -> int:
        """Pieces of one batch of a shape, at most: more would take memory and save little time."""
        ...

    def peak_values(self, shape: tuple[int, ...], pieces: int) -> int:
        """Return the most numbers that encoding a batch keeps at once, to plan the memory."""
        ...


class PaddedEncoder(EncoderSizes, Protocol):
    """An audio encoder that takes pieces of any length padded to one of a few shapes."""

    @property
    def axis(self) -> int:
        """Axis of values along which pieces differ in length and are padded."""
        ...

    def encode_padded(self, values: Array, lengths: Array) -> Array:
        """Encode pieces of one of the shapes.

        Args:
            values: (batch, *shape) in the dtype of the weights, finite numbers behind each piece.
            lengths: (batch,) int64, of each piece along the axis before it was padded.

        Returns:
            (batch, ...), a row a piece; see `unpadded`.

        From arrays on the device alone, as `Capturable.embed_inputs`.
        """
        ...

    def unpadded(self, row: Array, length: int) -> Array:
        """Return the result of `Encodes.encode` for a piece of this length, from its padded row."""
        ...


@runtime_checkable
class EncodesPadded(Protocol):
    """A model with audio encoders that take padded pieces, so that a GPU can capture them."""

    @property
    def padded_encoders(self) -> Mapping[str, PaddedEncoder]:
        """By the `EncodeInput.kind` of the pieces that each takes."""
        ...


@runtime_checkable
class EncodesWhole(Protocol):
    """A model with encoders that take each piece as it is, like an image of any size."""

    @property
    def whole_encoders(self) -> Seq[EncoderSizes]:
        """What they need at most, to plan the memory: these encoders have no graphs."""
        ...

    def example_prompts(self) -> Seq[Prompt]:
        """Return prompts of several lengths, ascending, each of one piece from its first position.

        They are run once before the first request, so that their kernels are compiled then.
        """
        ...
