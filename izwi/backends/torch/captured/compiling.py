"""Compile a model's kernels in parallel before its graphs are captured.

Compiling them one by one during capture takes minutes. So all work is first executed once with
each kernel launch replaced by a compilation on another thread.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from izwi.backends.compilations import Compilation, report
from izwi.backends.torch.captured.capturer import CapturedGraph, GraphCapturer

logger = logging.getLogger(__name__)

_MAX_THREADS = 16


class Rehearsal(GraphCapturer):
    """A stand-in for the capturer within `compiling_only`: runs work once, captures nothing.

    No kernel runs, so results are uninitialised memory, and no index may depend on them.

    Attributes:
        peak_bytes: The most memory that one piece of work has allocated on CUDA while it ran: what
            the pool of its graphs needs.
        out_bytes: Memory of all results.
        num_graphs: Pieces of work.
    """

    rehearses = True

    def __init__(self, device: torch.device):
        super().__init__(torch.device("cpu"))
        self.captures = device.type == "cuda"
        self._device = device
        self.peak_bytes = self.out_bytes = self.num_graphs = 0

    @torch.inference_mode()
    def capture(self, run: Callable[[], Tensor]) -> CapturedGraph:
        """Run the work once, so that its kernels are compiled."""
        before = self._allocated_before()
        out = run()
        if self.captures:
            peak = torch.cuda.max_memory_allocated(self._device)
            self.peak_bytes = max(self.peak_bytes, peak - before)
        self.out_bytes += out.nbytes
        self.num_graphs += 1
        return CapturedGraph.repeating(run, out)

    def _allocated_before(self) -> int:
        if not self.captures:
            return 0
        torch.cuda.reset_peak_memory_stats(self._device)
        return torch.cuda.memory_allocated(self._device)


@contextmanager
def compiling_only() -> Iterator[None]:
    """Compile, in parallel, the Triton kernels that this thread launches within; run none.

    They are compiled when the context ends. An error is raised later, at the real launch.
    """
    from triton.runtime._async_compile import AsyncCompileMode
    from triton.runtime.jit import JITFunction

    launch, owner = JITFunction.run, threading.get_ident()

    def compile_or_launch(kernel: Any, *positional: Any, warmup: bool, **named: Any) -> Any:
        here = threading.get_ident() == owner  # another thread's model may be serving
        return launch(kernel, *positional, warmup=warmup or here, **named)

    JITFunction.run = compile_or_launch
    try:
        with (
            ThreadPoolExecutor(min(_MAX_THREADS, _num_cores())) as executor,
            AsyncCompileMode(executor, ignore_errors=True),
        ):
            yield
    finally:
        JITFunction.run = launch


def rehearse(go_through: Callable[[], object]) -> None:
    """Compile the kernels of a call, if this Triton supports it; else capture compiles them.

    Raises:
        torch.OutOfMemoryError: The device is full.
    """
    try:
        with compiling_only():
            go_through()
    except torch.OutOfMemoryError:
        raise
    except Exception:
        logger.warning("kernels are compiled one after the other", exc_info=True)


def watch_triton() -> None:
    """Report all kernels that Triton compiles or loads in this process."""
    import triton

    triton.knobs.compilation.listener = _on_kernel


def _on_kernel(*, src: Any, times: Any, cache_hit: bool, **_: Any) -> None:
    report(Compilation("loaded" if cache_hit else "compiled", _named(src), times.total / 1e6))


def _named(source: Any) -> str:
    """Describe a kernel: its name, constants and argument types."""
    names = getattr(source.fn, "arg_names", [])
    constants = {
        names[place[0]] if place[0] < len(names) else str(place[0]): value
        for place, value in source.constants.items()
    }
    shown = ", ".join(f"{name}={value}" for name, value in constants.items())
    types = ",".join(kind for kind in source.signature.values() if kind != "constexpr")
    aligned = "".join(str(int((place,) in source.attrs)) for place in range(len(names)))
    return f"{source.name}({shown}; {types}; {aligned})"


def _num_cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return os.cpu_count() or 1
