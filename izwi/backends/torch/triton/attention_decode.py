"""Attention of decode steps in one kernel: head norms, rotation, cache write and attention.

Everything that changes from step to step (positions, tables) is read on the device, so that a CUDA
graph of the step can be launched again.
"""

from __future__ import annotations

# mypy: allow-untyped-calls
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
import triton
from torch import Tensor

from izwi.backends.torch.attention.dense import rope_table
from izwi.backends.torch.attention.staged import StagedContext
from izwi.backends.torch.triton.attention_kernels import join_parts, paged, scratch
from izwi.backends.torch.triton.launch import overlap_option
from izwi.backends.torch.triton.rows import PendingNorm, pending_options
from izwi.backends.torch.triton.short_conv import StagedConv
from izwi.ops.protocol import AttentionSpec

MAX_SCRATCH_POSITIONS = 32
MAX_SCRATCH_TOKENS = 2  # of one call

_SMALLEST_KEYS = 16  # of a tile that a matrix unit takes; its other sides are padded
# Above this number of keys, a row's keys are split into parts that run in parallel.
_UNDIVIDED_KEYS = 512
_KEYS_OF_PART = 256
_MAX_PARTS = 16
_WANTED_PROGRAMS = 512  # about four a multiprocessor


@dataclass(frozen=True, slots=True)
class DecodeTiles:
    """Tile sizes of the kernels.

    Attributes:
        keys: Keys of one pass of the paged kernel's loop, a power of two, at least 16.
        warps: Warps of one program of the paged kernel.
        stages: Passes of the loop whose keys are in flight at the same time.
        scratch_warps: Warps of one program of the scratch kernel.
    """

    keys: int
    warps: int
    stages: int
    scratch_warps: int


# `python -m benchmarks.kernels.decode --tune` prints the fastest tiles.
tiles = DecodeTiles(keys=64, warps=4, stages=2, scratch_warps=4)


@dataclass(frozen=True, slots=True, eq=False)
class DecodeCache:
    """Keys and values of all layers of one model.

    Attributes:
        keys: (layers, slots, kv_heads, head_dim), contiguous.
        values: The same.
        page_size: Slots of one page.
    """

    keys: Tensor
    values: Tensor
    page_size: int


