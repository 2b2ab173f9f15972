"""Prompts as recorded graphs: every position is a row of its own, as in a decode step."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
from torch import Tensor

from izwi.backends.torch.kv import PagedKV
from izwi.backends.torch.recorded.decode_graphs import most_pages, paged_context
from izwi.backends.torch.recorded.recorder import GraphRecorder, Recorded
from izwi.backends.torch.recorded.staging import StagedPositions
from izwi.model import RecordableModel, Row

# Positions of a step. Unrecorded, a prompt takes as long as its launches, whatever its length.
_SIZES = (16, 32, 64, 128, 256, 384, 512, 768, 1024, 1536, 2048)


@dataclass(slots=True, eq=False)
class _Prompts:
    """One number of positions: its buffers and its graph."""

    staged: StagedPositions
    x: Tensor
    graph: Recorded
    out: Tensor


class PromptGraphs:
    """Prompts through the model in one launch, behind any number of earlier positions.

    What is ids is embedded there too; what is not, like sound, was embedded before, unrecorded.
    """

    def __init__(
        self,
        model: RecordableModel,
        kv: PagedKV,
        recorder: GraphRecorder,
        device: torch.device,
    ):
        self._model, self._kv = model, kv
        self._recorder, self._device = recorder, device
        self._prompts: dict[int, _Prompts] = {}

    def takes(self, rows: Seq[Row]) -> bool:
        """Whether these positions can be run here."""
        return sum(row.stop - row.start for row in rows) <= _SIZES[-1]

    def run(self, rows: Seq[Row]) -> Tensor:
        """Run packed positions; (positions, width) states, valid until the next call."""
        count = sum(row.stop - row.start for row in rows)
        prompts = self._of(next(size for size in _SIZES if size >= count))
        inputs = self._model.inputs(rows)
        if inputs is None:
            prompts.x[:count].copy_(self._model.embed(rows))
        prompts.staged.stage_rows(inputs, rows)
        prompts.staged.send()
        prompts.graph.replay()
        return prompts.out[:count]

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Record all sizes."""
        for size in reversed(_SIZES):
            self._of(size)

    def _of(self, size: int) -> _Prompts:
        if size not in self._prompts:
            model = self._model
            max_pages = most_pages(model, self._kv)
            staged = StagedPositions(size, model.num_inputs, max_pages, self._device, together=True)
            x = torch.zeros_like(model.embed_inputs(staged.inputs))

            def run() -> Tensor:
                embedded = torch.where(staged.embedded, x, model.embed_inputs(staged.inputs))
                context = paged_context(self._kv, staged, model.max_positions, together=True)
                states: Tensor = model.run(embedded, context)
                return states

            self._prompts[size] = _Prompts(staged, x, *self._recorder.capture(run))
        return self._prompts[size]
