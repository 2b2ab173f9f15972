"""The protocols that a model family implements, for the engine and for API servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from izwi.arrays import Samples
from izwi.inputs.chat import AnswerReader, ChatInput
from izwi.inputs.conversation import ConversationInput
from izwi.inputs.speech import SpeechInput, Transcript, TranscriptionInput, VoicePrompt
from izwi.model.capability import Capability
from izwi.model.layers import CacheSpec
from izwi.model.step_batch import Row, Span, StepBatch, places_drawn
from izwi.model.tracks import Track
from izwi.ops.protocol import Array, AttentionContext, Ops, Weights
from izwi.request.request import Request
from izwi.request.track_log import Entry, Progress

# In `Model.inputs`: an id that the host does not know yet.
UNKNOWN = -1
# Draws one id per row: logits (rows, vocabulary) of a codebook -> ids (rows,) int64.
Pick = Callable[[Array, int], Array]


class Model(Protocol):
    """One loaded checkpoint, as the engine uses it. Each method runs all its rows at once.

    Features of some models are separate protocols: `ChoosesTracks` (several tracks), `Encodes`
    (audio in the prompt), `Recordable` (steps that a GPU replays), `TakesStreamedText` (text that
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

    def begin(self, request: Request) -> Progress:
        """Return the state before the first entry of a request's log."""
        ...

    def following(
        self, request: Request, progress: Progress, drawn: Entry | None
    ) -> Progress | None:
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
class Recordable(Protocol):
    """A model whose steps a GPU can record once and replay."""

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
        a GPU can record them once and replay them.
        """
        ...


class RecordableModel(Model, Recordable, Protocol):
    """A model whose steps a GPU can record."""


@runtime_checkable
class RecordableTracks(Recordable, Protocol):
    """A recordable model with several tracks, whose inputs are entries only."""

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


def step(model: Model, ops: Ops, batch: StepBatch, context: AttentionContext, pick: Pick) -> Array:
    """Run a batch as one pass and draw its entries, which are all on the first track.

    Returns:
        (entries, codebooks) int64, in row order.
    """
    hidden, places = model.run(model.embed(batch.rows), context), places_drawn(batch.rows)
    if len(places) < hidden.shape[0]:
        hidden = ops.take(hidden, ops.array(places))
    return model.draw(hidden, pick)


class Capable(Model, Protocol):
    """A model, as API servers use it."""

    @property
    def capabilities(self) -> tuple[Capability, ...]:
        """Its capabilities, the main one first."""
        ...


class SpeechModel(Capable, Protocol):
    """A model that speaks text."""

    @property
    def sample_rate(self) -> int: ...

    @property
    def speakers(self) -> tuple[str, ...]: ...

    @property
    def languages(self) -> tuple[str, ...]: ...

    @property
    def can_clone(self) -> bool: ...

    @property
    def follows_instructions(self) -> bool: ...

    def split_text(self, text: str) -> list[str]:
        """Split text into the pieces that the checkpoint was trained on; most take it whole.

        Raises:
            InvalidRequest: Nothing in it can be spoken.
        """
        ...

    def prepare_speech(self, request_id: str, model: str, ask: SpeechInput) -> Request:
        """Validate and tokenise. Raises InvalidRequest and its kind."""
        ...


@runtime_checkable
class ClonesVoices(Protocol):
    """A speech model that encodes clips to voices; see `SpeechModel.can_clone`."""

    def prepare_voice(
        self, request_id: str, model: str, samples: npt.NDArray[np.float32], text: str | None
    ) -> Request:
        """Return an encode-only request whose output `read_voice` turns into a VoicePrompt."""
        ...

    def read_voice(self, encoded: Seq[npt.NDArray[Any]], text: str | None) -> VoicePrompt: ...


class TranscriptionModel(Capable, Protocol):
    """A model whose entries are text tokens about audio."""

    @property
    def languages(self) -> tuple[str, ...]: ...

    @property
    def language_codes(self) -> Mapping[str, str]:
        """ISO 639 codes, by the names that `read` returns."""
        ...

    def split_audio(self, samples: Samples) -> list[tuple[int, int]]:
        """Split 16 kHz samples into pieces [start, stop) that the model accepts.

        Only samples near the cuts are read, so an hour takes no more memory than a minute.
        """
        ...

    def prepare_transcription(
        self, request_id: str, model: str, ask: TranscriptionInput
    ) -> Request:
        """Validate, compute features and tokenise one piece. Raises InvalidRequest and its kind."""
        ...

    def read(self, token_ids: Seq[int], language: str | None) -> Transcript:
        """Parse the output; `language` is the forced one, if any."""
        ...

    def spell(self, token_ids: Seq[int], language: str | None) -> list[bytes]:
        """Return the bytes that each token adds to the text of `read`; empty for other tokens.

        Joined, they are that text in UTF-8, with white space after it, and with all repetitions of
        a stuck decoder, which `read` may cut short.
        """
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


class ChatModel(Capable, Protocol):
    """A model whose entries are the text tokens of the next turn of a conversation."""

    def prepare_chat(self, request_id: str, model: str, ask: ChatInput) -> Request:
        """Apply the template to a conversation and tokenise. Raises InvalidRequest and its kind.

        The request's grammar is not compiled: its caller checks it (`izwi.sandbox.grammar_check`).
        """
        ...

    def open_answer(self, request: Request) -> AnswerReader:
        """Return a reader for the output of a request of `prepare_chat`, as it arrives."""
        ...


class ConversationModel(Capable, Protocol):
    """A speech-to-speech model: its answers have text and audio."""

    @property
    def sample_rate(self) -> int:
        """Sample rate of the audio, Hz."""
        ...

    @property
    def frame_samples(self) -> int:
        """Samples of audio in a frame."""
        ...

    def prepare_conversation(self, request_id: str, model: str, ask: ConversationInput) -> Request:
        """Prepare the next answer of a conversation. Raises InvalidRequest and its kind."""
        ...

    def open_answer(self, request: Request) -> AnswerReader:
        """Return a reader for the text of an answer, as it arrives."""
        ...


class Backend(Protocol):
    """A device with its operations and a way to put weights on it."""

    @property
    def ops(self) -> Ops: ...

    def load_weights(self, folder: Path, shapes: Mapping[str, tuple[int, ...]]) -> Weights:
        """Read the safetensors of a folder, or of one file.

        Raises:
            CheckpointError: A tensor is missing, unexpected, or of another shape; the message names
                it.
        """
        ...


@dataclass(frozen=True, slots=True)
class Family:
    """How to recognise and load one kind of checkpoint.

    Attributes:
        model_type: The `model_type` of its config.json, or else the first of its `architectures`.
        fits: Distinguishes its config.json from others with that `model_type`; None accepts any
            other.
        load: Reads a checkpoint folder in the published layout.
        prompts: Tagged structs of the prompts of its requests, so that they can be sent to another
            process.
    """

    model_type: str
    load: Callable[[Path, Backend], Capable]
    fits: Callable[[Mapping[str, Any]], bool] | None = None
    prompts: tuple[type[Struct], ...] = ()
