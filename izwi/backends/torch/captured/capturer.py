"""Capture work on a device and launch it again: one launch instead of a thousand.

A graph reads and writes the same addresses in every launch, so batches have fixed sizes with empty
rows, and all inputs that change are in staged buffers, pages and state rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from izwi.backends.compilations import Compilation, report


@dataclass(frozen=True, slots=True, eq=False)
class CapturedGraph:
    """Captured work; on devices without graphs, work that is called again.

    Attributes:
        launch: Runs the work on the current contents of its inputs.
        out: Its result, which the next launch overwrites.
    """

    launch: Callable[[], object]
    out: Tensor

    @classmethod
    def repeating(cls, run: Callable[[], Tensor], out: Tensor) -> CapturedGraph:
        """Return a substitute for a graph, which calls `run` each time."""
        return cls(lambda: out.copy_(run()), out)


class GraphPool:
    """Device memory that graphs share, because only one of them runs at a time.

    The allocator reuses a free block only on the stream that it was allocated on. So all graphs are
    captured on one stream: with a stream each, every graph would keep a working set of its own
    (23 GB for three models of 1.7B, instead of 2 GB).
    """

    def __init__(self, device: torch.device, priority: int = 0):
        """Create an empty pool.

        Args:
            device: A CUDA device.
            priority: Priority of the stream; lower values run first when two pools run at once.
        """
        index = torch.cuda.current_device() if device.index is None else device.index
        self.device = torch.device("cuda", index)
        self.stream = torch.cuda.Stream(device, priority)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.MemPool()
        self._primed_bytes = 0
        self._anchor: torch.cuda.CUDAGraph | None = None

    @contextmanager
    def allocating(self) -> Iterator[None]:
        """Run this thread's work on the pool's stream, in the pool's memory."""
        current = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream), torch.cuda.use_mem_pool(self._pool, self.device):
            yield
        current.wait_stream(self.stream)

    def capture(self, run: Callable[[], object]) -> torch.cuda.CUDAGraph:
        """Capture work on the pool's stream, and launch it once."""
        if self._anchor is None:
            # Torch's allocator of pinned host memory counts the graphs of a pool, and takes no
            # graph for one whose count has come to 0 (`use_count > 0`): so one graph stays when all
            # models are unloaded.
            kept = torch.empty(1, device=self.device)
            self._anchor = self._captured(kept.zero_)
        return self._captured(run)

    def _captured(self, run: Callable[[], object]) -> torch.cuda.CUDAGraph:
        graph, stream = torch.cuda.CUDAGraph(), self.stream
        handle: Any = self._pool.id  # torch has a type of its own for it
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            # other threads may allocate meanwhile
            graph.capture_begin(pool=handle, capture_error_mode="thread_local")
            try:
                run()
            finally:
                graph.capture_end()
            graph.replay()  # the driver allocates at the first launch: now, not while requests wait
        torch.cuda.current_stream(self.device).wait_stream(stream)
        return graph

    def prime(self, num_bytes: int) -> None:
        """Make the pool at least this large, as one block: small ones would not be joined."""
        if num_bytes > self._primed_bytes:
            with self.allocating():
                torch.empty(num_bytes, dtype=torch.uint8, device=self.device)
            self._primed_bytes = num_bytes


class DeviceRoom(Protocol):
    """What a device has left while graphs are captured."""

    def free_bytes(self) -> int:
        """Return what graphs may take of this rank's device."""
        ...

    def least(self, value: int) -> int:
        """Return the least value of all ranks, which call this together."""
        ...


# Left free when no more graphs are captured.
_SPARE_BYTES = 64 << 20


class GraphCapturer:
    """Captures work into graphs that share a pool.

    Attributes:
        captures: Whether graphs are captured; on devices other than CUDA, a launch runs the work.
        rehearses: Whether kernels are only compiled, so that results are meaningless.
    """

    rehearses = False

    def __init__(
        self,
        device: torch.device,
        pool: GraphPool | None = None,
        room: DeviceRoom | None = None,
    ):
        """Set up.

        Args:
            device: Device of the graphs.
            pool: Memory of the graphs on CUDA; None for a pool of their own.
            room: What the device has left; None: there is always room.
        """
        self.captures = device.type == "cuda"
        self._room, self._num_captured, self._largest_bytes = room, 0, 0
        self._pool = pool
        if self.captures and pool is None:
            self._pool = GraphPool(device)

    def prime(self, num_bytes: int) -> None:
        """Prepare for graphs whose largest working set has this size."""
        if self._pool is not None:
            self._pool.prime(num_bytes)

    def has_room(self) -> bool:
        """Whether another graph fits on all ranks, if it takes twice what the largest has taken.

        The driver takes memory for each graph, how much is known only when it is captured.
        """
        if self._room is None:
            return True
        left = self._room.free_bytes() - 2 * self._largest_bytes - _SPARE_BYTES
        return self._room.least(left) >= 0

    @torch.inference_mode()
    def capture(self, run: Callable[[], Tensor]) -> CapturedGraph:
        """Capture `run`.

        `run` is called twice before, to compile kernels and choose algorithms.
        """
        began_s = time.perf_counter()
        before = 0 if self._room is None else self._room.free_bytes()
        captured = self._capture(run)
        if self._room is not None and self._num_captured:  # the first also loads libraries
            self._largest_bytes = max(self._largest_bytes, before - self._room.free_bytes())
        self._num_captured += 1
        report(Compilation("captured", run.__qualname__, time.perf_counter() - began_s))
        return captured

    def _capture(self, run: Callable[[], Tensor]) -> CapturedGraph:
        if self._pool is None:
            return CapturedGraph.repeating(run, run().clone())
        with self._pool.allocating():
            run()
            like = run()
        # outside the pool: nothing in it is kept, and the next graph can use all of it
        out = torch.empty_like(like)
        del like
        graph = self._pool.capture(lambda: out.copy_(run()))
        return CapturedGraph(graph.replay, out)


def fitting(sizes: Seq[int], most: int) -> list[int]:
    """Return the sizes below `most`, followed by `most`."""
    return [*(size for size in sizes if size < most), most]
