"""Captured steps on a CPU in torch: the runner's graphs, staging and order, without a kernel.

The kernels are tested by themselves; Triton's interpreter takes minutes for a model.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from izwi.backends.torch.ops import TorchOps
from izwi.backends.torch.triton import sampling as triton_sampling
from izwi.backends.torch.triton.attention_decode import PagedDecode
from izwi.backends.torch.triton.sampling import RowSampling
from izwi.backends.torch.triton.short_conv import StagedConv


class EagerOps(TorchOps):
    """Operations whose captured steps are run again each time, by torch."""

    captures = True

    def __init__(self) -> None:
        super().__init__("cpu", torch.float32)
        self.attends_with = "triton"

    def attention(self, *of: Any, context: Any, **more: Any) -> Tensor:
        context = context.in_torch if isinstance(context, PagedDecode) else context
        return super().attention(*of, context=context, **more)

    def short_conv(self, x: Tensor, weight: Tensor, *, context: Any, layer: int) -> Tensor:
        if isinstance(context, PagedDecode):
            assert context.conv is not None
            return convolved(context.conv, layer, x, weight)
        return super().short_conv(x, weight, context=context, layer=layer)


@contextmanager
def drawn_by_torch() -> Iterator[None]:
    """Draw and stage without kernels while it lasts; no launch may fail.

    A runner runs the rows of a failed launch as plain steps, which would hide the error.
    """
    from izwi.backends.torch.captured.graphs import Graphs  # its kernels need triton

    failed: list[Exception] = []
    launch = Graphs.launch

    def draw(logits: Tensor, rows: RowSampling, codebook: int, few_candidates: bool) -> Tensor:
        del few_candidates
        return triton_sampling._draw_sorted(logits, rows, codebook)

    def noted(self: Any, batch: Any) -> Any:
        try:
            return launch(self, batch)
        except Exception as error:
            failed.append(error)
            raise

    with (
        patch.object(Graphs, "launch", noted),
        patch("izwi.backends.torch.captured.decode_graphs.draw", draw),
        patch("izwi.backends.torch.captured.decode_graphs.take_last", take_last),
        patch("izwi.backends.torch.captured.decode_graphs.add_last", add_last),
    ):
        yield
    if failed:
        raise failed[0]


def take_last(last: Tensor, source: Tensor, inputs: Tensor) -> None:
    """`triton_sampling.take_last`, row by row."""
    for row, place in enumerate(source.tolist()):
        if place >= 0:
            inputs[row, : last.shape[1]] = last[place]


def add_last(first_ids: Tensor, drawn: Tensor, seen: Tensor) -> None:
    """`triton_sampling.add_last`, row by row."""
    for row, place in enumerate(drawn.tolist()):
        if place >= 0:
            first = int(first_ids[place])
            assert first >= 0, "an entry of another track"
            seen[row, first // 32] |= torch.tensor(1 << first % 32).to(torch.int32)


def convolved(
    conv: StagedConv,
    layer: int,
    x: Tensor,
    weight: Tensor,
    gates: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """`StagedConv.convolve`, position by position: every input is kept, the last of a column stays.

    Rows of a run come in the order of their positions, so that what a row looks back for is there.
    """
    plane, (channels, width) = conv.trailers.plane[layer], weight.shape
    x = x if gates is None else x * gates[0]
    out = torch.zeros(len(x), channels, dtype=x.dtype)
    known: dict[tuple[int, int], Tensor] = {}  # inputs of this step, by run and position
    runs = range(len(x)) if conv.runs is None else conv.runs.tolist()
    before = plane.clone()

    def column(run: int, position: int) -> int:
        page = int(conv.tables[run * int(conv.table_width) + position // conv.trailers.page_size])
        return page * width + position % conv.trailers.page_size % width

    for row, (run, position) in enumerate(zip(runs, conv.positions.tolist(), strict=True)):
        if position < 0:
            continue
        known[run, position] = x[row]
        total = x[row].float() * weight[:, -1].float()
        for back in range(1, min(width - 1, position) + 1):
            earlier = known.get((run, position - back))
            if earlier is None:
                earlier = before[column(run, position - back)]
            total = total + earlier.float() * weight[:, width - 1 - back].float()
        out[row] = total.to(x.dtype)
        plane[column(run, position)] = x[row]
    return out if gates is None else out * gates[1]
