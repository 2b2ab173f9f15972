"""Attention of long prompts by FlashAttention 3, as the package sglang-kernel ships it.

Its kernel reads pages through a table for each sequence and finds all lengths on the device, so
that it can be captured. Norms, rotation and the writes of keys and values stay ours.
"""

from __future__ import annotations

# ruff: noqa: N803, N806 (constants of a kernel are upper case)
# mypy: allow-untyped-decorators, allow-untyped-calls, allow-untyped-defs, allow-incomplete-defs
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import cast

import torch
import triton
import triton.language as tl
from torch import Tensor

from izwi.backends.torch.triton.attention_kernels import angle_of, halves
from izwi.backends.torch.triton.launch import overlap_option, start_next, wait_for_previous
from izwi.ops.protocol import AttentionSpec

# Positions of a step. Chunks of 2,048 positions after 512, 4,096 and 32,768 took 53, 157 and 891 us
# on an H100, and 132, 292 and 1,552 us in our kernel. Chunks below 512 were not timed.
FLASH_FROM = 512
_DTYPES = (torch.float16, torch.bfloat16)
_MOST_HEAD_DIM = 256
_CAPABILITIES = (8, 9)  # major; what the package compiles its kernel for


def has_flash(device: torch.device) -> bool:
    """Return whether the library's kernel is installed and runs on this device."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] not in _CAPABILITIES:
        return False
    return find_spec("sgl_kernel") is not None


def takes_prompt(rows: int, head_dim: int, dtype: torch.dtype) -> bool:
    """Return whether the library attends to this many positions of a step."""
    fits = head_dim % 8 == 0 and head_dim <= _MOST_HEAD_DIM
    return rows >= FLASH_FROM and fits and dtype in _DTYPES


@lru_cache(maxsize=1)
def flash_attention() -> Callable[..., Tensor]:
    """Import the library's function; the first import loads its kernels."""
    library = import_module("sgl_kernel.flash_attn")
    return cast(Callable[..., Tensor], library.flash_attn_with_kvcache)


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """A step's sequences as the library takes them, on the device; of unused runs all are 0.

    Attributes:
        tables: (runs, pages) int32 page numbers; what is beyond a run's keys is any number.
        stops: (runs,) int32 keys of each run.
        borders: (runs + 1,) int32; rows borders[r] to borders[r + 1] are positions of run r.
    """

    tables: Tensor
    stops: Tensor
    borders: Tensor

    @staticmethod
    def lay_out(
        positions: Tensor, runs: Tensor, tables: Tensor, table_width: Tensor, shape: tuple[int, int]
    ) -> Runs:
        """Lay out a step; reads no values on the host, so it may be captured.

        Args:
            positions: (rows,) int64; -1 marks empty rows, which follow all others.
            runs: (rows,) int32, ascending; the sequence of each row that is not empty.
            tables: Flat int32, see `PagedPrompt`.
            table_width: (1,) int32.
            shape: Maximum number of runs, and of pages of one.
        """
        num_runs, num_pages = shape
        device = positions.device
        here = positions >= 0
        # empty rows may have any number
        run = torch.where(here, runs, 0).long()
        counts = torch.zeros(num_runs, dtype=torch.int64, device=device)
        counts.index_add_(0, run, here.long())
        borders = torch.zeros(num_runs + 1, dtype=torch.int32, device=device)
        borders[1:] = counts.cumsum(0)
        stops = torch.zeros(num_runs, dtype=torch.int64, device=device)
        stops.scatter_reduce_(0, run, positions + 1, "amax")
        columns = torch.arange(num_pages, device=device)
        places = torch.arange(num_runs, device=device)[:, None] * table_width + columns
        rectangle = tables[places.clamp(max=len(tables) - 1)]  # (runs, pages)
        return Runs(rectangle, stops.int(), borders)


def attend(
    queries: Tensor, planes: tuple[Tensor, Tensor], page_size: int, runs: Runs, scale: float
) -> Tensor:
    """Attend with the queries of all runs to the stored keys up to each query's own.

    Args:
        queries: (rows, heads, head_dim), normalised and rotated.
        planes: Keys and values of one layer, (slots, kv_heads, head_dim) each.
        page_size: Slots of one page; slots beyond the last whole page are not read.
        runs: The step's sequences.
        scale: Factor of the scores.

    Returns:
        (rows, heads * head_dim); zeros in empty rows.
    """
    rows = len(queries)
    whole = len(planes[0]) // page_size * page_size
    keys, values = (plane[:whole].view(-1, page_size, *plane.shape[1:]) for plane in planes)
    out = torch.zeros_like(queries)
    flash_attention()(
        queries,
        keys,
        values,
        cache_seqlens=runs.stops,
        page_table=runs.tables,
        cu_seqlens_q=runs.borders,
        max_seqlen_q=rows,
        softmax_scale=scale,
        causal=True,
        num_splits=1,  # so many positions occupy the device without splitting their keys
        out=out,
    )
    return out.view(rows, -1)


def turned_queries(
    q: Tensor,
    positions: Tensor,
    rotary: Tensor | None,
    rope: tuple[Tensor, Tensor] | None,
    spec: AttentionSpec,
    norm: Tensor | None,
) -> Tensor:
    """Normalise and rotate queries.

    Args:
        q: (rows, heads * head_dim); the last axis contiguous.
        positions: (rows,) int64; -1 marks an empty row, which becomes zeros.
        rotary: (rows,) int64 rotary positions, if they may differ.
        rope: Cosine and sine, (positions, head_dim / 2); None for no rotation.
        spec: Heads, widths and rotation.
        norm: (head_dim,) or None for no norm of the heads.

    Returns:
        (rows, heads, head_dim), contiguous.
    """
    out = q.new_empty((q.shape[0], spec.num_heads, spec.head_dim))
    cos, sin = rope if rope is not None else (None, None)
    options = overlap_option(q.device)
    turn_row[(q.shape[0],)](
        *(q, out, positions, rotary, cos, sin, norm, spec.norm_eps, q.stride(0)),
        HEADS=spec.num_heads,
        BLOCK=triton.next_power_of_2(spec.num_heads),
        HEAD_DIM=spec.head_dim,
        OVERLAPPED=bool(options),
        num_warps=4,
        **options,
    )
    return out


@triton.jit
def turn_row(
    q, out, positions, rotary, cos, sin, norm, eps, q_stride,
    HEADS: tl.constexpr, BLOCK: tl.constexpr, HEAD_DIM: tl.constexpr, OVERLAPPED: tl.constexpr,
):  # fmt: skip
    """Normalise and rotate all heads of one row; arguments as in `turned_queries`."""
    start_next(OVERLAPPED)
    row = tl.program_id(0).to(tl.int64)
    HALF: tl.constexpr = HEAD_DIM // 2
    head = tl.arange(0, BLOCK)[:, None]
    inside = head < HEADS
    wait_for_previous(OVERLAPPED)
    position = tl.load(positions + row)
    angle = angle_of(rotary, row, tl.maximum(position, 0).to(tl.int32), HALF)
    heads = q + row * q_stride + head * HEAD_DIM
    used = inside & (position >= 0)
    first, second = halves(heads, used, angle, cos, sin, norm, eps, 1.0, HALF)
    place = out + (row * HEADS + head) * HEAD_DIM + tl.arange(0, HALF)[None, :]
    tl.store(place, first.to(out.dtype.element_ty), mask=inside)
    tl.store(place + HALF, second.to(out.dtype.element_ty), mask=inside)
