"""Attention of prompts: each position is a row, as in a decode step; tiles of rows share keys.

An earlier launch writes the rows' keys and values, so that a position sees the earlier positions of
the same step. Then each program takes some adjacent rows and one head of keys. If the rows belong
to several sequences, it processes the keys of these sequences in order.
"""

from __future__ import annotations

# ruff: noqa: N803 (constants of a kernel are upper case)
# mypy: allow-untyped-decorators, allow-untyped-calls, allow-untyped-defs, allow-incomplete-defs
from functools import cached_property
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from izwi.backends.torch.triton.attention_decode import DecodeCache, PagedDecode
from izwi.backends.torch.triton.attention_flash import Runs, attend, turned_queries
from izwi.backends.torch.triton.attention_kernels import (
    LOG2_E,
    angle_of,
    halves,
    keep_row,
    whole_heads,
)
from izwi.backends.torch.triton.launch import overlap_option, start_next, wait_for_previous
from izwi.backends.torch.triton.rows import PendingNorm
from izwi.backends.torch.triton.shared_memory import shared_bytes
from izwi.ops.protocol import AttentionSpec


class PromptTile(NamedTuple):
    """Tile sizes of the kernel.

    Attributes:
        queries: Queries of one program: positions, times the heads that share one head of keys.
        keys: Keys of one pass of its loop.
        warps: Warps of one program.
        stages: Passes whose keys are in flight at the same time.
    """

    queries: int
    keys: int
    warps: int
    stages: int


# `python -m benchmarks.kernels.prompt` prints the fastest tiles: on an H200, for 2,048 positions
# after 30,720, these reach 138, 334 and 373 TFLOP/s, and torch's attention 346.
SMALL = PromptTile(queries=32, keys=64, warps=4, stages=2)
MIDDLE = PromptTile(queries=64, keys=64, warps=4, stages=2)
# A tile reads all keys before it, so after many positions the time is that of reading them, and
# larger tiles read them less often. Fewer positions would give too few such tiles.
LARGE = PromptTile(queries=128, keys=128, warps=8, stages=2)
_MIDDLE_FROM, _LARGE_FROM = 256, 1024  # positions


def tile_for(positions: int, head_dim: int, dtype: torch.dtype, most_bytes: int) -> PromptTile:
    """Return the tile for the attention of this many positions of a step.

    Args:
        positions: Of all sequences of the step.
        head_dim: Of keys.
        dtype: Of keys.
        most_bytes: Shared memory of one program.
    """
    smaller = [SMALL, SMALL._replace(stages=1)]
    if dtype.itemsize <= 2 and positions >= _MIDDLE_FROM:
        smaller.insert(0, MIDDLE)
        if positions >= _LARGE_FROM:
            smaller.insert(0, LARGE)
    number_bytes = head_dim * max(2, dtype.itemsize)
    fitting = (tile for tile in smaller if _rows_in_flight(tile) * number_bytes <= most_bytes)
    return next(fitting, smaller[-1])


def _rows_in_flight(tile: PromptTile) -> int:
    """Return how many queries, keys and values one program holds."""
    return tile.queries + 2 * tile.keys * tile.stages


