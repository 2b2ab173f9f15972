"""The protocols that a model family implements, for the engine and for API servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from izwi.arrays import Samples
from izwi.capability import Capability
from izwi.chat import AnswerReader, ChatInput
from izwi.conversation import ConversationInput
from izwi.inputs import SpeechInput, Transcript, TranscriptionInput, VoicePrompt
from izwi.layers import CacheSpec
from izwi.ops.protocol import Array, AttentionContext, Ops, Weights
from izwi.request import Request
from izwi.sequence import Sequence
from izwi.track_log import Entry, Progress
from izwi.tracks import Track

# In `Model.inputs`, ids of an entry that the host does not know yet.
UNKNOWN = -1
# Draw one id a row: logits (rows, vocabulary) of a codebook -> ids (rows,) int64.
Pick = Callable[[Array, int], Array]


class Row(NamedTuple):
    """One sequence's share of a batch: positions [start, stop) of prompt and log."""

    sequence: Sequence
    start: int
    stop: int

    @property
    def emits(self) -> bool:
        """Whether its output gives entries: it has output positions, or the last position."""
        sequence = self.sequence
        if sequence.output_positions:
            return sequence.next_drawn < self.stop
        # as `Sequence.num_entries`, written out: this runs for every row of every step
        return self.stop == sequence.num_prompt + len(sequence.emitted) + sequence.pending.entries

    @property
    def num_drawn(self) -> int:
        """Entries that are drawn from it; more than one at output positions alone."""
        sequence = self.sequence
        if sequence.output_positions:
            return len(sequence.drawn_before(self.stop))
        return self.stop == sequence.num_prompt + len(sequence.emitted) + sequence.pending.entries

    @property
    def decodes(self) -> bool:
        """Whether it runs the last entry alone."""
        return self.start + 1 == self.stop > self.sequence.num_prompt and self.emits


class Model(Protocol):
    """One loaded checkpoint, as the engine sees it. Every method runs all its rows at once.

    What only some models have is in protocols of its own: `Alternates` (several tracks),
    `Encodes` (audio in the prompt), `Recordable` (steps that a GPU repeats), `TakesText` (text
    that is still being written).
    """

    @property
    def tracks(self) -> tuple[Track, ...]:
        """Kinds of entries. A model with more than one implements `Alternates`."""
        ...

    @property
    def layers(self) -> tuple[CacheSpec, ...]:
        """What each layer keeps of a sequence."""
        ...

    @property
    def max_positions(self) -> int:
        """Positions that the checkpoint was made for."""
        ...

    def content_keys(self, sequence: Sequence, start: int, stop: int) -> list[int]:
        """Name positions [start, stop) of prompt and log, one int of at most 63 bits each.

        Two sequences of this model whose first n keys are equal have the same keys and values
        there, so pages can be shared.
        """
        ...

    def embed(self, rows: Seq[Row]) -> Array:
        """Inputs of the rows' positions, packed end to end: (positions, width).

        With several tracks an entry's track is `sequence.tracks.of[i]`, its ids `emitted[i]`.
        """
        ...

    def run(self, x: Array, context: AttentionContext) -> Array:
        """Run packed positions: inputs (positions, width) -> states (positions, width)."""
        ...

    def draw(self, hidden: Array, pick: Pick, track: int = 0) -> Array:
        """Draw an entry of a track from each state: (rows, width) -> (rows, codebooks) int64."""
        ...


@runtime_checkable
class Alternates(Protocol):
    """A model of several tracks. Both are pure functions: the same values give the same."""

    def begin(self, request: Request) -> Progress:
        """What the first entry of a request's log is."""
        ...

    def following(
        self, request: Request, progress: Progress, drawn: Entry | None
    ) -> Progress | None:
        """What follows an entry.

        Args:
            request: Whose log.
            progress: As it was before the entry, so the entry is of `progress.track`.
            drawn: Its ids. None: they are not known yet; tell what follows most of the time, from
                counts alone. If it turns out otherwise, what was computed on it is drawn again.

        Returns:
            What the next entry is; None: there is none. A stop id of the request's ends the log
            before this is asked.
        """
        ...


@runtime_checkable
class Recordable(Protocol):
    """A model whose steps a GPU can record once and repeat."""

    @property
    def num_inputs(self) -> int:
        """Numbers a position in `inputs`."""
        ...

    def inputs(self, rows: Seq[Row]) -> npt.NDArray[np.int64] | None:
        """The rows' positions as ids, (positions, num_inputs).

        At positions of the log the entry comes first. One that a step in flight still draws is
        all `UNKNOWN`, which is replaced on the device.

        None where one of them is made of something else: encoded sound, a speaker's vector.
        """
        ...

    def embed_inputs(self, inputs: Array) -> Array:
        """`embed` of positions that are ids.

        Args:
            inputs: `inputs`, on the device.

        Returns:
            (positions, width).

        This, `run` and `draw` work on arrays on the device alone and depend on no value, so that a
        GPU can record them once and repeat them.
        """
        ...


class RecordableModel(Model, Recordable, Protocol):
    """A model whose steps a GPU can record."""


@runtime_checkable
class RecordableTracks(Recordable, Protocol):
    """A recordable model of several tracks, whose inputs are entries and nothing else."""

    @property
    def entry_columns(self) -> tuple[int, ...]:
        """Of each track, the column of `inputs` at which its entries begin.

        What is beside an entry in its row is -1. A row's entry may be of any track.
        """
        ...


