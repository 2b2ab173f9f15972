"""What one step runs, as a value: all that models and backends know of a sequence.

A process that has a batch, the pages and the weights can run the step. `izwi.runner.batch`
builds it from the sequences, and it holds none of them. Logs and block tables only grow, so a row
refers to them and says how much of them is its own.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from izwi.request.request import Request
from izwi.request.track_log import Entry


# A row is made for every sequence of every step, and none refers to itself, so they are not tracked
# by the garbage collector.
class Span(Struct, frozen=True, eq=False, gc=False):
    """Positions [start, stop) of one request's prompt and log, as a model reads them.

    Attributes:
        request: The request.
        num_prompt: Number of positions of its prompt.
        start: First position.
        stop: One past the last.
        entries: The log. It may have grown since: use `entry` and `logged`.
        num_known: Number of these entries that the host knew when the span was made. Others may be
            in flight.
        written: Text ids written after the prompt.
        is_open: More text may be written.
        encoded: Results of the prompt's encode inputs, on the device; empty if no position is in
            the prompt.
    """

    request: Request
    num_prompt: int
    start: int
    stop: int
    entries: list[Entry]
    num_known: int
    written: tuple[int, ...]
    is_open: bool
    encoded: tuple[Any, ...]

    @property
    def first_entry(self) -> int:
        """Index in the log of the first position after the prompt."""
        return max(self.start - self.num_prompt, 0)

    @property
    def stop_entry(self) -> int:
        """One past the index in the log of the last position; 0 if all are in the prompt."""
        return max(self.stop - self.num_prompt, 0)

    def entry(self, index: int) -> Entry | None:
        """Return an entry of the log; None if a step in flight still draws it."""
        return self.entries[index] if index < self.num_known else None

    def logged(self) -> list[Entry]:
        """Return the known entries at the span's positions, in order."""
        return self.entries[self.first_entry : min(self.stop_entry, self.num_known)]


class Row(Span, frozen=True, eq=False, gc=False):
    """One sequence's share of a step.

    Attributes:
        key: Number of its sequence, which no other has had in this engine.
        tracks: Track of each entry of the log; None if all are on track 0.
        pages: Block table. It may have grown since: the first pages, up to `stop`, are used.
        step: Number of entries before the next one, known or in flight.
        drawn: Positions, ascending, whose outputs give an entry each. Most rows draw one, chunks of
            prompts none. A row that draws several is given the entries at its positions, as guesses
            or because entries take no positions.
        track: Track of the entries that it draws.
        adjusts: Whether the request changes the logits of any track by more than the repetition
            penalty.
        allowed: Ids that its grammar allows next; None if no grammar has begun.
        memo: What samplers derived from the log, kept with it.
        adapter: Its adapter on the device, `izwi.model.adapters.ProductUpdates`, or None.
    """

    key: int
    tracks: list[int] | None
    pages: Seq[int]
    step: int
    drawn: tuple[int, ...]
    track: int
    adjusts: bool
    allowed: Any
    memo: dict[Any, Any]
    adapter: Any = None

    @property
    def emits(self) -> bool:
        """Whether its output gives entries."""
        return bool(self.drawn)

    @property
    def decodes(self) -> bool:
        """Whether it runs only the last entry."""
        return self.start + 1 == self.stop > self.num_prompt and len(self.drawn) == 1

    @property
    def is_ahead(self) -> bool:
        """Whether the host does not know its last entry yet, which a step in flight draws."""
        return self.step > self.num_known

    @property
    def draws(self) -> tuple[Row, ...]:
        """The row as each of its entries is drawn: after the entries before it."""
        if len(self.drawn) == 1:
            return (self,)
        pairs = enumerate(self.drawn)
        return tuple(
            replace(
                self,
                step=self.step + n,
                num_known=min(self.num_known, self.step + n),
                drawn=(place,),
                memo={},  # each follows other entries
            )
            for n, place in pairs
        )

    def part(self, start: int, stop: int) -> Row:
        """Return the positions [start, stop) of the row, with what they draw."""
        drawn = tuple(place for place in self.drawn if start <= place < stop)
        return replace(self, start=start, stop=stop, drawn=drawn)

    def before(self) -> tuple[list[Entry], list[int] | None]:
        """Return the known entries of the log, and their tracks (None: all on track 0)."""
        count = self.num_known
        return self.entries[:count], None if self.tracks is None else self.tracks[:count]


class StepBatch(Struct, frozen=True, eq=False):
    """The rows of one forward pass."""

    rows: tuple[Row, ...]

    @property
    def draws(self) -> list[Row]:
        """The rows that draw an entry, in order; one that draws several comes as often."""
        rows = self.rows
        if self.counts.count(1) == len(rows):  # what a step mostly is
            return list(rows)
        return [draw for row in rows if row.drawn for draw in row.draws]

    @property
    def counts(self) -> list[int]:
        """Number of entries that each row draws."""
        return [len(row.drawn) for row in self.rows]


def places_drawn(rows: Seq[Row]) -> npt.NDArray[np.int64]:
    """Return the places, among the rows' positions end to end, that entries are drawn from."""
    places: list[int] = []
    before = 0
    for row in rows:
        if len(row.drawn) == 1:  # the common case
            places.append(before + row.drawn[0] - row.start)
        else:
            places += [before + position - row.start for position in row.drawn]
        before += row.stop - row.start
    return np.array(places, np.int64)
