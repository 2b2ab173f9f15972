"""Compile the kernels of a model side by side, before any of them is recorded.

One after the other, as recording meets them, the kernels of a model take minutes. So everything is
gone through once before, with every launch replaced by a compilation on another thread.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from izwi.runner.recorder import GraphRecorder, Recorded, Repeated

logger = logging.getLogger(__name__)

_MAX_THREADS = 16


class Rehearsal(GraphRecorder):
    """In place of a recorder, inside `compiling_only`: work is run once and not recorded.

    What kernels were to write is then whatever lies in memory, so no index may depend on it.
    """

    rehearses = True

    @torch.inference_mode()
    def capture(self, run: Callable[[], Tensor]) -> tuple[Recorded, Tensor]:
        """Run the work, for what it launches."""
        out = run()
        return Repeated(run, out), out


@contextmanager
def compiling_only() -> Iterator[None]:
    """Compile, side by side, the Triton kernels that this thread launches inside; run none.

    They are compiled when it ends. One that fails says so where it is launched in earnest.
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
    """Compile what is launched in a call, if this Triton can; otherwise recording compiles it."""
    try:
        with compiling_only():
            go_through()
    except Exception:
        logger.warning("kernels are compiled one after the other", exc_info=True)


def kept_kernels() -> tuple[Path, int] | None:
    """Folder in which Triton keeps compiled kernels, and how many are there; None without Triton.

    It tells them apart by their source, Triton's version, the device and what they are compiled
    for, so one folder serves all models and versions.
    """
    try:
        import triton
    except ImportError:
        return None
    folder = Path(triton.knobs.cache.dir)
    return folder, sum(1 for _ in folder.glob("*/*.cubin"))


def _num_cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return os.cpu_count() or 1
