"""Time captured steps of a model with two tracks by device events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.kernels.device_time import device_ms
from izwi.backends.torch.captured.tracked_graphs import TrackedDecodeGraphs
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
    assert isinstance(decodes, TrackedDecodeGraphs)
    rows = []
    for size in sizes:
        row: dict[str, Any] = {"steps_of": size}
        for track, name in enumerate(("text", "frame")):
            row[f"{name}_step_ms"] = round(device_ms(_step(decodes, size, track)), 4)
            row[f"{name}_floor_ms"] = round(1e3 * floors_s[track], 3)
            draws = decodes._drawing(track, size)
            alone = decodes._draw_graph(track, draws, True)[0]
            row[f"{name}_draw_ms"] = round(device_ms(alone.replay), 4)
        codec = graphs.codec
        for frames in codec._frames:
            batch = codec._graph(next(s for s in codec._sizes if s >= size), frames)
            row[f"codec_{frames}_ms"] = round(device_ms(batch.graph.replay), 3)
        rows.append(row)
    return rows


def _step(decodes: TrackedDecodeGraphs, size: int, track: int) -> Callable[[], None]:
    """Return what a step runs if all its rows draw on one track."""
    batch, draws = decodes._rows(size), decodes._drawing(track, size)
    batch.staged.stage_runs([(_CONTEXT, _CONTEXT + 1, range(_CONTEXT // _PAGE + 1))] * size)
    batch.staged.send()
    for which in ("first", "rest"):
        for column, value in (("scale", float(track)), ("top_k", 4), ("top_p", 1.0)):
            draws.staged.host[f"{which}.{column}"][:] = value
    draws.staged.send()
    if (True, track) in batch.graphs:
        return batch.graphs[True, track][0].replay
    states, hidden = batch.graphs[True, None]
    drawn, _ = decodes._draw_graph(track, draws, True)

    def run() -> None:
        states.replay()
        decodes._take_states(track, hidden)
        drawn.replay()

    return run
