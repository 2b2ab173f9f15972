"""The work of one step as sequences and rows, and counters over all steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from izwi.cache.radix import page_chain
from izwi.request.sequence import Sequence


class PlannedRow(NamedTuple):
    """One sequence's share of a step: positions [start, stop) of prompt and log."""

    sequence: Sequence
    start: int
    stop: int

    @property
    def emits(self) -> bool:
        """Whether its output gives entries; see `izwi.model.step_batch.Row.drawn`."""
        sequence = self.sequence
        if sequence.output_positions:
            return sequence.next_drawn < self.stop
        return self.stop == sequence.num_prompt + sequence.num_entries


class ModelProperties(Protocol):
    """Properties of a model that the queues need."""

    @property
    def frame_s(self) -> float | None:
        """Seconds of audio in one frame, None for a model that writes text."""
        ...

    @property
    def codec_overlaps(self) -> bool:
        """Whether audio is decoded while the next step runs."""
        ...

    def content_keys(self, sequence: Sequence, start: int, stop: int) -> list[int]:
        """Content keys of positions [start, stop) of prompt and log."""
        ...

    def positions_ready(self, sequence: Sequence) -> int:
        """Return how many positions have known inputs, for a sequence with open input."""
        ...


class ContentKeys:
    """Content keys of positions, computed once."""

    def __init__(self, facts: ModelProperties, page_size: int):
        self._facts, self._page_size = facts, page_size

    def keys(self, sequence: Sequence, count: int) -> list[int]:
        """Return content keys of the first positions; computes those that are missing."""
        keys = sequence.kv.keys
        if len(keys) < count:
            keys += self._facts.content_keys(sequence, len(keys), count)
        return keys[:count] if len(keys) > count else keys

    def page_chain(self, sequence: Sequence) -> tuple[int, ...]:
        """Return a running digest of each whole page of the prompt's keys."""
        if sequence.kv.page_chain is None:
            keys = self.keys(sequence, sequence.request.prompt.num_positions)
            sequence.kv.page_chain = tuple(page_chain(keys, self._page_size))
        return sequence.kv.page_chain


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one step of one model.

    Attributes:
        encode: Pieces of audio: a sequence and the piece's index.
        rebuild: Streams whose codec state is rebuilt from their log first.
        forward: Rows of the one forward pass, after the encoders.
        vocode: Streams with the number of frames of their next chunk of audio, decoded after the
            forward pass if the frames exist or no frame follows.
    """

    encode: tuple[tuple[Sequence, int], ...] = ()
    rebuild: tuple[Sequence, ...] = ()
    forward: tuple[PlannedRow, ...] = ()
    vocode: tuple[tuple[Sequence, int], ...] = ()

    def sequences(self) -> Iterable[Sequence]:
        """Return the sequences of the step, each once."""
        encoded = [sequence for sequence, _ in self.encode]
        run = [row.sequence for row in self.forward]
        vocoded = [sequence for sequence, _ in self.vocode]
        return dict.fromkeys([*self.rebuild, *encoded, *run, *vocoded])


@dataclass(slots=True)
class SchedulerCounts:
    """Counters since the start, for metrics; keys of `izwi.metrics.FIGURES`."""

    steps: int = 0
    rows: int = 0
    positions: int = 0
    preempted: int = 0
    paused: int = 0
    resumed: int = 0
    refused: int = 0


def worth_keeping(sequence: Sequence, speaks: bool) -> bool:
    """Whether positions of a log may be requested again.

    Those of a sequence that resumes are. After the end, only entries that became text may be
    part of another prompt; frames of speech never are.
    """
    frames_alone = speaks and sequence.tracks.of is None
    return not sequence.status.ended or (sequence.request.cacheable and not frames_alone)
