"""Time of a launch: on the device, on the host, and by kernel."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

_REPEATS = 30
_LAUNCHES = 20


def device_ms(run: Callable[[], object]) -> float:
    """Return the mean device time of one run, in milliseconds."""
    for _ in range(3):
        run()
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    began.record()
    for _ in range(_REPEATS):
        run()
    ended.record()
    ended.synchronize()
    return float(began.elapsed_time(ended)) / _REPEATS


def host_ms(launch: Callable[[], object]) -> float:
    """Return the median host time of a launch to an idle device, in milliseconds."""
    taken: list[float] = []
    for _ in range(_LAUNCHES):
        torch.cuda.synchronize()
        began = time.perf_counter()
        launch()
        taken.append(1e3 * (time.perf_counter() - began))
    return sorted(taken)[len(taken) // 2]


def kernel_rows(run: Callable[[], object], most: int, **labels: object) -> list[dict[str, Any]]:
    """List the kernels of one run by their time, which includes waits for each other.

    Args:
        run: Launches the kernels.
        most: Maximum number of rows.
        labels: First columns of each row, which name the run.
    """
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as result:
        run()
        torch.cuda.synchronize()
    events = sorted(result.key_averages(), key=lambda e: -e.self_device_time_total)[:most]
    return [
        {
            **labels,
            "kernel": event.key[:70],
            "calls": event.count,
            "us": round(event.self_device_time_total, 1),
        }
        for event in events
    ]
