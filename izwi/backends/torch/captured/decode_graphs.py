"""Decode steps as captured graphs: talker or decoder, code predictor, and sampling."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from izwi.backends.torch.adjust import Adjustments, reported_logprobs
from izwi.backends.torch.captured.capturer import CapturedGraph, GraphCapturer, fitting
from izwi.backends.torch.captured.staging import DrawnTrack, StagedPositions, StagedRows
from izwi.backends.torch.kv import PagedKV
from izwi.backends.torch.sampler import Suppressed
from izwi.backends.torch.transfer import HostCopy
from izwi.backends.torch.triton.attention_decode import DecodeCache, PagedDecode, rope_tables
from izwi.backends.torch.triton.attention_prompt import PagedPrompt
from izwi.backends.torch.triton.sampling import RowSampling, draw, log_probabilities, take_last
from izwi.backends.torch.triton.short_conv import StagedConv
from izwi.cache.pages import pages_for
from izwi.model.protocol import CapturableModel, Model
from izwi.model.step_batch import Row, StepBatch

# Batch sizes. Other sizes are padded to the next larger one.
DECODE_SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128)
# With more keys, attention is split along the keys.
FEW_KEYS = 512
# With few rows it is split from fewer keys on: unsplit, each head runs on one multiprocessor, which
# took a quarter longer for a row with 300 keys on an H200.
_FEW_ROWS, _FEW_KEYS_OF_FEW_ROWS = 8, 128


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
        PagedPrompt(cache, *rows, rope, max_keys, staged.runs)
        if together
        else PagedDecode(cache, *rows, rope, max_keys)
    )
    if kv.trailers is not None:
        context.conv = StagedConv(kv.trailers, *rows, staged.runs if together else None)
    return context


class Part(NamedTuple):
    """Part of a step's results.

    Attributes:
        draws: The rows of the entries.
        copy: Copy of the entries, (rows, codebooks) int64, and of their log probabilities.
    """

    draws: Seq[Row]
    copy: HostCopy


class Variant(NamedTuple):
    """The case that a graph was captured for. Most steps use the first; the last fits any.

    Attributes:
        few_keys: No row has more than FEW_KEYS.
        few_candidates: All rows are sampled from short lists of candidates.
        tells: The graph also computes log probabilities of the sampled ids.
        draws: The graph samples entries; else it returns the hidden states.
    """

    few_keys: bool
    few_candidates: bool = True
    tells: bool = False
    draws: bool = True


@dataclass(slots=True, eq=False)
class _Batch:
    """One batch size: its buffers, and its graphs by variant."""

    staged: StagedRows
    graphs: dict[Variant, tuple[CapturedGraph, Tensor]]
    hidden: Tensor | None = None  # input of a graph that only samples


class DecodeGraphs:
    """Decode steps including sampling, entirely on the device; one new position per row.

    Sampled entries stay on the device for the next step, which may be launched before the host has
    them. `decode` and `draw` have separate buffers, so that neither waits for the other's copies.
    """

    def __init__(
        self,
        model: CapturableModel,
        kv: PagedKV,
        capturer: GraphCapturer,
        max_rows: int,
        suppressed: Suppressed | None,
        max_keys: int,
    ):
        """Set up; nothing is captured yet.

        Args:
            model: The model; it has one track.
            kv: The model's pages.
            capturer: Captures the graphs.
            max_rows: Maximum number of rows of a step.
            suppressed: Ids that are never sampled.
            max_keys: Maximum number of keys of a sequence.
        """
        self._model, self._track = model, model.tracks[0]
        self._kv, self._capturer = kv, capturer
        assert kv.plain is not None
        self._suppressed, self._device = suppressed, kv.plain[0].device
        self._max_keys = max_keys
        # log probabilities are reported for text only
        self._can_tell = self._track.num_codebooks == 1
        self._sizes = fitting(DECODE_SIZES, max_rows)
        self._decodes: dict[int, _Batch] = {}
        self._draws: dict[int, _Batch] = {}
        # entries of the last step: of `decode` in the first half, of `draw` in the second
        self._half = self._sizes[-1]
        shape = 2 * self._half, self._track.num_codebooks
        self._last = torch.zeros(shape, dtype=torch.int64, device=self._device)
        self._logprobs = torch.zeros(shape[0], device=self._device)  # of their first ids
        self._places: dict[int, int] = {}  # there, by `Row.key`
        self._drawn_now: dict[int, int] = {}

    def begin_step(self) -> None:
        """Start a step: `decode` reads the entries sampled since the last call as inputs."""
        self._places, self._drawn_now = self._drawn_now, {}

    def takes(self, batch: StepBatch) -> bool:
        """Return whether these rows can be run, and their next entries sampled, with graphs."""
        rows = batch.rows
        asking = any(row.emits and row.request.logprobs for row in rows)
        fitting_keys = max((row.stop for row in rows), default=0) <= self._max_keys
        return fitting_keys and (self._can_tell or not asking)

    def in_place(self, rows: Seq[Row]) -> list[Row]:
        """Return the rows in the order for `decode` that needs the fewest copies."""
        return self._batch(self._decodes, len(rows)).staged.in_place(rows)

    def decode(self, inputs: npt.NDArray[np.int64], rows: Seq[Row]) -> list[Part]:
        """Run rows and sample their next entries.

        Args:
            inputs: `Model.inputs` of the rows.
            rows: One position each, which emits. If the host does not have the entry there yet, the
                previous step sampled it and it is read on the device.

        Returns:
            One part: entries of all rows, (rows, codebooks) int64, and log probabilities of the
            rows that request them, (rows,) float32 or as `reported_logprobs`.
        """
        # copied before another graph runs, whose memory may lie where this one's result does
        return [Part(rows, HostCopy(self._decoded(inputs, rows)))]

    def _decoded(self, inputs: npt.NDArray[np.int64], rows: Seq[Row]) -> list[Tensor]:
        batch = self._batch(self._decodes, len(rows))
        batch.staged.stage_rows(inputs, rows)
        batch.staged.stage_sampling(rows)
        places = self._places
        batch.staged.stage_sources([places[row.key] if row.is_ahead else -1 for row in rows])
        batch.staged.send()
        self._drawn_now.update({row.key: place for place, row in enumerate(rows)})
        few_keys = has_few_keys(rows)
        if self._draws_apart(rows):
            graph, hidden = self._decode_graph(batch, self._states_alone)
            graph.replay()
            return self._drawn_apart(batch, hidden, rows, 0)
        graph, out = self._decode_graph(batch, self._variant(batch, rows, few_keys))
        graph.replay()
        return self._results(out, 0, rows)

    def draw(self, hidden: Tensor, draws: Seq[Row]) -> list[Part]:
        """Draw an entry from each state, (rows, width); the result is as that of `decode`."""
        return [Part(draws, HostCopy(self._drawn_from(hidden, draws)))]

    def _drawn_from(self, hidden: Tensor, draws: Seq[Row]) -> list[Tensor]:
        batch = self._batch(self._draws, len(draws))
        batch.staged.stage_sampling(draws)
        batch.staged.send()
        self._drawn_now.update((row.key, p) for p, row in enumerate(draws, self._half))
        if self._draws_apart(draws):
            padded = hidden.new_zeros((batch.staged.size, hidden.shape[1]))
            padded[: len(draws)] = hidden
            return self._drawn_apart(batch, padded, draws, self._half)
        graph, out = self._draw_graph(batch, self._variant(batch, draws, True), hidden)
        assert batch.hidden is not None
        batch.hidden[: len(draws)].copy_(hidden)
        graph.replay()
        return self._results(out, self._half, draws)

    def _draws_apart(self, draws: Seq[Row]) -> bool:
        """Return whether sampling runs without a graph, because a row needs adjustments."""
        return any(row.request.adjusts(0) or row.request.top_logprobs for row in draws)

    def _drawn_apart(
        self, batch: _Batch, hidden: Tensor, draws: Seq[Row], start: int
    ) -> list[Tensor]:
        """Sample from states without a graph, but with the kernels of the captured steps.

        The batch has the same size as in a captured step, so that other rows get the same logits.
        """
        suppressed = None if self._suppressed is None else self._suppressed.ids
        adjustments = Adjustments(draws, suppressed)
        asking = any(row.request.logprobs for row in draws)
        most = max(row.request.top_logprobs for row in draws)
        reported: list[Tensor] = []

        def pick(logits: Tensor, codebook: int) -> Tensor:
            adjusted = logits.float()
            if codebook == 0 and adjustments:
                adjusted = adjustments.apply(adjusted)
            few = batch.staged.few_candidates
            ids = draw(adjusted, batch.staged.sampling, codebook, few)
            if codebook == 0 and asking:
                reported.append(reported_logprobs(logits, ids, most))
            return ids

        count = len(draws)
        entries: Tensor = self._model.draw(hidden, pick)
        self._last[start : start + count].copy_(entries[:count])
        return [entries[:count], *(values[:count] for values in reported)]

    def _results(self, entries: Tensor, start: int, draws: Seq[Row]) -> list[Tensor]:
        count = len(draws)
        if any(row.request.logprobs for row in draws):
            return [entries[:count], self._logprobs[start : start + count]]
        return [entries[:count]]

    def _variant(self, batch: _Batch, draws: Seq[Row], few_keys: bool) -> Variant:
        """Return the captured variant that does what the rows need, and the least beyond that."""
        few_candidates = batch.staged.few_candidates
        tells = any(row.request.logprobs for row in draws)
        if few_candidates and not tells:
            return Variant(few_keys or self._max_keys <= FEW_KEYS)
        # rare: captured for any length, and for both where text is drawn from long lists
        return Variant(self._max_keys <= FEW_KEYS, few_candidates, self._can_tell)

    @property
    def _states_alone(self) -> Variant:
        """Return the variant for rows that are sampled without a graph, for any length."""
        return Variant(self._max_keys <= FEW_KEYS, draws=False)

    @property
    def _variants(self) -> list[Variant]:
        """Return all variants that `_variant` can return for decodes."""
        few = self._max_keys <= FEW_KEYS
        rare = [Variant(few, False, self._can_tell)]
        if self._can_tell:
            rare += [Variant(few, True, True), self._states_alone]
        return [Variant(True), *([] if few else [Variant(False)]), *rare]

    @torch.inference_mode()
    def warm_up(self) -> Tensor:
        """Capture all graphs; return states, (rows, width), with arbitrary contents."""
        for size in reversed(self._sizes):  # the largest first: the others fit into its memory
            batch, draws = self._batch(self._decodes, size), self._batch(self._draws, size)
            hidden = self._hidden(batch, FEW_KEYS)
            for variant in self._variants:
                self._decode_graph(batch, variant)
                if variant.draws:
                    self._draw_graph(draws, variant, hidden)
        if self._can_tell:
            self._compile_apart(draws, hidden)
        return hidden

    def _compile_apart(self, batch: _Batch, hidden: Tensor) -> None:
        """Launch the kernels of `_drawn_apart` once, so that no request waits for compilation."""

        def pick(logits: Tensor, codebook: int) -> Tensor:
            for few_candidates in (True, False):
                draw(logits.float(), batch.staged.sampling, codebook, few_candidates)
            return torch.zeros(len(logits), dtype=torch.int64, device=logits.device)

        self._model.draw(hidden, pick)

    def _batch(self, batches: dict[int, _Batch], count: int) -> _Batch:
        size = next(size for size in self._sizes if size >= count)
        if size not in batches:
            model = self._model
            staged = StagedRows(
                size,
                num_inputs=self._model.num_inputs,
                max_pages=most_pages(model, self._kv) if batches is self._decodes else 0,
                track=DrawnTrack(self._track.vocabulary, self._suppressed),
                device=self._device,
            )
            batches[size] = _Batch(staged, {})
        return batches[size]

    def _decode_graph(self, batch: _Batch, variant: Variant) -> tuple[CapturedGraph, Tensor]:
        if variant not in batch.graphs:
            max_keys = FEW_KEYS if variant.few_keys else self._max_keys

            def run() -> Tensor:
                hidden = self._hidden(batch, max_keys)
                return self._drawn(batch, hidden, variant, 0) if variant.draws else hidden

            before = self._last.clone()
            batch.graphs[variant] = self._capturer.capture(run)
            self._last.copy_(before)  # the capture has overwritten the input of the first launch
        return batch.graphs[variant]

    def _draw_graph(
        self, batch: _Batch, variant: Variant, like: Tensor
    ) -> tuple[CapturedGraph, Tensor]:
        variant = variant._replace(few_keys=True)  # there are none
        if variant not in batch.graphs:
            if batch.hidden is None:
                batch.hidden = like.new_zeros((batch.staged.size, like.shape[1]))
            hidden = batch.hidden
            batch.graphs[variant] = self._capturer.capture(
                lambda: self._drawn(batch, hidden, variant, self._half)
            )
        return batch.graphs[variant]

    def _hidden(self, batch: _Batch, max_keys: int) -> Tensor:
        staged = batch.staged
        take_last(self._last, staged.source, staged.inputs, staged.sampling.seen)
        x = self._model.embed_inputs(staged.inputs)
        hidden: Tensor = self._model.run(x, paged_context(self._kv, batch.staged, max_keys))
        return hidden

    def _drawn(self, batch: _Batch, hidden: Tensor, variant: Variant, start: int) -> Tensor:
        """Sample, and store the entries from row `start` on for the next step."""
        sampling = batch.staged.sampling
        stop = start + batch.staged.size

        def pick(logits: Tensor, codebook: int) -> Tensor:
            ids = picked(self._capturer, logits, sampling, codebook, variant.few_candidates)
            if variant.tells:
                self._logprobs[start:stop].copy_(log_probabilities(logits, ids))
            return ids

        entries: Tensor = self._model.draw(hidden, pick)
        self._last[start:stop].copy_(entries)
        return entries


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
