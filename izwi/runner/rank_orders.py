"""What rank 0 tells the others: steps, and work on pages, in the order in which it does them.

A `StepMessage` has whole logs and block tables. Ranks follow every step, so an order says only what
is new of a sequence: both sides keep the same notes of the same sequences.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Any, Generic

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from izwi.cache.pages import pages_for
from izwi.model.step_batch import Row, StepBatch
from izwi.request.request import PromptT, Request
from izwi.request.serialization import Frame, decode, encode
from izwi.request.track_log import Entry
from izwi.sampling.grammars import fill_masks

# Sequences that both sides remember, besides those of the last steps. A sequence that was forgotten
# is sent whole.
MOST_KNOWN = 64


class RowOrder(Struct, frozen=True, array_like=True, eq=False):
    """A row of a step.

    Attributes:
        request: Index of its request in the order, if the sequence is new; else -1.
        entries: Entries of its log, from `first_entry` on; the others are known.
        tracks: Their tracks; None if all entries are on track 0.
        pages: Its block table from `first_page` on.
        written: Text ids written since.
    """

    key: int
    request: int
    start: int
    stop: int
    step: int
    drawn: tuple[int, ...]
    track: int
    is_open: bool
    adjusts: bool
    first_entry: int
    entries: list[Entry]
    tracks: list[int] | None
    first_page: int
    pages: list[int]
    written: tuple[int, ...]
    encoded: tuple[npt.NDArray[Any], ...]
    allowed: npt.NDArray[np.int32] | None


class RunStep(Struct, Generic[PromptT], frozen=True, eq=False, tag=True):
    """Run a step.

    Attributes:
        model: Number of the model.
        launched: Do not wait for its entries.
    """

    model: int
    launched: bool
    requests: list[Request[PromptT]]
    rows: list[RowOrder]


class CopyPages(Struct, frozen=True, eq=False, tag=True):
    """See `PagedKV.copy`."""

    model: int
    moves: list[tuple[int, int, int]]


class ReadPages(Struct, frozen=True, eq=False, tag=True):
    """Reply with the contents of pages; see `PagedKV.read_pages`."""

    model: int
    pages: list[int]


class WritePages(Struct, frozen=True, eq=False, tag=True):
    """See `PagedKV.write_pages`.

    Attributes:
        data: (ranks, pages, bytes of a rank's page): that of each rank.
    """

    model: int
    pages: list[int]
    data: npt.NDArray[np.uint8]


@dataclass(slots=True, eq=False)
class _Known:
    """What both sides know of a sequence.

    Attributes:
        request: The request, for the side that runs.
        entries: The log; on rank 0 that of the sequence, of which `num_entries` are sent.
        tracks: Tracks of the entries, likewise.
        pages: The block table, likewise.
        memo: See `Row.memo`.
    """

    request: Request
    entries: list[Entry] = field(default_factory=list)
    tracks: list[int] | None = None
    pages: Sequence[int] = field(default_factory=list)
    written: tuple[int, ...] = ()
    num_entries: int = 0
    num_pages: int = 0
    memo: dict[Any, Any] = field(default_factory=dict)


class _Notes:
    """Sequences by key, of which the ones that were not used for longest are forgotten."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, _Known] = OrderedDict()

    def find(self, key: int) -> _Known | None:
        return self._known.get(key)

    def put(self, key: int, known: _Known) -> None:
        self._known[key] = known
        self._known.move_to_end(key)

    def trim(self, num_rows: int) -> None:
        """Forget old ones; both sides call this after each step."""
        while len(self._known) > MOST_KNOWN + num_rows:
            self._known.popitem(last=False)


class StepEncoder:
    """Makes orders of one model's batches, for ranks that get all of them."""

    def __init__(
        self,
        model: int,
        page_size: int,
        vocabulary: int,
        to_host: Callable[[Any], npt.NDArray[Any]],
    ):
        """Set up.

        Args:
            model: Number of the model.
            page_size: Positions of a page.
            vocabulary: Ids of the first track, for the masks of grammars.
            to_host: Copies an encoder's result.
        """
        self._model, self._page_size, self._vocabulary = model, page_size, vocabulary
        self._to_host, self._notes = to_host, _Notes()

    def encode(self, batch: StepBatch, *, launched: bool) -> list[Frame]:
        """Encode a batch.

        Raises:
            InvalidRequest: A row's grammar exceeds a limit, or allows no token. Nothing is noted.
        """
        masks = [
            None if row.allowed is None else fill_masks([row.allowed], self._vocabulary)[0]
            for row in batch.rows
        ]
        requests: list[Request] = []
        rows = [self._row(row, mask, requests) for row, mask in zip(batch.rows, masks, strict=True)]
        self._notes.trim(len(rows))
        return encode(RunStep(self._model, launched, requests, rows))

    def _row(
        self, row: Row, mask: npt.NDArray[np.int32] | None, requests: list[Request]
    ) -> RowOrder:
        known, request = self._notes.find(row.key), -1
        if known is None:
            known, request = _Known(row.request), len(requests)
            requests.append(row.request)
        entries, count = row.entries, row.num_known
        first_entry = known.num_entries if known.entries is entries else 0
        if first_entry > count or row.tracks is not known.tracks:
            first_entry = 0
        num_pages = pages_for(row.stop, self._page_size)
        first_page = min(known.num_pages, num_pages) if known.pages is row.pages else 0
        written = row.written[len(known.written) :]
        known.entries, known.tracks, known.num_entries = entries, row.tracks, count
        known.pages, known.num_pages, known.written = row.pages, num_pages, row.written
        self._notes.put(row.key, known)
        return RowOrder(
            key=row.key,
            request=request,
            start=row.start,
            stop=row.stop,
            step=row.step,
            drawn=row.drawn,
            track=row.track,
            is_open=row.is_open,
            adjusts=row.adjusts,
            first_entry=first_entry,
            entries=entries[first_entry:count],
            tracks=None if row.tracks is None else row.tracks[first_entry:count],
            first_page=first_page,
            pages=list(row.pages[first_page:num_pages]),
            written=written,
            encoded=tuple(map(self._to_host, row.encoded)),
            allowed=mask,
        )


class OrderDecoder:
    """Decodes the orders of all models of an engine."""

    def __init__(self, prompts: Sequence[type[Struct]], to_device: Callable[[Any], Any]):
        """Set up.

        Args:
            prompts: See `izwi.model.protocol.Family.prompts`.
            to_device: Copies an encoder's result.
        """
        step: Any = RunStep[reduce(or_, prompts)]  # type: ignore[misc]
        self._cls: Any = step | CopyPages | ReadPages | WritePages
        self._to_device = to_device
        self._notes: dict[int, _Notes] = {}  # by model

    def decode(self, frames: Sequence[Frame]) -> RunStep[Any] | CopyPages | ReadPages | WritePages:
        """Decode an order. Raises InvalidMessage."""
        order: RunStep[Any] | CopyPages | ReadPages | WritePages = decode(frames, self._cls)
        return order

    def batch(self, order: RunStep[Any]) -> StepBatch:
        """Return the batch of a step; call it once for each, in order."""
        notes = self._notes.setdefault(order.model, _Notes())
        rows = tuple(self._row(notes, row, order.requests) for row in order.rows)
        notes.trim(len(rows))
        return StepBatch(rows)

    def _row(self, notes: _Notes, row: RowOrder, requests: Sequence[Request]) -> Row:
        known = notes.find(row.key) if row.request < 0 else _Known(requests[row.request])
        assert known is not None
        # Lists of steps in flight only grow; what replaces entries or pages gets a list of its own.
        if row.first_entry < len(known.entries):
            known.entries, known.memo = known.entries[: row.first_entry], {}
            known.tracks = None if known.tracks is None else known.tracks[: row.first_entry]
        if row.first_page < len(known.pages):
            known.pages = list(known.pages[: row.first_page])
        known.entries.extend(row.entries)
        if row.tracks is not None:
            known.tracks = [*(known.tracks or ()), *row.tracks]
        assert isinstance(known.pages, list)
        known.pages.extend(row.pages)
        known.written += row.written
        notes.put(row.key, known)
        return Row(
            request=known.request,
            num_prompt=known.request.prompt.num_positions,
            start=row.start,
            stop=row.stop,
            entries=known.entries,
            num_known=len(known.entries),
            written=known.written,
            is_open=row.is_open,
            encoded=tuple(map(self._to_device, row.encoded)),
            key=row.key,
            tracks=known.tracks,
            pages=known.pages,
            step=row.step,
            drawn=row.drawn,
            track=row.track,
            adjusts=row.adjusts,
            allowed=row.allowed,
            memo=known.memo,
        )
