"""The protocols of a family's models, which engines run; API servers use `izwi.model.frontend`."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from izwi.model.layers import CacheSpec
from izwi.model.step_batch import Row, Span
from izwi.model.tracks import Track
from izwi.ops.protocol import Array, AttentionContext, Ops, Weights
from izwi.ops.ranks import Part
from izwi.request.request import Request
from izwi.request.track_log import Entry, TrackProgress

# In `Model.inputs`: an id that the host does not know yet.
UNKNOWN = -1
# Draws one id per row: logits (rows, vocabulary) of a codebook -> ids (rows,) int64.
Pick = Callable[[Array, int], Array]


class Model(Protocol):
    """One loaded checkpoint, as the engine uses it. Each method runs all its rows at once.

    Features of some models are separate protocols: `ChoosesTracks` (several tracks), `Encodes`
    (audio in the prompt), `Capturable` (steps that a GPU captures), `TakesStreamedText` (text that
    is still being written).
    """

    @property
    def tracks(self) -> tuple[Track, ...]:
        """Kinds of entries. A model with more than one implements `ChoosesTracks`."""
        ...

    @property
    def layers(self) -> tuple[CacheSpec, ...]:
        """The state that each layer keeps for a sequence."""
        ...

    @property
    def max_positions(self) -> int:
        """Maximum number of positions of the checkpoint."""
        ...

    def content_keys(self, span: Span) -> list[int]:
        """Return keys of the span's positions, ints of at most 63 bits.

        Two sequences of this model whose first n keys are equal have the same keys and values
        there, so pages can be shared.
        """
        ...

    def embed(self, rows: Seq[Row]) -> Array:
        """Inputs of the rows' positions, packed end to end: (positions, width).

        With several tracks an entry's track is `row.tracks[i]`, its ids `row.entries[i]`.
        """
        ...

    def run(self, x: Array, context: AttentionContext) -> Array:
        """Run packed positions: inputs (positions, width) -> states (positions, width)."""
        ...

    def draw(self, hidden: Array, pick: Pick, track: int = 0) -> Array:
        """Draw an entry of a track from each state: (rows, width) -> (rows, codebooks) int64."""
        ...


@runtime_checkable
class ChoosesTracks(Protocol):
    """A model with several tracks. Both methods are pure functions."""

    def initial_progress(self, request: Request) -> TrackProgress:
        """Return the state before the first entry of a request's log."""
        ...

    def following(
        self, request: Request, progress: TrackProgress, drawn: Entry | None
    ) -> TrackProgress | None:
        """Return the state after an entry.

        Args:
            request: The request.
            progress: The state before the entry, which is on `progress.track`.
            drawn: Its ids. None if they are not known yet: return the most frequent case, from
                counts alone. If it turns out to be wrong, work that was launched on it is drawn
                again.

        Returns:
            The state for the next entry, or None if there is none. A stop id of the request ends
            the log before this is called.
        """
        ...


@runtime_checkable
class Capturable(Protocol):
    """A model whose steps a GPU can capture once and launch again."""

    @property
    def num_inputs(self) -> int:
        """Number of ids for each position in `inputs`."""
        ...

    def inputs(self, rows: Seq[Row]) -> npt.NDArray[np.int64] | None:
        """Return the rows' positions as ids, (positions, num_inputs).

        At positions of the log the entry comes first. An entry that a step in flight still draws is
        all `UNKNOWN`; the device replaces it.

        None if one of them is not made of ids: encoded audio, a speaker's vector.
        """
        ...

    def embed_inputs(self, inputs: Array) -> Array:
        """Do the same as `embed`, for positions that are ids.

        Args:
            inputs: The result of `inputs`, on the device.

        Returns:
            (positions, width).

        This method, `run` and `draw` use only arrays on the device and depend on no value, so that
        a GPU can capture them once and launch them again.
        """
        ...


class CapturableModel(Model, Capturable, Protocol):
    """A model whose steps a GPU can capture."""


@runtime_checkable
class CapturableTracks(Capturable, Protocol):
    """A capturable model with several tracks, whose inputs are entries only."""

    @property
    def entry_columns(self) -> tuple[int, ...]:
        """For each track, the column of `inputs` at which its entries begin.

        The other columns of a row are -1. A row's entry may be on any track.
        """
        ...


@runtime_checkable
class TakesStreamedText(Protocol):
    """A model whose entries need text that may still be written."""

    def positions_ready(self, span: Span) -> int:
        """Return how many positions of prompt and log have known inputs.

        Args:
            span: All of them.
        """
        ...

    def max_entries(self, span: Span) -> int:
        """Return the number of entries at which a request ends, which may depend on later text.

        Args:
            span: All positions of its prompt and log.
        """
        ...


@runtime_checkable
class RepeatsPrompts(Protocol):
    """A model with one track, whose entries are ids of which its prompts are made, too.

    Its answers may repeat what they were asked about, so their entries can be guessed.
    """

    def prompt_ids(self, request: Request) -> Seq[int]:
        """Return ids of the prompt's positions; negative where a position is no id."""
        ...


@runtime_checkable
class SpellsTokens(Protocol):
    """A model with text tokens, whose answers can follow a grammar."""

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Ids that end an answer; at least one."""
        ...

    def spell_vocabulary(self) -> tuple[list[bytes], list[int]]:
        """Return the bytes of each id, and the ids of tokens that are no text."""
        ...


class ModelBackend(Protocol):
    """A device with its operations and a way to put weights on it."""

    @property
    def ops(self) -> Ops: ...

    def load_weights(
        self,
        folder: Path,
        shapes: Mapping[str, tuple[int, ...]],
        packable: Container[str] = (),
        parts: Mapping[str, Part] | None = None,
    ) -> Weights:
        """Read the weights of a folder, or of one file.

        Args:
            folder: The folder, or one file.
            shapes: Shape of every tensor.
            packable: Matrices that the model only hands to `Ops.concat` (along the outputs),
                `Ops.fold_norm`, `Ops.quantize` and then products, or to `Ops.take`. If the
                checkpoint packs them, they may stay packed; others are widened.
            parts: Parts of tensors that are read instead of the whole ones, which `shapes` says.

        Raises:
            CheckpointError: A tensor is missing, unexpected, or of another shape; the message names
                it.
        """
        ...
