"""Overlap of consecutive Triton kernels on the device.

With programmatic dependent launch a kernel's programs start while the kernel before it still runs.
A kernel may then do what does not depend on other kernels, such as prefetching its weights, and
must wait before it reads or writes anything else. Every kernel launched this way waits, because the
wait of its successor covers only the kernel right before it.
"""

from __future__ import annotations

# ruff: noqa: N803 (constants of a kernel are upper case)
# mypy: allow-untyped-decorators, allow-untyped-calls, allow-untyped-defs, allow-incomplete-defs
from functools import lru_cache

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

# Set to False to launch each kernel after the end of the one before it.
overlap_launches = True

# Cache lines of each weight row that are prefetched before the previous kernel has ended.
_PREFETCHED_LINES = 32
_LINE_BYTES = 128

INTERPRETED: bool = triton.knobs.runtime.interpret


def overlap_option(device: torch.device) -> dict[str, bool]:
    """Return the launch option that lets a kernel start before its predecessor ends; may be {}.

    A kernel launched with it must call `wait_for_previous`, in every program.
    """
    if overlap_launches and not INTERPRETED and _has_dependent_launch(device):
        return {"launch_pdl": True}
    return {}


@lru_cache
def _has_dependent_launch(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9


def lines_of(num_bytes: int) -> int:
    """Return the cache lines of a weight row to prefetch, a power of two; the last may repeat."""
    lines = triton.next_power_of_2(triton.cdiv(num_bytes, _LINE_BYTES))
    return min(_PREFETCHED_LINES, int(lines))


@triton.jit
def start_next(OVERLAPPED: tl.constexpr):
    """Let the next kernel's programs start as soon as there is room."""
    if OVERLAPPED:
        gdc_launch_dependents()


@triton.jit
def wait_for_previous(OVERLAPPED: tl.constexpr):
    """Wait until everything that earlier kernels wrote is visible."""
    if OVERLAPPED:
        gdc_wait()


@triton.jit
def prefetch_lines(pointers):
    """Prefetch the cache lines that these pointers point into, to L2."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; // dummy $0",
        "=r,l",
        [pointers.to(tl.int64)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
