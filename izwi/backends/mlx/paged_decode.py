"""A Metal kernel for rows of one query that attend over pages, without gathering keys first.

`decoder_of` returns None unless the kernel gives on this device what the composition in `kv.py`
gives; the composition then runs in its place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple, cast

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from izwi.backends.mlx.attention import attend
from izwi.model.layers import KVSpec

logger = logging.getLogger(__name__)

# An object of `mx.fast.metal_kernel`, called with names only.
Kernel = Callable[..., Sequence[mx.array]]

# Simdgroups of a threadgroup; each attends to every eighth key.
_SIMDGROUPS = 8
_SIMD_THREADS = 32  # threads of a simdgroup, on all of Apple's GPUs
# Arrays below 8 numbers would be passed in another address space, which compiles the kernel again.
_LEAST_COLUMNS = 8
# Largest difference of outputs of up to 4 that is due to rounding.
_NEAR = {mx.float32: 1e-4, mx.float16: 3e-3, mx.bfloat16: 2e-2}

# One threadgroup for each query head of each row. The 32 lanes of a simdgroup share the channels
# of a head: lane l has channels l, l + 32, ... Each simdgroup keeps a softmax of its own keys
# (largest score, sum of weights, weighted sum of values); at the end the eight are joined.
_SOURCE = """
    constexpr int LANES = 32;
    constexpr int SIMDGROUPS = 8;
    constexpr int EACH = (HEAD_DIM + LANES - 1) / LANES;
    constexpr float LEAST = -3.0e38f;
    threadgroup float largest[SIMDGROUPS];
    threadgroup float weights[SIMDGROUPS];
    threadgroup float sums[SIMDGROUPS * HEAD_DIM];

    const int lane = int(thread_index_in_simdgroup);
    const int group = int(simdgroup_index_in_threadgroup);
    const int head = int(threadgroup_position_in_grid.x);
    const int row = int(threadgroup_position_in_grid.y);
    const int heads = q_shape[1];
    const int columns = tables_shape[1];
    const int kv_head = head / (heads / KV_HEADS);
    const size_t own = (size_t(row) * heads + head) * HEAD_DIM;
    const float scale = 1.0f / metal::sqrt(float(HEAD_DIM));

    float query[EACH];
    float mine[EACH];
    for (int n = 0; n < EACH; n++) {
        const int channel = lane + n * LANES;
        query[n] = channel < HEAD_DIM ? scale * float(q[own + channel]) : 0.0f;
        mine[n] = 0.0f;
    }
    float top = LEAST;
    float weight = 0.0f;

    const int stop = tables[row * columns];
    const int first = WINDOW > 0 && stop > WINDOW ? stop - WINDOW : 0;
    for (int key = first + group; key < stop; key += SIMDGROUPS) {
        const int page = tables[row * columns + 1 + key / PAGE];
        const size_t slot = size_t(page) * PAGE + key % PAGE;
        const size_t at = (slot * KV_HEADS + kv_head) * HEAD_DIM;
        float score = 0.0f;
        for (int n = 0; n < EACH; n++) {
            const int channel = lane + n * LANES;
            if (channel < HEAD_DIM) {
                score += query[n] * float(keys[at + channel]);
            }
        }
        score = simd_sum(score);
        const float higher = metal::max(top, score);
        const float before = metal::exp(top - higher);
        const float now = metal::exp(score - higher);
        for (int n = 0; n < EACH; n++) {
            const int channel = lane + n * LANES;
            if (channel < HEAD_DIM) {
                mine[n] = mine[n] * before + now * float(values[at + channel]);
            }
        }
        weight = weight * before + now;
        top = higher;
    }

    if (lane == 0) {
        largest[group] = top;
        weights[group] = weight;
    }
    for (int n = 0; n < EACH; n++) {
        const int channel = lane + n * LANES;
        if (channel < HEAD_DIM) {
            sums[group * HEAD_DIM + channel] = mine[n];
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    float highest = LEAST;
    for (int other = 0; other < SIMDGROUPS; other++) {
        highest = metal::max(highest, largest[other]);
    }
    float total = 0.0f;
    for (int other = 0; other < SIMDGROUPS; other++) {
        total += weights[other] * metal::exp(largest[other] - highest);
    }
    for (int channel = group * LANES + lane; channel < HEAD_DIM; channel += SIMDGROUPS * LANES) {
        float sum = 0.0f;
        for (int other = 0; other < SIMDGROUPS; other++) {
            const float share = metal::exp(largest[other] - highest);
            sum += sums[other * HEAD_DIM + channel] * share;
        }
        out[own + channel] = T(sum / total);
    }
"""


@cache
def metal_kernel() -> Kernel:
    """Return the kernel; Metal compiles it when it is first called with a template."""
    made = mx.fast.metal_kernel(
        name="izwi_paged_decode",
        input_names=["q", "keys", "values", "tables"],
        output_names=["out"],
        source=_SOURCE,
    )
    return cast(Kernel, made)


def block_tables(stops: npt.NDArray[np.int64], tables: npt.NDArray[np.int64]) -> mx.array:
    """Join the keys and the pages of rows, (rows, 1 + pages) int32, as the kernel reads them."""
    rows, pages = tables.shape
    joined = np.zeros((rows, max(1 + pages, _LEAST_COLUMNS)), dtype=np.int32)
    joined[:, 0], joined[:, 1 : 1 + pages] = stops, tables
    return mx.array(joined)


class PagedDecoder(NamedTuple):
    """Attention of one query each, for the pages of one model.

    Attributes:
        kernel: The kernel.
        kv_heads: Key and value heads.
        page_size: Slots of a page.
    """

    kernel: Kernel
    kv_heads: int
    page_size: int

    def attend(
        self, q: mx.array, keys: mx.array, values: mx.array, tables: mx.array, window: int | None
    ) -> mx.array:
        """Attend, each query to the last keys of its row.

        Args:
            q: (rows, heads, head_dim).
            keys: (slots, kv_heads, head_dim), slot s of page p at p * page_size + s.
            values: The same shape.
            tables: Result of `block_tables`.
            window: Number of keys that a query sees, or None for all.

        Returns:
            (rows, heads, head_dim), computed in float32.
        """
        rows, heads, head_dim = q.shape
        template: list[tuple[str, Any]] = [
            ("T", q.dtype),
            ("HEAD_DIM", head_dim),
            ("KV_HEADS", self.kv_heads),
            ("PAGE", self.page_size),
            ("WINDOW", window or 0),
        ]
        (out,) = self.kernel(
            inputs=[q, keys, values, tables],
            template=template,
            grid=(heads * _SIMDGROUPS * _SIMD_THREADS, rows, 1),
            threadgroup=(_SIMDGROUPS * _SIMD_THREADS, 1, 1),
            output_shapes=[q.shape],
            output_dtypes=[q.dtype],
        )
        return out


def decoder_of(
    kernel: Kernel, spec: KVSpec, page_size: int, dtype: mx.Dtype
) -> PagedDecoder | None:
    """Return attention by the kernel, or None if it fails here or differs from the composition.

    The kernel runs once for every window of the model, with two rows over scattered pages. A
    warning is logged if it cannot be used.
    """
    decoder = PagedDecoder(kernel, spec.num_kv_heads, page_size)
    try:
        for window in dict.fromkeys(spec.windows or (None,)):
            error = _error(decoder, spec, dtype, window)
            if not error <= _NEAR[dtype]:  # also if it is no number
                logger.warning("the attention kernel is off by %.2g and is not used", error)
                return None
    except Exception as error:  # whatever it raises: there is something else to run
        logger.warning("the attention kernel failed and is not used: %s", error)
        return None
    return decoder


def _error(decoder: PagedDecoder, spec: KVSpec, dtype: mx.Dtype, window: int | None) -> float:
    """Compare kernel and composition on a small case; return their largest difference."""
    size, heads, generator = decoder.page_size, 2 * spec.num_kv_heads, np.random.default_rng(0)
    stops = np.array([3 * size + 1, 1 + 2 * size // 3])
    tables = np.array([[4, 1, 6, 3], [5, 0, 0, 0]])
    positions = np.arange(4 * size)
    seen = positions < stops[:, None]
    if window is not None:
        seen &= positions >= stops[:, None] - window
    slots = tables[:, positions // size] * size + positions % size
    # a slot that no row sees holds no number, which must not reach the output
    stored = np.full((2, 7 * size, spec.num_kv_heads, spec.head_dim), np.nan, np.float32)
    stored[:, slots[seen]] = generator.standard_normal((2, int(seen.sum()), *stored.shape[2:]))
    keys, values = (mx.array(part).astype(dtype) for part in stored)
    normal = generator.standard_normal((2, heads, spec.head_dim), np.float32)
    q = mx.array(normal).astype(dtype)
    found = decoder.attend(q, keys, values, block_tables(stops, tables), window)
    # in float32, of the same rounded numbers
    wide = [mx.nan_to_num(part.astype(mx.float32)) for part in (keys, values)]
    own_keys, own_values = (mx.take(part, mx.array(slots), axis=0) for part in wide)
    exact = attend(q.astype(mx.float32)[:, None], own_keys, own_values, mx.array(seen[:, None]))
    return float(np.abs(np.array(found.astype(mx.float32)) - np.array(exact[:, 0])).max())