@lru_cache(maxsize=16)
def rope_tables(
    length: int, head_dim: int, theta: float, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Cosine and sine of positions 0..length-1, (length, head_dim / 2) each.

    They are cached, so the first call must not happen during the capture of a graph.
    """
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("rope tables must be made before a graph is captured")
    cos, sin = rope_table(torch.arange(length, device=device), head_dim, theta, dtype)
    return cos[:, 0].contiguous(), sin[:, 0].contiguous()


class PagedDecode:
    """An attention context for rows of one new position each, over paged keys and values."""

    takes_pending = True  # whether `attend_fused` does
    conv: StagedConv | None = None  # of a model with short convolutions, in the same step
    # (rows,) int64 rotary positions, if they may differ from the positions (M-RoPE, text only)
    rotary: Tensor | None = None

    def __init__(
        self,
        cache: DecodeCache,
        positions: Tensor,
        tables: Tensor,
        table_width: Tensor,
        rope: tuple[Tensor, Tensor] | None,
        max_keys: int,
    ):
        """Prepare a step; reads no values, so it may run during the capture of a graph.

        Args:
            cache: The cache to read and write.
            positions: (rows,) int64 of each row's new token; -1 marks an empty row, for which
                nothing is written and the output is zeros.
            tables: Flat int32; the page of row r at place p is tables[r * table_width[0] + p].
            table_width: (1,) int32.
            rope: Cosine and sine, (max_positions, head_dim / 2), of the model's dtype; None for
                no rotation.
            max_keys: Maximum number of keys of a row; determines the number of parts.
        """
        self._cache, self._positions = cache, positions
        self._tables, self._table_width, self._rope = tables, table_width, rope
        self._max_keys = max_keys
        kv_heads = cache.keys.shape[2]
        self.parts = num_parts(len(positions), kv_heads, max_keys)

    @cached_property
    def in_torch(self) -> StagedContext:
        """Return the same step for torch, laid out once for all layers."""
        return StagedContext(
            (self._cache.keys, self._cache.values),
            self._cache.page_size,
            self._positions,
            self._tables,
            self._table_width,
            self._rope,
            self._max_keys,
            self._table_of,
            self.rotary,
        )

    @property
    def _table_of(self) -> Tensor | None:
        """(rows,) number of each row's table, None where every row has its own."""
        return None

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
        """Normalise, rotate, store the new key and value, and attend.

        Args:
            layer: Index of the layer whose cache is used.
            q: (rows, num_heads * head_dim); the last axis contiguous, as of `k` and `v`.
            k: (rows, num_kv_heads * head_dim).
            v: The same shape as `k`.
            spec: Heads, widths and rotation.
            q_norm: (head_dim,) or None for no norm of the heads.
            k_norm: The same for keys.
            pending: Pending norm of the rows that `q`, `k` and `v` were computed from, if any.

        Returns:
            (rows, num_heads * head_dim), contiguous.
        """
        rows, head_dim, heads = q.shape[0], spec.head_dim, spec.num_heads
        out = q.new_empty((rows, heads * head_dim))
        partial = stats = None
        if self.parts > 1:
            partial = q.new_empty((rows, heads, self.parts, head_dim), dtype=torch.float32)
            stats = q.new_empty((2, rows, heads, self.parts), dtype=torch.float32)
        options = overlap_option(q.device)
        cache = self._cache.keys[layer], self._cache.values[layer]
        places = self._positions, self._tables, self._table_width
        rope, strides = self._rope or (None, None), (q.stride(0), k.stride(0), v.stride(0))
        paged[(rows, spec.num_kv_heads, self.parts)](
            *(q, k, v, out, *cache, *places, self.rotary, *rope, q_norm, k_norm, partial, stats),
            *(spec.norm_eps, head_dim**-0.5, *strides),
            **_sizes(spec, tokens=1) | pending_options(pending),
            PAGE=self._cache.page_size,
            BLOCK=tiles.keys,
            PARTS=self.parts,
            STAGES=tiles.stages,
            OVERLAPPED=bool(options),
            num_warps=tiles.warps,
            **options,
        )
        if self.parts > 1:
            join_parts[(rows, heads)](
                partial,
                stats,
                out,
                rows * heads * self.parts,
                HEAD_DIM=head_dim,
                PARTS=self.parts,
                OVERLAPPED=bool(options),
                num_warps=1,
                **options,
            )
        return out


class ScratchDecode:
    """A cache of one step's inner loop; all rows are at the same position, which the host knows."""

    takes_pending = True

    def __init__(
        self,
        rows: int,
        capacity: int,
        num_layers: int,
        spec: AttentionSpec,
        device: torch.device,
        dtype: torch.dtype,
    ):
        """Allocate.

        Args:
            rows: Number of rows of every call.
            capacity: Positions, at most MAX_SCRATCH_POSITIONS.
            num_layers: Layers that share the positions.
            spec: Heads, widths and rotation.
            device: Device of the cache.
            dtype: The model's dtype.
        """
        if capacity > MAX_SCRATCH_POSITIONS:
            raise ValueError(f"no kernel for {capacity} positions")
        shape = (num_layers, rows, capacity, spec.num_kv_heads, spec.head_dim)
        self._keys = torch.empty(shape, device=device, dtype=dtype)
        self._values = torch.empty(shape, device=device, dtype=dtype)
        self._rope: tuple[Tensor | None, Tensor | None] = (None, None)
        if spec.rope_theta is not None:
            theta = spec.rope_theta
            self._rope = rope_tables(MAX_SCRATCH_POSITIONS, spec.head_dim, theta, device, dtype)
        self._capacity = capacity
        self._start = 0

    def advance(self, num_tokens: int) -> None:
        """Move the start of the next call of attention by `num_tokens`."""
        self._start += num_tokens

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
        """As `PagedDecode.attend_fused`, for arrays of shape (rows, tokens, width).

        The rows of `pending` are the tokens in order.

        Raises:
            ValueError: There are more than MAX_SCRATCH_TOKENS tokens, or they exceed the capacity.
        """
        rows, tokens, _ = q.shape
        if tokens > MAX_SCRATCH_TOKENS or self._start + tokens > self._capacity:
            raise ValueError(f"no room for {tokens} tokens at position {self._start}")
        out = q.new_empty((rows, tokens, spec.num_heads * spec.head_dim))
        options = overlap_option(q.device)
        cache = self._keys[layer], self._values[layer]
        strides = *q.stride()[:2], *k.stride()[:2], *v.stride()[:2]
        scratch[(rows, spec.num_kv_heads)](
            *(q, k, v, out, *cache, *self._rope, q_norm, k_norm, self._start),
            *(spec.norm_eps, spec.head_dim**-0.5, *strides),
            **_sizes(spec, tokens) | pending_options(pending),
            TOKENS=tokens,
            CAPACITY=self._capacity,
            BLOCK=max(_SMALLEST_KEYS, triton.next_power_of_2(self._capacity)),
            OVERLAPPED=bool(options),
            num_warps=tiles.scratch_warps,
            **options,
        )
        return out


def _sizes(spec: AttentionSpec, tokens: int) -> dict[str, int]:
    """Return the sizes that both kernels are compiled for."""
    group = spec.num_heads // spec.num_kv_heads
    return {
        "KV_HEADS": spec.num_kv_heads,
        "GROUP": group,
        "QUERIES": triton.next_power_of_2(group * tokens),
        "HEAD_DIM": spec.head_dim,
    }


def takes_heads(head_dim: int) -> bool:
    """Return whether the kernels support heads of this width."""
    half = head_dim // 2
    return head_dim >= _SMALLEST_KEYS and 2 * half == head_dim and half & (half - 1) == 0


def num_parts(rows: int, kv_heads: int, max_keys: int) -> int:
    """Return the number of parts of each row's keys: a power of two, from sizes alone."""
    if max_keys <= _UNDIVIDED_KEYS:
        return 1
    by_length = triton.next_power_of_2(triton.cdiv(max_keys, _KEYS_OF_PART))
    by_rows = triton.next_power_of_2(triton.cdiv(_WANTED_PROGRAMS, rows * kv_heads))
    return min(_MAX_PARTS, by_length, max(by_rows, 4))  # type: ignore[no-any-return]
