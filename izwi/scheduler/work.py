"""The work of one step, as sequences and rows: what a plan comes to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from msgspec import Struct

from izwi.request.request import Entries
from izwi.request.sequence import Sequence


class PlannedRow(NamedTuple):
    """One sequence's share of a step: positions [start, stop) of prompt and log.

    Attributes:
        sequence: The sequence.
        start: First position.
        stop: One past the last.
        draft: Guesses of the entries at the last positions, which its log does not have yet.
    """

    sequence: Sequence
    start: int
    stop: int
    draft: Entries = ()

    @property
    def emits(self) -> bool:
        """Whether its output gives entries; see `izwi.model.step_batch.Row.drawn`."""
        sequence = self.sequence
        if sequence.output_positions:
            return sequence.next_drawn < self.stop
        return self.stop == sequence.num_prompt + sequence.num_entries + len(self.draft)


class Work(Struct, frozen=True):
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
