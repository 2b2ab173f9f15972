"""Decode steps as captured graphs: the decoder for all rows, then a draw for each track.

The rows of a step may be on different tracks; those of one track are adjacent. A draw has its own
graph, unless all rows are on one track and their draws are of the most frequent kind: then decoder
and draw are one graph. That is so for nearly every step of a model with one track.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from izwi.backends.torch.adjust import Adjustments, reported_logprobs
from izwi.backends.torch.captured.adapter_tables import AdapterTables
from izwi.backends.torch.captured.capturer import CapturedGraph, GraphCapturer, fitting
from izwi.backends.torch.captured.staging import (
    StagedDraws,
    StagedPositions,
    StagedRows,
    rotary_fields,
)
from izwi.backends.torch.kv import PagedKV
from izwi.backends.torch.persistent.draws import DescribedPick
from izwi.backends.torch.sampler import Suppressed
from izwi.backends.torch.transfer import HostCopy, to_device
from izwi.backends.torch.triton.adapters import AdaptedRows
from izwi.backends.torch.triton.attention_decode import DecodeCache, PagedDecode, rope_tables
from izwi.backends.torch.triton.attention_prompt import PagedPrompt
from izwi.backends.torch.triton.sampling import (
    RowSampling,
    add_last,
    draw,
    log_probabilities,
    take_last,
)
from izwi.backends.torch.triton.short_conv import StagedConv
from izwi.cache.pages import pages_for
from izwi.model.adapters import TakesAdapters
from izwi.model.protocol import CapturableModel, CapturableTracks, Model
from izwi.model.step_batch import Row, StepBatch

# Batch sizes. Other sizes are padded to the next larger one.
DECODE_SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128)
# Of a model with several tracks, up to this many rows have graphs of decoder and draw together.
# More rows are rarely on one track, and the second launch is a smaller part of the step.
_TOGETHER_ROWS = 8
# With more keys, attention is split along the keys.
FEW_KEYS = 512
# With few rows it is split from fewer keys on: unsplit, each head runs on one multiprocessor, which
# took a quarter longer for a row with 300 keys on an H200.
_FEW_ROWS, _FEW_KEYS_OF_FEW_ROWS = 8, 128

_track_of = attrgetter("track")


def has_few_keys(rows: Seq[Row]) -> bool:
    """Return whether decode attention is faster without splitting along the keys."""
    few = _FEW_KEYS_OF_FEW_ROWS if len(rows) <= _FEW_ROWS else FEW_KEYS
    return max(row.stop for row in rows) <= min(few, FEW_KEYS)


def paged_context(
    kv: PagedKV, staged: StagedPositions, max_keys: int, *, together: bool = False
) -> PagedDecode:
    """Return the attention context over the pages of staged rows; see `PagedDecode`.

    Args:
        kv: The pages.
        staged: Positions and tables, read in every launch.
        max_keys: Maximum number of keys of a row.
        together: Rows may be positions of one sequence: write all before any attends.
    """
    assert kv.plain is not None
    (keys, values), spec, rope = kv.plain, kv.spec, None
    if spec.rope_theta is not None:
        rope = rope_tables(max_keys, spec.head_dim, spec.rope_theta, keys.device, keys.dtype)
    cache = DecodeCache(keys, values, kv.page_size)
    rows = staged.positions, staged.tables, staged.table_width
    context = (
        PagedPrompt(cache, *rows, rope, max_keys, staged.runs, staged.num_tables)
        if together
        else PagedDecode(cache, *rows, rope, max_keys)
    )
    context.rotary = staged.rotary
    if kv.trailers is not None:
        context.conv = StagedConv(kv.trailers, *rows, staged.runs if together else None)
    return context


class Part(NamedTuple):
    """Part of a step's results.

    Attributes:
        draws: The rows of the entries.
        copy: Copy of the entries, (rows, codebooks) int64, and of the log probabilities if a row
            requests them: (rows,) float32 or as `reported_logprobs`.
    """

    draws: Seq[Row]
    copy: HostCopy


class DrawKind(NamedTuple):
    """What a captured draw does. Most steps use the first kind of a track; the last fits any.

    Attributes:
        track: Track of the entries.
        few_candidates: All rows draw from short lists of candidates.
        tells: Log probabilities of the drawn ids are computed, too.
    """

    track: int = 0
    few_candidates: bool = True
    tells: bool = False

    @property
    def is_frequent(self) -> bool:
        """Whether graphs of decoder and draw together are captured for it."""
        return self.few_candidates and not self.tells


class DecodeKind(NamedTuple):
    """What a graph of the decoder does.

    Attributes:
        few_keys: No row has more than FEW_KEYS.
        draw: The draw that follows in the same graph; None if the graph ends with the states.
        adapted: Rows may have adapters. These graphs are captured when the first adapter comes,
            unless `EngineConfig.adapters` wants them at the start.
    """

    few_keys: bool
    draw: DrawKind | None
    adapted: bool = False


@dataclass(slots=True, eq=False)
class _Rows:
    """The decoder's inputs for one number of rows, and its graphs."""

    staged: StagedRows
    graphs: dict[DecodeKind, CapturedGraph] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Draws:
    """Inputs of draws on one track, for one number of rows, and their graphs.

    Attributes:
        staged: Everything but the states.
        hidden: (rows, width) states, where the graphs read them; None before the first draw.
        graphs: By kind.
    """

    staged: StagedDraws
    hidden: Tensor | None = None
    graphs: dict[DrawKind, CapturedGraph] = field(default_factory=dict)

    def room(self, like: Tensor) -> Tensor:
        """Return `hidden`, as wide as these states."""
        if self.hidden is None:
            self.hidden = like.new_zeros((self.staged.size, like.shape[1]))
        return self.hidden


