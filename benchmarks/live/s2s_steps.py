"""Time captured steps of a model with two tracks by device events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.kernels.device_time import device_ms
from izwi.backends.torch.captured.decode_graphs import DecodeGraphs, DecodeKind, DrawKind
from izwi.engine.engine import Engine

_CONTEXT = 300  # positions before the new one
_PAGE = 16


@torch.inference_mode()
def step_rows(engine: Engine, sizes: list[int], floors_s: list[float]) -> list[dict[str, Any]]:
    """Time a text step, a frame step, and the codec's chunks.

    Args:
        engine: An engine with one model.
        sizes: Numbers of rows of a step.
        floors_s: Seconds in which the weights of each step can be read.
    """
    graphs = next(iter(engine._workers.values())).runner._graphs
    assert graphs is not None
    assert graphs.codec is not None
    decodes = graphs.decodes
    assert decodes is not None
    rows = []
    for size in sizes:
        row: dict[str, Any] = {"steps_of": size}
        for track, name in enumerate(("text", "frame")):
            row[f"{name}_step_ms"] = round(device_ms(_step(decodes, size, track)), 4)
            row[f"{name}_floor_ms"] = round(1e3 * floors_s[track], 3)
            alone = decodes._drawing(track, size).graphs[DrawKind(track)]
            row[f"{name}_draw_ms"] = round(device_ms(alone.launch), 4)
        codec = graphs.codec
        for frames in codec._frames:
            batch = codec._graph(next(s for s in codec._sizes if s >= size), frames)
            row[f"codec_{frames}_ms"] = round(device_ms(batch.graph.launch), 3)
        rows.append(row)
    return rows


def _step(decodes: DecodeGraphs, size: int, track: int) -> Callable[[], object]:
    """Return what a step runs if all its rows draw on one track."""
    batch, drawing, kind = decodes._rows(size), decodes._drawing(track, size), DrawKind(track)
    batch.staged.stage_runs([(_CONTEXT, _CONTEXT + 1, range(_CONTEXT // _PAGE + 1))] * size)
    for staged in (batch.staged.draws, drawing.staged):
        for which in ("first", "rest") if staged is not None else ():
            for column, value in (("scale", float(track)), ("top_k", 4), ("top_p", 1.0)):
                staged.host[f"{which}.{column}"][:] = value
    batch.staged.send()
    drawing.staged.send()
    if batch.staged.draws is not None:
        return batch.graphs[DecodeKind(True, kind)].launch
    states, drawn = batch.graphs[DecodeKind(True, None)], drawing.graphs[kind]

    def run() -> None:
        states.launch()
        drawing.room(states.out).copy_(states.out)
        drawn.launch()

    return run
