"""Paged attention equals dense attention, however prompts are cut and pages are scattered."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from izwi.ops.attention.torch_paged import PagedContext
from izwi.ops.protocol import AttentionSpec
from izwi.ops.torch_ops import TorchOps

SPEC = AttentionSpec(num_heads=6, num_kv_heads=2, head_dim=8, rope_theta=1e4)
PAGE = 4


@pytest.mark.parametrize("cuts", [[13], [1] * 13, [5, 1, 7], [12, 1]])
def test_equals_dense(cuts: list[int]) -> None:
    ops, g = TorchOps(), torch.Generator().manual_seed(0)
    lengths = [13, 13, 13]
    q, k, v = (torch.randn(3, 13, heads * 8, generator=g) for heads in (6, 2, 2))
    norm = torch.rand(8, generator=g)
    whole = ops.attention(
        q, k, v, spec=SPEC, context=ops.dense_context(3, 13), layer=0, q_norm=norm, k_norm=norm
    )
    pages = np.random.default_rng(0).permutation(14)[:12].reshape(3, 4)
    keys = torch.full((1, 14 * PAGE, 2, 8), torch.nan)
    values = torch.full((1, 14 * PAGE, 2, 8), torch.nan)
    keys[:, 0], values[:, 0] = 0, 0
    out = torch.zeros_like(whole)
    # row 2 runs two cuts behind, so rows of unequal length and start share a step
    plans = [list(cuts), list(cuts), [0, 0, *cuts]]
    done = [0, 0, 0]
    while any(plans):
        rows = [(i, plan.pop(0)) for i, plan in enumerate(plans) if plan]
        rows = [(i, count) for i, count in rows if count]
        spans = [(done[i], done[i] + count) for i, count in rows]
        if not rows:
            continue
        context = PagedContext(keys, values, PAGE, spans, [pages[i].tolist() for i, _ in rows])
        pick = [(i, slice(start, stop)) for (i, _), (start, stop) in zip(rows, spans, strict=True)]
        packed = ops.attention(
            *(torch.cat([x[i, s] for i, s in pick]) for x in (q, k, v)),
            spec=SPEC,
            context=context,
            layer=0,
            q_norm=norm,
            k_norm=norm,
        )
        place = 0
        for (i, s), (start, stop) in zip(pick, spans, strict=True):
            out[i, s] = packed[place : place + stop - start]
            place += stop - start
            done[i] = stop
    assert done == lengths
    torch.testing.assert_close(out, whole, atol=1e-6, rtol=1e-5)


def test_pages_are_what_attention_reads() -> None:
    ops, g = TorchOps(), torch.Generator().manual_seed(0)
    keys, values = torch.zeros(1, 8, 2, 8), torch.zeros(1, 8, 2, 8)
    q, k, v = (torch.randn(5, heads * 8, generator=g) for heads in (6, 2, 2))

    def step(start: int, stop: int) -> torch.Tensor:
        context = PagedContext(keys, values, PAGE, [(start, stop)], [[1, 0]])
        part = (x[start:stop] for x in (q, k, v))
        return ops.attention(*part, spec=SPEC, context=context, layer=0)

    step(0, 4)
    right = step(4, 5)
    values[0, PAGE] += 1.0  # position 0 lives in the first slot of page 1
    assert not torch.allclose(step(4, 5), right)
