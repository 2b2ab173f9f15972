"""Where does the time of a token of chat go? Used by `python -m benchmarks.chat.speed --profile`.

Captured steps are launched alone and timed by device events: the decoder, the head with sampling,
and both. The rest of the loop's time is host time. Kernels overlap, so the profiler's time of a
kernel includes its wait for the previous one; the times from device events do not.
"""

from __future__ import annotations

import cProfile
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.kernels.device_time import device_ms, host_ms, kernel_rows
from izwi.backends.torch.captured.decode_graphs import FEW_KEYS, DecodeGraphs, DecodeKind, DrawKind
from izwi.backends.torch.captured.prompt_graphs import PromptGraphs
from izwi.backends.torch.transfer import HostCopy
from izwi.engine.engine import Engine

_PAGE = 16
_STEPS = 64
Row = dict[str, Any]


@torch.inference_mode()
def token_rows(engine: Engine, sizes: list[int], context: int) -> list[Row]:
    """Measure device time of a captured step and of its parts, after a number of positions."""
    decodes, _ = _graphs(engine)
    rows: list[Row] = []
    for size in sizes:
        batch, drawing = decodes._rows(size), decodes._drawing(0, size)
        assert batch.staged.draws is not None
        pages = range(context // _PAGE + 1)
        batch.staged.stage_runs([(context, context + 1, pages)] * size)
        for staged in (batch.staged.draws, drawing.staged):
            for column, value in (("scale", 0.7), ("top_k", 20), ("top_p", 0.8)):
                staged.host[f"first.{column}"][:] = value
        batch.staged.send()
        drawing.staged.send()
        step = batch.graphs[DecodeKind(context < FEW_KEYS, DrawKind())]
        head = drawing.graphs[DrawKind()]
        step_ms, head_ms = device_ms(step.launch), device_ms(head.launch)
        row: Row = {"profile": "token", "rows": size, "context": context}
        row |= {"step_ms": round(step_ms, 4), "head_and_draw_ms": round(head_ms, 4)}
        row["decoder_ms"] = round(step_ms - head_ms, 4)
        row["launch_on_host_ms"] = round(host_ms(step.launch), 4)
        rows.append(row)
        rows += kernel_rows(step.launch, 12, kernels_of=f"token, {size} rows")
    return rows


@torch.inference_mode()
def prompt_rows(engine: Engine, sizes: list[int], starts: list[int]) -> list[Row]:
    """Measure device time of one captured chunk of a prompt, after a number of positions."""
    _, prompts = _graphs(engine)
    rows: list[Row] = []
    for size in sizes:
        for start in starts:
            one = prompts._graph_for(size)
            if (start + size) > _PAGE * _most_pages(one.staged):
                continue
            pages = range((start + size - 1) // _PAGE + 1)
            one.staged.stage_runs([(start, start + size, pages)])
            one.staged.send()
            taken = device_ms(one.graph.launch)
            row: Row = {"profile": "prompt", "positions": size, "behind": start}
            row |= {"ms": round(taken, 3), "positions_per_s": round(1e3 * size / taken)}
            rows.append(row)
        rows += kernel_rows(one.graph.launch, 6, kernels_of=f"prompt, {size} behind {start}")
    return rows


def loop_row(engine: Engine, submit: Callable[[], None], rows: int) -> Row:
    """Measure the loop's steps while all rows decode, and how long they wait for the device."""
    submit()
    begun: set[str] = set()
    while len(begun) < rows:
        begun |= {chunk.request_id for chunk in engine.step() if len(chunk.entries)}
    waited = 0.0
    wait = HostCopy.wait

    def timed(self: HostCopy) -> list[torch.Tensor]:
        nonlocal waited
        began = time.perf_counter()
        try:
            return wait(self)
        finally:
            waited += time.perf_counter() - began

    HostCopy.wait = timed  # type: ignore[method-assign]
    try:
        began = time.perf_counter()
        for _ in range(_STEPS):
            engine.step()
        taken = time.perf_counter() - began
    finally:
        HostCopy.wait = wait  # type: ignore[method-assign]
    while engine.has_work:
        engine.step()
    row: Row = {"profile": "loop", "rows": rows, "step_ms": round(1e3 * taken / _STEPS, 4)}
    return row | {"of_it_waiting_for_the_device_ms": round(1e3 * waited / _STEPS, 4)}


def host_rows(engine: Engine, submit: Callable[[], None], rows: int, most: int = 16) -> list[Row]:
    """Return host functions by their own time in a step; the profiler makes all of them slower."""
    submit()
    begun: set[str] = set()
    while len(begun) < rows:
        begun |= {chunk.request_id for chunk in engine.step() if len(chunk.entries)}
    profiler = cProfile.Profile()
    profiler.enable()
    for _ in range(_STEPS):
        engine.step()
    profiler.disable()
    while engine.has_work:
        engine.step()
    entries = sorted(profiler.getstats(), key=lambda entry: -entry.inlinetime)[:most]
    return [
        {
            "host_step_of": rows,
            "function": str(getattr(entry.code, "co_qualname", entry.code))[:70],
            "calls": round(entry.callcount / _STEPS, 1),
            "us": round(1e6 * entry.inlinetime / _STEPS, 1),
        }
        for entry in entries
    ]


def _graphs(engine: Engine) -> tuple[DecodeGraphs, PromptGraphs]:
    graphs = next(iter(engine._workers.values())).runner._graphs
    assert graphs is not None
    assert isinstance(graphs.decodes, DecodeGraphs)
    assert graphs.prompts is not None
    return graphs.decodes, graphs.prompts


def _most_pages(staged: Any) -> int:
    return len(staged.host["tables"]) // int(staged.size)
