"""Prompts as captured graphs: each position is a separate row, as in a decode step."""

from __future__ import annotations

import logging
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
from torch import Tensor

from izwi.backends.torch.captured.capturer import CapturedGraph, GraphCapturer
from izwi.backends.torch.captured.decode_graphs import most_pages, paged_context
from izwi.backends.torch.captured.staging import StagedPositions, rotary_fields
from izwi.backends.torch.kv import PagedKV
from izwi.model.protocol import CapturableModel
from izwi.model.step_batch import Row

# Numbers of positions. Without a graph, launches dominate the time of a prompt of any length here.
_SIZES = (16, 32, 64, 128, 256, 384, 512, 768, 1024, 1536, 2048)
# In this order they are captured, as long as there is memory: the largest, then what leaves no
# prompt much smaller than its graph.
_BY_USE = (2048, 512, 128, 32, 1024, 256, 64, 16, 1536, 768, 384)

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Prompts:
    """The buffers and the graph for one number of positions."""

    staged: StagedPositions
    x: Tensor
    graph: CapturedGraph


class PromptGraphs:
    """Runs chunks of prompts, after any number of earlier positions, in one launch.

    Ids are embedded within the graph; other inputs, like audio, are embedded before, without one.
    """

    def __init__(
        self,
        model: CapturableModel,
        kv: PagedKV,
        capturer: GraphCapturer,
        max_runs: int,
    ):
        """Set up; nothing is captured yet.

        Args:
            model: The model.
            kv: The model's pages.
            capturer: Captures the graphs.
            max_runs: Maximum number of sequences of a step.
        """
        assert kv.plain is not None
        self._model, self._kv = model, kv
        self._capturer, self._device = capturer, kv.plain[0].device
        self._max_runs = max_runs
        self._prompts: dict[int, _Prompts] = {}
        self._sizes: Seq[int] = _SIZES  # of the graphs there are, or that are captured when needed

    def takes(self, rows: Seq[Row]) -> bool:
        """Return whether these positions can be run with a graph."""
        few = len(rows) <= self._max_runs
        most = self._sizes[-1] if self._sizes else 0
        if not few or sum(row.stop - row.start for row in rows) > most:
            return False
        # images turn by three axes and have wider inputs
        return not self._kv.spec.rope_sections or self._model.inputs(rows) is not None

    def run(self, rows: Seq[Row]) -> Tensor:
        """Run packed positions; return (positions, width) states, valid until the next call."""
        count = sum(row.stop - row.start for row in rows)
        prompts = self._graph_for(next(size for size in self._sizes if size >= count))
        inputs = self._model.inputs(rows)
        if inputs is None:
            prompts.x[:count].copy_(self._model.embed(rows))
        prompts.staged.stage_rows(inputs, rows)
        prompts.staged.send()
        prompts.graph.launch()
        return prompts.graph.out[:count]

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Capture the graphs of all sizes, or of those for which the device has memory.

        Prompts then run in the next larger graph, and longer ones without.
        """
        for size in _BY_USE:
            if not self._capturer.has_room():
                break
            self._graph_for(size)
        self._sizes = sorted(self._prompts)
        if missing := [size for size in _SIZES if size not in self._prompts]:
            logger.warning("no memory is left for graphs of %s positions", missing)

    def _graph_for(self, size: int) -> _Prompts:
        if size not in self._prompts:
            model = self._model
            max_pages = most_pages(model, self._kv)
            staged = StagedPositions(
                size,
                model.num_inputs,
                max_pages,
                self._device,
                rotary_fields(self._kv.spec, size),
                max_runs=self._max_runs,
            )
            x = torch.zeros_like(model.embed_inputs(staged.inputs))

            def run() -> Tensor:
                embedded = torch.where(staged.embedded, x, model.embed_inputs(staged.inputs))
                context = paged_context(self._kv, staged, model.max_positions, together=True)
                states: Tensor = model.run(embedded, context)
                return states

            self._prompts[size] = _Prompts(staged, x, self._capturer.capture(run))
        return self._prompts[size]
