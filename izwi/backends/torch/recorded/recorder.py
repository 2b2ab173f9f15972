"""Record work on a device once and replay it: one launch instead of a thousand.

A graph reads and writes the same addresses in every replay, so batches have fixed sizes with empty
rows, and all inputs that change are in staged buffers, pages and state rows.
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
    """A recorded graph, as returned by `capture`."""

    def replay(self) -> None:
        """Run the work again on the current contents of its inputs."""
        ...


@dataclass(slots=True)
class Repeated:
    """Substitute for a graph on devices without graphs."""

    run: Callable[[], Tensor]
    out: Tensor

    def replay(self) -> None:
        """Run the work again."""
        self.out.copy_(self.run())


class GraphRecorder:
    """Records work into graphs that share a memory pool, because only one runs at a time.

    Attributes:
        records: Whether graphs are recorded; on devices other than CUDA, a replay runs the work.
        rehearses: Whether kernels are only compiled, so that results are meaningless.
    """

    rehearses = False

    def __init__(self, device: torch.device, priority: int = 0):
        """Create a pool.

        Args:
            device: Device of the graphs.
            priority: CUDA stream priority; lower values run first when two pools run at once.
        """
        self._device, self._priority = device, priority
        self.records = device.type == "cuda"
        self._pool = torch.cuda.graph_pool_handle() if self.records else None

    @torch.inference_mode()
    def capture(self, run: Callable[[], Tensor]) -> tuple[Recorded, Tensor]:
        """Record `run`; return the graph and the tensor that holds its result after a replay.

        `run` is called twice before, to compile kernels and choose algorithms.
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
    """Return the sizes below `most`, followed by `most`."""
    return [*(size for size in sizes if size < most), most]