@runtime_checkable
class TakesText(Protocol):
    """A model whose entries need text that may still be written."""

    def positions_ready(self, sequence: Sequence) -> int:
        """Positions of prompt and log whose inputs are known, where text is still written."""
        ...

    def max_entries(self, sequence: Sequence) -> int:
        """Entries after which a sequence ends, where that depends on text written later."""
        ...


def last_positions(rows: Seq[Row]) -> npt.NDArray[np.int64]:
    """Places, among the rows' positions end to end, that entries are drawn from."""
    places: list[int] = []
    before = 0
    for sequence, start, stop in rows:
        if sequence.output_positions:
            places += [before + at - start for at in sequence.drawn_before(stop)]
        elif stop == sequence.num_prompt + sequence.num_entries:
            places.append(before + stop - start - 1)
        before += stop - start
    return np.array(places, np.int64)


def step(model: Model, ops: Ops, rows: Seq[Row], context: AttentionContext, pick: Pick) -> Array:
    """Run the rows as one pass and draw the entries of those that emit.

    Returns:
        (entries, codebooks) int64, in row order.
    """
    hidden, last = model.run(model.embed(rows), context), last_positions(rows)
    if len(last) < hidden.shape[0]:
        hidden = ops.take(hidden, ops.array(last))
    return model.draw(hidden, pick)


class Capable(Model, Protocol):
    """A model, and what API servers can ask it for."""

    @property
    def capabilities(self) -> tuple[Capability, ...]:
        """What it can do, its main purpose first."""
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
        """Cut text into the pieces that the checkpoint was trained to say; most take it whole.

        Raises:
            InvalidRequest: Nothing in it can be said.
        """
        ...

    def prepare_speech(self, request_id: str, model: str, ask: SpeechInput) -> Request:
        """Validate and tokenise. Raises InvalidRequest and its kind."""
        ...


@runtime_checkable
class ClonesVoices(Protocol):
    """A speech model that encodes clips to voices; what `SpeechModel.can_clone` says."""

    def prepare_voice(
        self, request_id: str, model: str, samples: npt.NDArray[np.float32], text: str | None
    ) -> Request:
        """An encode-only request whose answer `read_voice` turns into a VoicePrompt."""
        ...

    def read_voice(self, encoded: Seq[npt.NDArray[Any]], text: str | None) -> VoicePrompt: ...


class TranscriptionModel(Capable, Protocol):
    """A model whose entries are text tokens about audio."""

    @property
    def languages(self) -> tuple[str, ...]: ...

    @property
    def language_codes(self) -> Mapping[str, str]:
        """ISO 639 codes by the names that `read` gives."""
        ...

    def split_audio(self, samples: Samples) -> list[tuple[int, int]]:
        """Cut 16 kHz samples into pieces [start, stop) that the model takes in one go.

        It reads them near the cuts alone, so an hour takes no more memory than a minute.
        """
        ...

    def prepare_transcription(
        self, request_id: str, model: str, ask: TranscriptionInput
    ) -> Request:
        """Validate, compute features and tokenise one piece. Raises InvalidRequest and its kind."""
        ...

    def read(self, token_ids: Seq[int], language: str | None) -> Transcript:
        """Parse what was emitted; `language` is the forced one, if any."""
        ...

    def spell(self, token_ids: Seq[int], language: str | None) -> list[bytes]:
        """Bytes that each token adds to the text of `read`; none where it says something else.

        Joined they are that text in UTF-8, with white space behind it, and with every turn of what
        a stuck decoder repeats, which `read` may cut short.
        """
        ...


@runtime_checkable
class SpellsTokens(Protocol):
    """A model of text tokens, whose answers can follow a grammar."""

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
        """Put a conversation into the template and tokenise. Raises InvalidRequest and its kind."""
        ...

    def open_answer(self, request: Request) -> AnswerReader:
        """Begin to read what is emitted for a request of `prepare_chat`, as it comes."""
        ...


class ConversationModel(Capable, Protocol):
    """A model that hears and speaks: its answers have text and sound."""

    @property
    def sample_rate(self) -> int:
        """Of the sound, Hz."""
        ...

    @property
    def frame_samples(self) -> int:
        """Samples of sound in a frame."""
        ...

    def prepare_conversation(self, request_id: str, model: str, ask: ConversationInput) -> Request:
        """Lay out the next answer of a conversation. Raises InvalidRequest and its kind."""
        ...

    def open_answer(self, request: Request) -> AnswerReader:
        """Begin to read the text of an answer, as it comes."""
        ...


class Backend(Protocol):
    """A device with its operations and a way to put weights on it."""

    @property
    def ops(self) -> Ops: ...

    def load_weights(self, folder: Path, shapes: Mapping[str, tuple[int, ...]]) -> Weights:
        """Read the safetensors of a folder, or of one file.

        Raises:
            CheckpointError: A tensor is missing, not expected, or of another shape; it is named.
        """
        ...


@dataclass(frozen=True, slots=True)
class Family:
    """How to recognise and load one kind of checkpoint.

    Attributes:
        model_type: The `model_type` of its config.json; where that has none, the first of its
            `architectures`.
        fits: Tells its config.json from others of that `model_type`; None: it is any other.
        load: Reads a checkpoint folder in the published layout.
        prompts: Tagged structs that the prompts of its requests are, so that they may cross to
            another process.
    """

    model_type: str
    load: Callable[[Path, Backend], Capable]
    fits: Callable[[Mapping[str, Any]], bool] | None = None
    prompts: tuple[type[Struct], ...] = ()