class PagedPrompt(PagedDecode):
    """As `PagedDecode`, for rows that may be positions of the same sequence."""

    takes_pending = False

    def __init__(
        self,
        cache: DecodeCache,
        positions: Tensor,
        tables: Tensor,
        table_width: Tensor,
        rope: tuple[Tensor, Tensor] | None,
        max_keys: int,
        runs: Tensor,
        max_runs: int | None = None,
    ):
        """Prepare a step.

        Args:
            cache: As in `PagedDecode`, as are the arguments without a description.
            positions: (rows,) int64.
            tables: Flat int32, one table for each sequence, so that a long prompt needs only one;
                the page of run r at place p is tables[r * table_width[0] + p].
            table_width: (1,) int32.
            rope: Cosine and sine.
            max_keys: Maximum number of keys of a row.
            runs: (rows,) int32, ascending: rows with the same number are positions of one sequence.
            max_runs: Maximum number of sequences; None for one a row.
        """
        super().__init__(cache, positions, tables, table_width, rope, max_keys)
        self._runs, self._max_runs = runs, max_runs or len(runs)

    @property
    def _table_of(self) -> Tensor:
        return self._runs

    def attend_fused(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        spec: AttentionSpec,
        q_norm: Tensor | None,
        k_norm: Tensor | None,
        pending: PendingNorm | None = None,
    ) -> Tensor:
        """Store all keys and values, then attend; see `PagedDecode.attend_fused`.

        Raises:
            ValueError: A norm is pending.
        """
        if pending is not None:
            raise ValueError("the prompt kernels do not support a pending norm")
        self._store_keys(layer, k, v, spec, k_norm)
        cos, sin = self._rope if self._rope is not None else (None, None)
        options = overlap_option(q.device)
        rows, group = q.shape[0], spec.num_heads // spec.num_kv_heads
        out = q.new_empty((rows, spec.num_heads * spec.head_dim))
        most_bytes = shared_bytes(q.device)
        tile = tile_for(rows, spec.head_dim, self._cache.keys.dtype, most_bytes)
        tile_rows = max(1, tile.queries // group)
        attend_tile[(triton.cdiv(rows, tile_rows), spec.num_kv_heads)](
            *(q, out, self._cache.keys[layer], self._cache.values[layer]),
            *(self._positions, self._runs, self._tables, self._table_width, self.rotary),
            *(cos, sin, q_norm, spec.norm_eps, spec.head_dim**-0.5, q.stride(0), rows),
            KV_HEADS=spec.num_kv_heads,
            GROUP=group,
            ROWS=tile_rows,
            QUERIES=triton.next_power_of_2(tile_rows * group),
            HEAD_DIM=spec.head_dim,
            PAGE=self._cache.page_size,
            BLOCK=tile.keys,
            STAGES=tile.stages,
            OVERLAPPED=bool(options),
            num_warps=tile.warps,
            **options,
        )
        return out

    @cached_property
    def _laid_out(self) -> Runs:
        """The step's sequences as the library takes them, once for all layers."""
        shape = self._max_runs, triton.cdiv(self._max_keys, self._cache.page_size)
        places = self._positions, self._runs, self._tables, self._table_width
        return Runs.lay_out(*places, shape)

    def attend_flash(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        spec: AttentionSpec,
        q_norm: Tensor | None,
        k_norm: Tensor | None,
    ) -> Tensor:
        """As `attend_fused`, by FlashAttention 3; empty rows follow all others."""
        self._store_keys(layer, k, v, spec, k_norm)
        queries = turned_queries(q, self._positions, self.rotary, self._rope, spec, q_norm)
        planes = self._cache.keys[layer], self._cache.values[layer]
        return attend(queries, planes, self._cache.page_size, self._laid_out, spec.head_dim**-0.5)

    def _store_keys(
        self, layer: int, k: Tensor, v: Tensor, spec: AttentionSpec, k_norm: Tensor | None
    ) -> None:
        """Normalise and rotate the keys, and store them and the values."""
        cos, sin = self._rope if self._rope is not None else (None, None)
        options = overlap_option(k.device)
        keep_prompt[(k.shape[0], spec.num_kv_heads)](
            k,
            v,
            self._cache.keys[layer],
            self._cache.values[layer],
            self._positions,
            self._runs,
            self._tables,
            self._table_width,
            self.rotary,
            cos,
            sin,
            k_norm,
            spec.norm_eps,
            k.stride(0),
            v.stride(0),
            KV_HEADS=spec.num_kv_heads,
            HEAD_DIM=spec.head_dim,
            PAGE=self._cache.page_size,
            OVERLAPPED=bool(options),
            num_warps=1,
            **options,
        )


@triton.jit
def keep_prompt(
    k, v, keys, values, positions, runs, tables, table_width, rotary, cos, sin, k_norm, eps,
    k_stride, v_stride,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PAGE: tl.constexpr, OVERLAPPED: tl.constexpr,
):  # fmt: skip
    """Normalise, rotate and store one head of one row; arguments as in `PagedDecode`."""
    start_next(OVERLAPPED)
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    HALF: tl.constexpr = HEAD_DIM // 2  # noqa: N806
    wait_for_previous(OVERLAPPED)
    position = tl.load(positions + row)
    here = position >= 0
    count = tl.maximum(position, 0).to(tl.int32)
    table = tables + tl.load(runs + row) * tl.load(table_width)
    page = tl.load(table + count // PAGE, mask=here, other=0).to(tl.int64)
    place = ((page * PAGE + count % PAGE) * KV_HEADS + head) * HEAD_DIM
    k_head, v_head = k + row * k_stride + head * HEAD_DIM, v + row * v_stride + head * HEAD_DIM
    angle = angle_of(rotary, row, count, HALF)
    keep_row(k_head, v_head, keys, values, place, here, angle, cos, sin, k_norm, eps, 1.0, HALF)


@triton.jit
def _attended(
    queries, keys, values, table, start, stop, head, mine, position, scale, acc, largest, total,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Continue with one block of keys; keys from `stop` on are masked."""
    kept = keys.dtype.element_ty
    d, j = tl.arange(0, HEAD_DIM), start + tl.arange(0, BLOCK)
    there = j < stop
    pages = (
        tl.load(table + j // PAGE, mask=there, other=0) if MASKED else tl.load(table + j // PAGE)
    )
    places = ((pages.to(tl.int64) * PAGE + j % PAGE) * KV_HEADS + head) * HEAD_DIM
    if MASKED:
        # a slot that was never written may hold a NaN, which a weight of 0 would not cancel
        k_tile = tl.load(keys + places[None, :] + d[:, None], there[None, :], other=0.0)
        v_tile = tl.load(values + places[:, None] + d[None, :], there[:, None], other=0.0)
    else:
        k_tile = tl.load(keys + places[None, :] + d[:, None])
        v_tile = tl.load(values + places[:, None] + d[None, :])
    scores = tl.dot(queries, k_tile, input_precision="ieee") * (scale * LOG2_E)
    if MASKED:
        visible = mine[:, None] & (j[None, :] <= position[:, None])
        scores = tl.where(visible, scores, -float("inf"))
    larger = tl.maximum(largest, tl.max(scores, 1))
    weights, shrunk = tl.exp2(scores - larger[:, None]), tl.exp2(largest - larger)
    total = total * shrunk + tl.sum(weights, 1)
    acc = tl.dot(weights.to(kept), v_tile, acc * shrunk[:, None], input_precision="ieee")
    return acc, larger, total


@triton.jit(do_not_specialize=["num_rows"])
def attend_tile(
    q, out, keys, values, positions, runs, tables, table_width, rotary, cos, sin, q_norm,
    eps, scale, q_stride, num_rows,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, QUERIES: tl.constexpr,
    HEAD_DIM: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
    OVERLAPPED: tl.constexpr,
):  # fmt: skip
    """Attend with the queries of `ROWS` rows and one head of keys, all of which are stored.

    Arguments as in `PagedPrompt`; the output of a row whose position is -1 is zeros.
    """
    start_next(OVERLAPPED)
    head = tl.program_id(1)
    HALF: tl.constexpr = HEAD_DIM // 2  # noqa: N806
    kept = keys.dtype.element_ty
    d, i = tl.arange(0, HEAD_DIM), tl.arange(0, QUERIES)
    row, g = tl.program_id(0).to(tl.int64) * ROWS + i // GROUP, i % GROUP
    used = (i < ROWS * GROUP) & (row < num_rows)
    wait_for_previous(OVERLAPPED)
    position = tl.load(positions + row, mask=used, other=-1).to(tl.int32)
    run = tl.load(runs + row, mask=used, other=-1)
    width = tl.load(table_width)
    heads = q + row[:, None] * q_stride + (head * GROUP + g[:, None]) * HEAD_DIM
    if rotary is not None:
        angle = (tl.load(rotary + row, mask=used, other=0).to(tl.int32) * HALF)[:, None]
    else:
        angle = (tl.maximum(position, 0) * HALF)[:, None]
    first, second = halves(heads, used[:, None], angle, cos, sin, q_norm, eps, 1.0, HALF)
    queries = whole_heads(first.to(kept), second.to(kept), HALF)

    here = position >= 0
    # never -inf, so that a softmax over no keys is not a NaN
    largest = tl.full([QUERIES], -1e30, tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    acc = tl.zeros([QUERIES, HEAD_DIM], tl.float32)
    for one in range(tl.min(tl.where(here, run, 1 << 30)), tl.max(tl.where(here, run, -1)) + 1):
        mine = here & (run == one)
        table = tables + one * width
        stop = tl.max(tl.where(mine, position, -1)) + 1
        # what all queries of the tile see needs no mask; places of no row see anything
        every = tl.min((mine | (used == 0)).to(tl.int32))
        clear = every * (tl.min(tl.where(mine, position, 1 << 30)) + 1) // BLOCK * BLOCK
        for start in tl.range(0, clear, BLOCK, num_stages=STAGES):
            acc, largest, total = _attended(
                queries, keys, values, table, start, stop, head, mine, position, scale,
                acc, largest, total, KV_HEADS, HEAD_DIM, PAGE, BLOCK, False,
            )  # fmt: skip
        for start in tl.range(clear, stop, BLOCK, num_stages=STAGES):
            acc, largest, total = _attended(
                queries, keys, values, table, start, stop, head, mine, position, scale,
                acc, largest, total, KV_HEADS, HEAD_DIM, PAGE, BLOCK, True,
            )  # fmt: skip
    acc = acc / tl.where(total > 0, total, 1.0)[:, None]
    place = (row * KV_HEADS * GROUP + head * GROUP + g)[:, None] * HEAD_DIM + d[None, :]
    tl.store(out + place, acc.to(out.dtype.element_ty), mask=used[:, None])
