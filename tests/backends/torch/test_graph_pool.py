"""A pool of graphs takes new ones after its last one was freed, as when a server changes models."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import count
from typing import Any

import pytest
import torch

from izwi.backends.torch.captured import capturer
from izwi.backends.torch.captured.capturer import GraphCapturer, GraphPool


class FakeCuda:
    """What of `torch.cuda` captures graphs, with the counts of torch's pinned host memory.

    Source: torch 2.13, ATen/core/CachingHostAllocator.h, `create_or_incref_pool_under_lock`.
    """

    def __init__(self) -> None:
        ids, self.counts, self.captured = count(1), dict[int, int](), list[Any]()
        host = self

        class MemPool:
            def __init__(self) -> None:
                self.id = next(ids)

        class CUDAGraph:
            def capture_begin(self, pool: int, capture_error_mode: str) -> None:
                assert host.counts.get(pool) != 0, "use_count > 0"
                host.counts[pool] = host.counts.get(pool, 0) + 1
                self._pool = pool
                host.captured.append(self)

            def capture_end(self) -> None:
                pass

            def replay(self) -> None:
                pass

            def reset(self) -> None:
                host.counts[self._pool] -= 1

        class Stream:
            def __init__(self, *of: Any) -> None:
                pass

            def wait_stream(self, other: Any) -> None:
                pass

        self.MemPool, self.CUDAGraph, self.Stream = MemPool, CUDAGraph, Stream

    def current_stream(self, device: Any) -> Any:
        return self.Stream()

    def current_device(self) -> int:
        return 0

    def stream(self, stream: Any) -> Any:
        return nullcontext()

    def use_mem_pool(self, pool: Any, device: Any) -> Any:
        return nullcontext()


class FakeTorch:
    """Torch with a CUDA device whose arrays are on the host."""

    def __init__(self, cuda: FakeCuda):
        self.cuda = cuda

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def device(self, kind: str, index: int = 0) -> torch.device:
        return torch.device("cpu")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    monkeypatch.setattr(capturer, "torch", FakeTorch(fake))
    return fake


def test_a_pool_takes_graphs_after_its_last_one_was_freed(cuda: FakeCuda) -> None:
    device = torch.device("cuda", 0)
    pool = GraphPool(device)
    steps = GraphCapturer(device, pool)
    for _ in range(2):  # a model is loaded and unloaded, then another
        made = [steps.capture(lambda: torch.ones(2)) for _ in range(3)]
        for graph in made:
            assert graph.out.tolist() == [1.0, 1.0]
            graph.launch.__self__.reset()  # what its destructor does
    assert list(cuda.counts.values()) == [1]  # the graph that the pool keeps
    assert len(cuda.captured) == 1 + 2 * 3


def test_a_pool_without_graphs_keeps_none(cuda: FakeCuda) -> None:
    GraphPool(torch.device("cuda", 0))
    assert cuda.captured == []
