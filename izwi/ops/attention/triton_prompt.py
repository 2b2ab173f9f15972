"""Attention of prompts by the kernel of decode steps: every position is a row of its own.

The rows' keys and values are written by a launch before, so that a position sees those before it
which run in the same step.
"""

from __future__ import annotations

# ruff: noqa: N803 (constants of a kernel are upper case)
# mypy: allow-untyped-decorators, allow-untyped-calls, allow-untyped-defs, allow-incomplete-defs
import triton
import triton.language as tl
from torch import Tensor

from izwi.ops.attention.triton_decode import PagedDecode
from izwi.ops.attention.triton_kernels import keep_row
from izwi.ops.protocol import AttentionSpec
from izwi.ops.triton_launch import overlap_option, start_next, wait_for_previous


class PagedPrompt(PagedDecode):
    """As `PagedDecode`, of rows that may be positions of the same sequences."""

    def attend_fused(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        spec: AttentionSpec,
        q_norm: Tensor | None,
        k_norm: Tensor | None,
    ) -> Tensor:
        """Keep all keys and values, then attend; see `PagedDecode.attend_fused`."""
        cos, sin = self._rope if self._rope is not None else (None, None)
        options = overlap_option(q.device)
        keep_prompt[(k.shape[0], spec.num_kv_heads)](
            k,
            v,
            self._cache.keys[layer],
            self._cache.values[layer],
            self._positions,
            self._tables,
            self._table_width,
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
        # each row writes its own key and value once more, with the same bits
        return super().attend_fused(layer, q, k, v, spec, q_norm, k_norm)


@triton.jit
def keep_prompt(
    k, v, keys, values, positions, tables, table_width, cos, sin, k_norm, eps, k_stride, v_stride,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PAGE: tl.constexpr, OVERLAPPED: tl.constexpr,
):  # fmt: skip
    """Normalise, rotate and keep one head of one row; arguments as in `PagedDecode`."""
    start_next(OVERLAPPED)
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    HALF: tl.constexpr = HEAD_DIM // 2  # noqa: N806
    wait_for_previous(OVERLAPPED)
    position = tl.load(positions + row)
    here = position >= 0
    count = tl.maximum(position, 0).to(tl.int32)
    table = tables + row * tl.load(table_width)
    page = tl.load(table + count // PAGE, mask=here, other=0).to(tl.int64)
    place = ((page * PAGE + count % PAGE) * KV_HEADS + head) * HEAD_DIM
    k_head, v_head = k + row * k_stride + head * HEAD_DIM, v + row * v_stride + head * HEAD_DIM
    keep_row(k_head, v_head, keys, values, place, here, count * HALF, cos, sin, k_norm, eps, HALF)
