"""Decode steps of a model with several tracks as captured graphs.

The rows of a step may be on different tracks, so the decoder and the sampling of each track are
separate graphs: the decoder runs all rows, then each track samples from the states of its rows,
which are adjacent. For a few rows on one track, as in a single session, both are one graph.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from izwi.backends.torch.captured.capturer import CapturedGraph, GraphCapturer, fitting
from izwi.backends.torch.captured.decode_graphs import (
    DECODE_SIZES,
    FEW_KEYS,
    Part,
    has_few_keys,
    most_pages,
    paged_context,
    picked,
)
from izwi.backends.torch.captured.staging import DrawnTrack, StagedRows
from izwi.backends.torch.kv import PagedKV
from izwi.backends.torch.sampler import Suppressed
from izwi.backends.torch.transfer import HostCopy, to_device
from izwi.backends.torch.triton.sampling import take_last
from izwi.model.protocol import CapturableTracks, Model
from izwi.model.step_batch import Row, StepBatch

# Up to this many rows, decoder and sampling are one graph if all rows are on one track. More rows
# rarely are, and the second launch is a smaller part of the step.
_ONE_GRAPH_ROWS = 8


@dataclass(slots=True, eq=False)
class _Rows:
    """The decoder's inputs and graphs for one number of rows.

    Attributes:
        staged: Positions, inputs and sources; its sampling fields are unused.
        graphs: By whether keys are few, and by the sampled track; None to return the states.
    """

    staged: StagedRows
    graphs: dict[tuple[bool, int | None], tuple[CapturedGraph, Tensor]] = field(
        default_factory=dict
    )


@dataclass(slots=True, eq=False)
class _Draws:
    """Inputs and graphs of sampling on one track, for one number of rows.

    Attributes:
        staged: Only its sampling fields are used.
        hidden: (rows, width) states, where the graphs read them.
        graphs: By whether candidate lists are short.
    """

    staged: StagedRows
    hidden: Tensor | None = None
    graphs: dict[bool, tuple[CapturedGraph, Tensor]] = field(default_factory=dict)


class TrackedDecodeGraphs:
    """Like `DecodeGraphs`, for a model with several tracks."""

    def __init__(
        self,
        model: Model,
        capturable: CapturableTracks,
        kv: PagedKV,
        capturer: GraphCapturer,
        max_rows: int,
        suppressed: Seq[Suppressed | None],
    ):
        """Set up; nothing is captured yet.

        Args:
            model: The model.
            capturable: The same model.
            kv: The model's pages.
            capturer: Captures the graphs.
            max_rows: Maximum number of rows of a step.
            suppressed: Ids of each track that are never sampled.
        """
        self._model, self._capturable, self._kv = model, capturable, kv
        self._capturer, self._suppressed = capturer, suppressed
        assert kv.plain is not None
        self._device = kv.plain[0].device
        self._sizes = fitting(DECODE_SIZES, max_rows)
        self._decodes: dict[int, _Rows] = {}
        self._draws: dict[tuple[int, int], _Draws] = {}
        # rows of `inputs` of the entries of the last step, some for each track
        self._most = self._sizes[-1]
        shape = len(model.tracks) * self._most, capturable.num_inputs
        self._last = torch.full(shape, -1, dtype=torch.int64, device=self._device)
        for track, _ in enumerate(model.tracks):
            self._entries(track, self._most).zero_()  # valid ids
        self._places: dict[int, int] = {}  # there, by `Row.key`
        self._drawn_now: dict[int, int] = {}

    def begin_step(self) -> None:
        """Start a step: `decode` reads the entries sampled since the last call as inputs."""
        self._places, self._drawn_now = self._drawn_now, {}

    def takes(self, batch: StepBatch) -> bool:
        """Return whether these rows can be run, and their next entries sampled, with graphs.

        Log probabilities and penalties are not captured, because few requests use them.
        """
        rows = batch.rows
        if any(row.emits and _asks_more(row) for row in rows):
            return False
        ready = [row for row in rows if row.emits and not row.decodes]
        if not ready or not any(row.decodes for row in rows):
            return True
        # the last positions of prompts run with the decodes, so they must be ids
        return self._capturable.inputs([_last(row) for row in ready]) is not None

    def in_place(self, rows: Seq[Row]) -> list[Row]:
        """Return the rows in the order for `decode`: by track, with the fewest copies."""
        by_track = sorted(rows, key=_track_of)
        ordered: list[Row] = []
        for track, group in groupby(by_track, _track_of):
            mine = list(group)
            ordered += self._drawing(track, len(mine)).staged.in_place(mine)
        return ordered

    def decode(self, inputs: npt.NDArray[np.int64], rows: Seq[Row]) -> list[Part]:
        """Run rows and sample their next entries.

        Args:
            inputs: `Model.inputs` of the rows.
            rows: One position each, which emits, in the order of `in_place`. If the host does not
                have the entry there yet, it is read on the device.

        Returns:
            One part for each sampled track.
        """
        batch = self._rows(len(rows))
        staged, places = batch.staged, self._places
        staged.stage_rows(inputs, rows)
        staged.stage_sources([places[row.key] if row.is_ahead else -1 for row in rows])
        staged.send()
        few_keys = has_few_keys(rows)
        groups: list[tuple[int, list[Row]]] = []
        for track, group in groupby(rows, _track_of):
            groups.append((track, list(group)))
            self._stage(*groups[-1])
        if len(groups) == 1 and staged.size <= _ONE_GRAPH_ROWS:
            track, draws = groups[0]
            if self._drawing(track, len(draws)).staged.few_candidates:
                graph, entries = self._decode_graph(batch, few_keys, track)
                graph.replay()
                return [_part(draws, entries)]
        graph, hidden = self._decode_graph(batch, few_keys, None)
        graph.replay()
        # before a draw runs, whose memory may lie where the states do
        done = 0
        for track, draws in groups:
            self._take_states(track, hidden[done : done + len(draws)])
            done += len(draws)
        return [self._draw(track, draws) for track, draws in groups]

    def draw(self, hidden: Tensor, draws: Seq[Row]) -> list[Part]:
        """Draw an entry from each state, (rows, width); the result is as that of `decode`."""
        members: dict[int, list[int]] = {}
        for place, row in enumerate(draws):
            members.setdefault(row.track, []).append(place)
        if len(members) > 1:
            places = torch.tensor([place for group in members.values() for place in group])
            hidden = hidden[to_device(places, self._device)]
        parts, done = [], 0
        for track, group in members.items():
            mine = [draws[place] for place in group]
            self._stage(track, mine)
            self._take_states(track, hidden[done : done + len(mine)])
            done += len(mine)
            parts.append(self._draw(track, mine))
        return parts

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Capture all graphs."""
        tracks = range(len(self._model.tracks))
        for size in reversed(self._sizes):  # the largest first: the others fit into its memory
            batch = self._rows(size)
            hidden = self._hidden(batch, FEW_KEYS)
            for track in tracks:
                draws = self._drawing(track, size)
                self._room(draws, hidden)
                for few_candidates in (True, False):
                    self._draw_graph(track, draws, few_candidates)
            drawn_on = [None, *(tracks if size <= _ONE_GRAPH_ROWS else ())]
            for few_keys in {True, self._model.max_positions <= FEW_KEYS}:
                for on in drawn_on:
                    self._decode_graph(batch, few_keys, on)

    # -- staging -----------------------------------------------------------------------------
    def _stage(self, track: int, rows: Seq[Row]) -> None:
        """Send the inputs of sampling on a track, and note where its entries will be."""
        staged = self._drawing(track, len(rows)).staged
        staged.stage_sampling(rows)
        staged.send()
        first = track * self._most
        self._drawn_now.update((row.key, p) for p, row in enumerate(rows, first))

    def _take_states(self, track: int, hidden: Tensor) -> None:
        draws = self._drawing(track, len(hidden))
        self._room(draws, hidden)[: len(hidden)].copy_(hidden)

    @staticmethod
    def _room(draws: _Draws, like: Tensor) -> Tensor:
        if draws.hidden is None:
            draws.hidden = like.new_zeros((draws.staged.size, like.shape[1]))
        return draws.hidden

    def _draw(self, track: int, rows: Seq[Row]) -> Part:
        draws = self._drawing(track, len(rows))
        graph, entries = self._draw_graph(track, draws, draws.staged.few_candidates)
        graph.replay()
        return _part(rows, entries)

    # -- captured work -----------------------------------------------------------------------
    def _rows(self, count: int) -> _Rows:
        size = self._size(count)
        if size not in self._decodes:
            self._decodes[size] = _Rows(self._staged(size, 0, most_pages(self._model, self._kv)))
        return self._decodes[size]

    def _drawing(self, track: int, count: int) -> _Draws:
        size = self._size(count)
        if (track, size) not in self._draws:
            self._draws[track, size] = _Draws(self._staged(size, track, 0))
        return self._draws[track, size]

    def _size(self, count: int) -> int:
        return next(size for size in self._sizes if size >= count)

    def _staged(self, size: int, track: int, max_pages: int) -> StagedRows:
        return StagedRows(
            size,
            num_inputs=self._capturable.num_inputs,
            max_pages=max_pages,
            track=DrawnTrack(self._model.tracks[track].vocabulary, self._suppressed[track], track),
            device=self._device,
        )

    def _decode_graph(
        self, batch: _Rows, few_keys: bool, track: int | None
    ) -> tuple[CapturedGraph, Tensor]:
        few_keys = few_keys or self._model.max_positions <= FEW_KEYS
        if (few_keys, track) not in batch.graphs:
            max_keys = FEW_KEYS if few_keys else self._model.max_positions
            draws = None if track is None else self._drawing(track, batch.staged.size)

            def run() -> Tensor:
                hidden = self._hidden(batch, max_keys)
                if track is None or draws is None:
                    return hidden
                return self._drawn(track, draws, hidden, few_candidates=True)

            before = self._last.clone()
            batch.graphs[few_keys, track] = self._capturer.capture(run)
            self._last.copy_(before)  # the capture has overwritten the input of the first launch
        return batch.graphs[few_keys, track]

    def _draw_graph(
        self, track: int, draws: _Draws, few_candidates: bool
    ) -> tuple[CapturedGraph, Tensor]:
        if few_candidates not in draws.graphs:
            hidden = draws.hidden
            assert hidden is not None
            draws.graphs[few_candidates] = self._capturer.capture(
                lambda: self._drawn(track, draws, hidden, few_candidates)
            )
        return draws.graphs[few_candidates]

    def _hidden(self, batch: _Rows, max_keys: int) -> Tensor:
        staged = batch.staged
        take_last(self._last, staged.source, staged.inputs, None)
        x = self._capturable.embed_inputs(staged.inputs)
        hidden: Tensor = self._model.run(x, paged_context(self._kv, staged, max_keys))
        return hidden

    def _drawn(self, track: int, draws: _Draws, hidden: Tensor, few_candidates: bool) -> Tensor:
        """Sample, and store the entries for the next step."""
        sampling = draws.staged.sampling

        def pick(logits: Tensor, codebook: int) -> Tensor:
            return picked(self._capturer, logits, sampling, codebook, few_candidates)

        entries: Tensor = self._model.draw(hidden, pick, track)
        self._entries(track, len(entries)).copy_(entries)
        return entries

    def _entries(self, track: int, count: int) -> Tensor:
        """Return a view of a track's first entries in `_last`, (count, codebooks)."""
        first, column = track * self._most, self._capturable.entry_columns[track]
        codebooks = self._model.tracks[track].num_codebooks
        return self._last[first : first + count, column : column + codebooks]


def _part(rows: Seq[Row], entries: Tensor) -> Part:
    # copied before another graph runs, whose memory may lie where this one's result does
    return Part(rows, HostCopy([entries[: len(rows)]]))


def _track_of(row: Row) -> int:
    return row.track


def _last(row: Row) -> Row:
    return row.part(row.stop - 1, row.stop)


def _asks_more(row: Row) -> bool:
    """Return whether a request uses options that are not captured."""
    request = row.request
    if request.logprobs or row.adjusts:
        return True
    every = (request.params(track).sampling for track in range(1 + len(request.other_tracks)))
    return any(params.repetition_penalty != 1.0 for params in every)
