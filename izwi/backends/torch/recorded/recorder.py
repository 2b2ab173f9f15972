"""Record work on a device once and repeat it: one launch where there were a thousand.

A graph reads and writes the same addresses in every replay, so batches come in fixed sizes with
empty places, and everything that changes lies in staged buffers, pages and state rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from izwi.runner.compilations import Compilation, report


class Recorded(Protocol):
    """What `capture` gives."""

    def replay(self) -> None:
        """Run it again over what its inputs hold now."""
        ...


@dataclass(slots=True)
class Repeated:
    """Stands for a graph on devices that have none."""

    run: Callable[[], Tensor]
    out: Tensor

    def replay(self) -> None:
        """Run it again."""
        self.out.copy_(self.run())


class GraphRecorder:
    """Records work into graphs that share one pool of memory, since one runs at a time.

    Attributes:
        records: Whether it does; elsewhere than on CUDA work is run again each time.
        rehearses: Whether kernels are compiled alone and their results mean nothing.
    """

    rehearses = False

    def __init__(self, device: torch.device, priority: int = 0):
        """Start a pool.

        Args:
            device: Where.
            priority: Of the recorded work on CUDA; less goes first where two pools run at once.
        """
        self._device, self._priority = device, priority
        self.records = device.type == "cuda"
        self._pool = torch.cuda.graph_pool_handle() if self.records else None

    @torch.inference_mode()
    def capture(self, run: Callable[[], Tensor]) -> tuple[Recorded, Tensor]:
        """Record `run`, and return it with the tensor that holds its result after a replay.

        It runs twice before, so that kernels are compiled and algorithms chosen.
        """
        began_s = time.perf_counter()
        recorded = self._capture(run)
        report(Compilation("recorded", run.__qualname__, time.perf_counter() - began_s))
        return recorded

    def _capture(self, run: Callable[[], Tensor]) -> tuple[Recorded, Tensor]:
        if self._pool is None:
            out = run().clone()
            return Repeated(run, out), out
        stream = torch.cuda.Stream(self._device, self._priority)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            for _ in range(2):
                run()
        torch.cuda.current_stream(self._device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # other threads may allocate meanwhile
        with torch.cuda.graph(
            graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"
        ):
            out = run()
        return graph, out


def fitting(sizes: Seq[int], most: int) -> list[int]:
    """The sizes below `most`, and `most`."""
    return [*(size for size in sizes if size < most), most]