class _Group(NamedTuple):
    """Draws on one track, which are staged.

    Attributes:
        rows: What draws.
        first: Place of the first entry among those of the step.
        draws: Where they are staged.
        kind: The kind of their graph; None if they are drawn without one.
    """

    rows: Seq[Row]
    first: int
    draws: _Draws
    kind: DrawKind | None


class DecodeGraphs:
    """Decode steps including draws, entirely on the device; one new position per row.

    Drawn entries stay on the device for the next step, which may be launched before the host has
    them. `Row.key` finds them there.
    """

    def __init__(
        self,
        model: CapturableModel,
        kv: PagedKV,
        capturer: GraphCapturer,
        max_rows: int,
        suppressed: Seq[Suppressed | None],
        max_keys: int,
    ):
        """Set up; nothing is captured yet.

        Args:
            model: The model. With several tracks it implements `CapturableTracks`.
            kv: The model's pages.
            capturer: Captures the graphs.
            max_rows: Maximum number of entries that a step draws.
            suppressed: Ids of each track that are never drawn.
            max_keys: Maximum number of keys of a sequence.
        """
        self._model, self._kv, self._capturer = model, kv, capturer
        assert kv.plain is not None
        self._suppressed, self._device = suppressed, kv.plain[0].device
        self._max_keys = max_keys
        self._adapters = AdapterTables(model, self._device)
        tracks = model.tracks
        self._vocabularies = {n: track.vocabulary for n, track in enumerate(tracks)}
        # log probabilities are reported for text only
        self._can_tell = [track.num_codebooks == 1 for track in tracks]
        self._sizes = fitting(DECODE_SIZES, max_rows)
        self._decodes: dict[int, _Rows] = {}
        self._draws: dict[tuple[int, int], _Draws] = {}
        # Entries of the last step and of this one, which take turns: 0 is a place for what is not
        # read, then come those of each track. A row has the entry in its columns of `inputs`.
        self._columns = model.entry_columns if isinstance(model, CapturableTracks) else (0,)
        widths = zip(self._columns, tracks, strict=True)
        num_columns = max(column + track.num_codebooks for column, track in widths)
        num_places = 1 + 2 * len(tracks) * self._sizes[-1]
        self._last = torch.full((num_places, num_columns), -1, device=self._device)
        for track in self._vocabularies:
            self._entries(track)[self._first(0, track) : self._first(0, track + 1)] = 0
            self._entries(track)[self._first(1, track) : self._first(1, track + 1)] = 0
        self._logprobs = torch.zeros(num_places, device=self._device)  # of their first ids
        self._turn = 0
        self._places: dict[int, int] = {}  # of entries of the last step, by `Row.key`
        self._drawn_now: dict[int, int] = {}
        self._num_drawn = [0] * len(tracks)  # in this step

    def begin_step(self) -> None:
        """Start a step: `decode` reads the entries drawn since the last call as inputs."""
        self._places, self._drawn_now = self._drawn_now, {}
        self._turn = 1 - self._turn
        self._num_drawn = [0] * len(self._num_drawn)

    def takes(self, batch: StepBatch) -> bool:
        """Return whether these rows can be run, and their entries drawn, with graphs.

        A row that draws several entries is run like a prompt, whose inputs the host knows.
        """
        rows, counts = batch.rows, batch.counts
        if (
            sum(counts) > self._sizes[-1]
            or max([row.stop for row in rows], default=0) > self._max_keys
        ):
            return False
        if not self._adapters.takes(rows):
            return False
        if max(counts, default=0) > 1 and any(len(row.drawn) > 1 and row.is_ahead for row in rows):
            return False
        return not any(
            row.request.logprobs and row.drawn and not self._can_tell[row.track] for row in rows
        )

    def in_place(self, rows: Seq[Row]) -> list[Row]:
        """Return the rows in the order for `decode`: by track, with the fewest copies."""
        together = self._rows(len(rows)).staged.draws
        groups = _groups(sorted(rows, key=_track_of))
        if len(groups) == 1 and together is not None:
            return together.in_place(rows)
        return [
            row
            for group in groups
            for row in self._drawing(group[0].track, len(group)).staged.in_place(group)
        ]

    def decode(self, inputs: npt.NDArray[np.int64], rows: Seq[Row]) -> list[Part]:
        """Run rows and draw their next entries.

        Args:
            inputs: `Model.inputs` of the rows.
            rows: One position each, which emits, in the order of `in_place`. If the host does not
                have the entry there yet, the previous step drew it and it is read on the device.

        Returns:
            One part for each track that is drawn.
        """
        batch = self._rows(len(rows))
        staged, few_keys = batch.staged, has_few_keys(rows)
        sources = self._sources(rows)
        staged.stage_rows(inputs, rows)
        staged.stage_sources(sources)
        adapted = staged.adapters is not None and any(row.adapter is not None for row in rows)
        if adapted:
            staged.stage_adapters(self._adapters.addresses(rows))
        groups = _groups(rows)
        firsts = [self._put(group) for group in groups]
        if len(groups) == 1 and staged.draws is not None and not _adjusts(rows):
            kind = self._stage(staged.draws, rows, firsts[0], sources)
            if kind.is_frequent:
                staged.send()
                graph = self._decode_graph(batch, DecodeKind(few_keys, kind, adapted))
                graph.launch()
                return [self._part(rows, firsts[0], graph.out)]
        staged.send()
        # before the decoder runs, so that no copy to the device waits for it
        drawing, done = [], 0
        for group, first in zip(groups, firsts, strict=True):
            drawing.append(self._group(group, first, sources[done : done + len(group)]))
            done += len(group)
        graph = self._decode_graph(batch, DecodeKind(few_keys, None, adapted))
        graph.launch()
        return self._drawn(drawing, graph.out)

    def draw(self, hidden: Tensor, draws: Seq[Row]) -> list[Part]:
        """Draw an entry from each state, (rows, width); the result is as that of `decode`."""
        order = sorted(range(len(draws)), key=lambda place: draws[place].track)
        groups = _groups([draws[place] for place in order])
        if len(groups) > 1:
            hidden = hidden[to_device(torch.tensor(order), self._device)]
        staged = [self._group(group, self._put(group), self._sources(group)) for group in groups]
        return self._drawn(staged, hidden)

    @torch.inference_mode()
    def warm_up(self, *, adapted: bool = False) -> None:
        """Capture all graphs, and those with adapters if that is asked and the model takes any."""
        for size in reversed(self._sizes):  # the largest first: the others fit into its memory
            batch = self._rows(size)
            decodes = [
                DecodeKind(few_keys, None, with_adapters)
                for few_keys in {True, self._max_keys <= FEW_KEYS}
                for with_adapters in {False, adapted and batch.staged.adapters is not None}
            ]
            for decode in decodes:
                states = self._decode_graph(batch, decode).out
                for track in self._vocabularies if batch.staged.draws is not None else ():
                    self._decode_graph(batch, decode._replace(draw=DrawKind(track)))
            for track in self._vocabularies:
                draws = self._drawing(track, size)
                draws.room(states)
                for kind in self._kinds(track):
                    self._draw_graph(draws, kind)
        for track in self._vocabularies:
            if self._can_tell[track]:
                self._compile_adjusted(self._drawing(track, size), track)

    # -- staging -----------------------------------------------------------------------------
    def _sources(self, rows: Seq[Row]) -> npt.NDArray[np.int32]:
        """Return the places of the rows' entries in flight; -1 if the host has them."""
        places = self._places
        found = [places[row.key] if row.is_ahead else -1 for row in rows]
        return np.array(found, dtype=np.int32)

    def _first(self, turn: int, track: int) -> int:
        """Return the place of the first entry of a track."""
        return 1 + (turn * len(self._vocabularies) + track) * self._sizes[-1]

    def _put(self, rows: Seq[Row]) -> int:
        """Choose where the entries of rows on one track will be; return the first place."""
        track = rows[0].track
        first = self._first(self._turn, track) + self._num_drawn[track]
        self._num_drawn[track] += len(rows)
        self._drawn_now.update((row.key, place) for place, row in enumerate(rows, first))
        return first

    def _stage(
        self, staged: StagedDraws, rows: Seq[Row], first: int, sources: npt.NDArray[np.int32]
    ) -> DrawKind:
        """Fill in draws on one track; return the kind that does what they need, and the least."""
        track, num_tracks = rows[0].track, len(self._vocabularies)
        if num_tracks > 1:
            on_track = (sources - 1) // self._sizes[-1] % num_tracks == track
            sources = np.where(on_track, sources, -1)
        staged.stage_places(first, sources)
        staged.stage_sampling(rows)
        tells = any(row.request.logprobs for row in rows)
        if staged.few_candidates and not tells:
            return DrawKind(track)
        # rare: both are captured together where text is drawn from long lists
        return DrawKind(track, staged.few_candidates, self._can_tell[track])

    def _group(self, rows: Seq[Row], first: int, sources: npt.NDArray[np.int32]) -> _Group:
        """Stage draws on one track with a graph of their own."""
        draws = self._drawing(rows[0].track, len(rows))
        kind = self._stage(draws.staged, rows, first, sources)
        draws.staged.send()
        return _Group(rows, first, draws, None if _adjusts(rows) else kind)

    def _drawn(self, groups: Seq[_Group], hidden: Tensor) -> list[Part]:
        """Draw from the states of all groups, (rows, width)."""
        parts, done = [], 0
        for group in groups:
            count = len(group.rows)
            group.draws.room(hidden)[:count].copy_(hidden[done : done + count])
            done += count
            if group.kind is None:
                parts.append(self._adjusted(group))
            else:
                graph = self._draw_graph(group.draws, group.kind)
                graph.launch()
                parts.append(self._part(group.rows, group.first, graph.out))
        return parts

    def _part(self, rows: Seq[Row], first: int, entries: Tensor) -> Part:
        """Begin to copy a draw's results, before its next launch overwrites them."""
        count = len(rows)
        results = [entries[:count]]
        if any(row.request.logprobs for row in rows):
            results.append(self._logprobs[first : first + count])
        return Part(rows, HostCopy(results))

    def _adjusted(self, group: _Group) -> Part:
        """Draw without a graph, but with the kernels of the captured steps.

        The batch has the same size as in a captured step, so that other rows get the same logits.
        """
        rows, staged, track = group.rows, group.draws.staged, group.rows[0].track
        suppressed = self._suppressed[track]
        adjustments = Adjustments(rows, None if suppressed is None else suppressed.ids, track)
        asking = any(row.request.logprobs for row in rows)
        most = max(row.request.top_logprobs for row in rows)
        sampling = self._sampling(staged, track)
        reported: list[Tensor] = []

        def pick(logits: Tensor, codebook: int) -> Tensor:
            adjusted = logits.float()
            if codebook == 0 and adjustments:
                adjusted = adjustments.apply(adjusted)
            ids = draw(adjusted, sampling, codebook, staged.few_candidates)
            if codebook == 0 and asking:
                reported.append(reported_logprobs(logits, ids, most))
            return ids

        described = DescribedPick(pick, sampling, staged.few_candidates)
        entries: Tensor = self._model.draw(group.draws.hidden, described, track)
        self._entries(track).index_copy_(0, staged.place, entries)
        count = len(rows)
        return Part(rows, HostCopy([entries[:count], *(values[:count] for values in reported)]))

    def _compile_adjusted(self, draws: _Draws, track: int) -> None:
        """Launch the kernels of `_adjusted` once, so that no request waits for compilation."""
        sampling = draws.staged.sampling(self._suppressed[track])

        def pick(logits: Tensor, codebook: int) -> Tensor:
            for few_candidates in (True, False):
                draw(logits.float(), sampling, codebook, few_candidates)
            return torch.zeros(len(logits), dtype=torch.int64, device=logits.device)

        self._model.draw(draws.hidden, pick, track)

    # -- buffers -----------------------------------------------------------------------------
    def _size(self, count: int) -> int:
        return next(size for size in self._sizes if size >= count)

    def _rows(self, count: int) -> _Rows:
        size = self._size(count)
        if size not in self._decodes:
            several = len(self._vocabularies) > 1
            apart = several and size > _TOGETHER_ROWS
            staged = StagedRows(
                size,
                num_inputs=self._model.num_inputs,
                max_pages=most_pages(self._model, self._kv),
                vocabularies={} if apart else self._vocabularies,
                device=self._device,
                more={
                    **rotary_fields(self._kv.spec, size),
                    **({"adapters": (np.int64, (size,))} if self._adapters.products else {}),
                },
            )
            self._decodes[size] = _Rows(staged)
        return self._decodes[size]

    def _drawing(self, track: int, count: int) -> _Draws:
        size = self._size(count)
        if (track, size) not in self._draws:
            vocabularies = {track: self._vocabularies[track]}
            staged = StagedDraws.apart(size, vocabularies, self._device)
            self._draws[track, size] = _Draws(staged)
        return self._draws[track, size]

    def _entries(self, track: int) -> Tensor:
        """Return a view of the columns of a track's entries, (places, codebooks)."""
        column, codebooks = self._columns[track], self._model.tracks[track].num_codebooks
        return self._last[:, column : column + codebooks]

    def _sampling(self, staged: StagedDraws, track: int) -> RowSampling:
        """Return what draws read, with the ids in flight added to those that were emitted."""
        sampling = staged.sampling(self._suppressed[track])
        add_last(self._entries(track)[:, 0], staged.drawn, sampling.seen)
        return sampling

    # -- captured work -----------------------------------------------------------------------
    def _kinds(self, track: int) -> list[DrawKind]:
        """Return all kinds that `_stage` can return for a track."""
        can_tell = self._can_tell[track]
        rare = [DrawKind(track, few, can_tell) for few in (False, True)]
        return [DrawKind(track), *(rare if can_tell else rare[:1])]

    def _decode_graph(self, batch: _Rows, kind: DecodeKind) -> CapturedGraph:
        kind = kind._replace(few_keys=kind.few_keys or self._max_keys <= FEW_KEYS)
        if kind not in batch.graphs:
            max_keys = FEW_KEYS if kind.few_keys else self._max_keys
            staged, drawn = batch.staged, kind.draw

            def run() -> Tensor:
                take_last(self._last, staged.source, staged.inputs)
                x = self._model.embed_inputs(staged.inputs)
                hidden = self._states(x, paged_context(self._kv, staged, max_keys), kind, staged)
                if drawn is None:
                    return hidden
                assert staged.draws is not None
                return self._entries_of(drawn, staged.draws, hidden)

            batch.graphs[kind] = self._capturer.capture(run)
        return batch.graphs[kind]

    def _states(
        self, x: Tensor, context: PagedDecode, kind: DecodeKind, staged: StagedRows
    ) -> Tensor:
        model = self._model
        if kind.adapted:
            assert isinstance(model, TakesAdapters)
            assert staged.adapters is not None
            updates = AdaptedRows(staged.adapters, self._adapters.products)
            return cast(Tensor, model.adapted.run(x, context, updates))
        return cast(Tensor, model.run(x, context))

    def _draw_graph(self, draws: _Draws, kind: DrawKind) -> CapturedGraph:
        if kind not in draws.graphs:
            hidden = draws.hidden
            assert hidden is not None
            draws.graphs[kind] = self._capturer.capture(
                lambda: self._entries_of(kind, draws.staged, hidden)
            )
        return draws.graphs[kind]

    def _entries_of(self, kind: DrawKind, staged: StagedDraws, hidden: Tensor) -> Tensor:
        """Draw from states, and put the entries where the next step reads them."""
        track = kind.track
        sampling = self._sampling(staged, track)

        def pick(logits: Tensor, codebook: int) -> Tensor:
            ids = picked(self._capturer, logits, sampling, codebook, kind.few_candidates)
            if kind.tells:
                self._logprobs.index_copy_(0, staged.place, log_probabilities(logits, ids))
            return ids

        rehearses = self._capturer.rehearses
        described = DescribedPick(pick, sampling, kind.few_candidates, rehearses)
        entries: Tensor = self._model.draw(hidden, described, track)
        self._entries(track).index_copy_(0, staged.place, entries)
        return entries


def _groups(rows: Seq[Row]) -> list[list[Row]]:
    """Return the rows of each track, which are adjacent."""
    return [list(group) for _, group in groupby(rows, _track_of)]


def _adjusts(rows: Seq[Row]) -> bool:
    """Return whether draws run without a graph, because a row needs what is not captured."""
    return any(
        (row.adjusts and row.request.adjusts(row.track)) or row.request.top_logprobs for row in rows
    )


def picked(
    capturer: GraphCapturer, logits: Tensor, sampling: RowSampling, codebook: int, few: bool
) -> Tensor:
    """Sample ids, (rows,), with operations that can be captured; see `draw`."""
    if capturer.rehearses:  # ids of any numbers need not be there to be looked up
        draw(torch.zeros_like(logits), sampling, codebook, few)
        return torch.zeros(len(logits), dtype=torch.int64, device=logits.device)
    return draw(logits, sampling, codebook, few)


def most_pages(model: Model, kv: PagedKV) -> int:
    """Return the maximum number of pages of one sequence."""
    return min(kv.num_pages, pages_for(model.max_positions, kv.page_size))
