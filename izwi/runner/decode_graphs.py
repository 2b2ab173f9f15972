"""Decode steps as recorded graphs: talker or decoder, the other codebooks, and drawing."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from izwi.cache.kv import PagedKV
from izwi.cache.pages import pages_for
from izwi.model import Model, Row
from izwi.ops.attention.triton_decode import DecodeCache, PagedDecode, rope_tables
from izwi.ops.attention.triton_prompt import PagedPrompt
from izwi.ops.protocol import AttentionContext
from izwi.ops.triton_sampling import MAX_VOCABULARY, draw, take_last
from izwi.request import Sequence
from izwi.runner.recorder import Recorded, Recorder, fitting
from izwi.runner.sampler import Suppressed
from izwi.runner.staging import StagedPositions, StagedRows, is_narrow

# Batch sizes. Between them a step takes as long as the next larger one.
_SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128)
# Sequences with more keys go through attention that is split along the keys.
FEW_KEYS = 512


def paged_context(
    kv: PagedKV, staged: StagedPositions, max_keys: int, *, together: bool = False
) -> AttentionContext:
    """Attention over the pages that staged rows name; see `PagedDecode`.

    Args:
        kv: The pages.
        staged: Positions and tables, read in every replay.
        max_keys: Bound of the keys that a row has.
        together: Rows may be positions of one sequence: all are written before any attends.
    """
    assert kv.plain is not None
    (keys, values), spec, rope = kv.plain, kv.spec, None
    if spec.rope_theta is not None:
        rope = rope_tables(max_keys, spec.head_dim, spec.rope_theta, keys.device, keys.dtype)
    cache = DecodeCache(keys, values, kv.page_size)
    rows = staged.positions, staged.tables, staged.table_width
    if together:
        return PagedPrompt(cache, *rows, rope, max_keys, staged.runs)
    return PagedDecode(cache, *rows, rope, max_keys)


@dataclass(slots=True, eq=False)
class _Batch:
    """One batch size: its buffers, and its graphs by what they were recorded for."""

    staged: StagedRows
    graphs: dict[tuple[bool, ...], tuple[Recorded, Tensor]]
    hidden: Tensor | None = None  # what a graph that only draws reads


class DecodeGraphs:
    """Steps of rows with one new position each, drawing included, on the device alone.

    What is drawn stays there for the next step, which may be launched before the host knows it.

    `decode` and `draw` have buffers of their own, so that neither waits for the other's copies.
    """

    def __init__(
        self,
        model: Model,
        kv: PagedKV,
        recorder: Recorder,
        max_rows: int,
        suppressed: Suppressed | None,
        device: torch.device,
    ):
        self._model, self._kv, self._recorder = model, kv, recorder
        self._suppressed, self._device = suppressed, device
        self._sizes = fitting(_SIZES, max_rows)
        self._decodes: dict[int, _Batch] = {}
        self._draws: dict[int, _Batch] = {}
        # entries of the last step: of `decode` in the first half, of `draw` in the second
        self._half = self._sizes[-1]
        shape = 2 * self._half, model.num_codebooks
        self._last = torch.zeros(shape, dtype=torch.int64, device=device)
        self._places: dict[int, int] = {}  # there, by arrival
        self._drawn_now: dict[int, int] = {}

    def begin_step(self) -> None:
        """Let `decode` take what was drawn since the last call as the rows' last entries."""
        self._places, self._drawn_now = self._drawn_now, {}

    def takes(self, sequences: Seq[Sequence]) -> bool:
        """Whether the next entries of all of them can be drawn here."""
        return self._model.vocabulary <= MAX_VOCABULARY or all(
            is_narrow(sequence.request) for sequence in sequences
        )

    def in_place(self, rows: Seq[Row]) -> list[Row]:
        """The order in which `decode` takes rows with the least to copy."""
        return self._batch(self._decodes, len(rows)).staged.in_place(rows)

    def decode(self, inputs: npt.NDArray[np.int64], rows: Seq[Row]) -> Tensor:
        """Draw entries.

        Args:
            inputs: `Model.inputs` of the rows.
            rows: One position each, which emits. Where the entry there is not known yet, the step
                before has drawn it.

        Returns:
            (rows, codebooks) int64, valid until the next call.
        """
        batch = self._batch(self._decodes, len(rows))
        sequences = [row.sequence for row in rows]
        batch.staged.stage_rows(inputs, rows)
        batch.staged.stage_sampling(sequences)
        places = self._places
        batch.staged.stage_sources(
            [places[s.arrival] if s.coming.entries else -1 for s in sequences]
        )
        batch.staged.send()
        self._drawn_now.update({s.arrival: place for place, s in enumerate(sequences)})
        few_keys = max(row.stop for row in rows) <= FEW_KEYS
        graph, out = self._decode_graph(batch, batch.staged.narrow, few_keys)
        graph.replay()
        return out[: len(rows)]

    def draw(self, hidden: Tensor, sequences: Seq[Sequence]) -> Tensor:
        """Draw an entry from each state, (rows, width) -> (rows, codebooks) int64."""
        batch = self._batch(self._draws, len(sequences))
        batch.staged.stage_sampling(sequences)
        batch.staged.send()
        self._drawn_now.update((s.arrival, p) for p, s in enumerate(sequences, self._half))
        graph, out = self._draw_graph(batch, batch.staged.narrow, hidden)
        assert batch.hidden is not None
        batch.hidden[: len(sequences)].copy_(hidden)
        graph.replay()
        return out[: len(sequences)]

    @torch.inference_mode()
    def warm_up(self) -> Tensor:
        """Record what most requests need; returns states, (rows, width), of no meaning."""
        for size in reversed(self._sizes):  # the largest first: the others fit into its memory
            batch = self._batch(self._decodes, size)
            self._decode_graph(batch, True, True)
            hidden = self._hidden(batch, FEW_KEYS)
            self._draw_graph(self._batch(self._draws, size), True, hidden)
        return hidden

    def _batch(self, batches: dict[int, _Batch], count: int) -> _Batch:
        size = next(size for size in self._sizes if size >= count)
        if size not in batches:
            model = self._model
            staged = StagedRows(
                size,
                num_inputs=model.num_inputs,
                max_pages=most_pages(model, self._kv) if batches is self._decodes else 0,
                vocabulary=model.vocabulary,
                suppressed=self._suppressed,
                device=self._device,
            )
            batches[size] = _Batch(staged, {})
        return batches[size]

    def _decode_graph(self, batch: _Batch, narrow: bool, few_keys: bool) -> tuple[Recorded, Tensor]:
        if (narrow, few_keys) not in batch.graphs:
            max_keys = FEW_KEYS if few_keys else self._model.max_positions

            def run() -> Tensor:
                return self._drawn(batch, self._hidden(batch, max_keys), narrow, 0)

            batch.graphs[narrow, few_keys] = self._recorder.capture(run)
        return batch.graphs[narrow, few_keys]

    def _draw_graph(self, batch: _Batch, narrow: bool, like: Tensor) -> tuple[Recorded, Tensor]:
        if (narrow,) not in batch.graphs:
            if batch.hidden is None:
                batch.hidden = like.new_zeros((batch.staged.size, like.shape[1]))
            hidden = batch.hidden
            batch.graphs[narrow,] = self._recorder.capture(
                lambda: self._drawn(batch, hidden, narrow, self._half)
            )
        return batch.graphs[narrow,]

    def _hidden(self, batch: _Batch, max_keys: int) -> Tensor:
        staged = batch.staged
        take_last(self._last, staged.source, staged.inputs, staged.sampling.seen)
        x = self._model.embed_inputs(staged.inputs)
        hidden: Tensor = self._model.run(x, paged_context(self._kv, batch.staged, max_keys))
        return hidden

    def _drawn(self, batch: _Batch, hidden: Tensor, narrow: bool, start: int) -> Tensor:
        """Draw, and keep what was drawn from `start` on for the next step."""
        sampling = batch.staged.sampling

        def pick(logits: Tensor, codebook: int) -> Tensor:
            return draw(logits, sampling, codebook, narrow)

        entries: Tensor = self._model.draw(hidden, pick)
        self._last[start : start + len(entries)].copy_(entries)
        return entries


def most_pages(model: Model, kv: PagedKV) -> int:
    """Pages that one sequence can have."""
    return min(kv.num_pages, pages_for(model.max_positions, kv.page_size))
