"""Prompts attend as torch's do, and keep the same keys and values."""

from __future__ import annotations

import pytest
import torch

from izwi.backends.torch.attention.paged import PagedContext
from izwi.backends.torch.ops import TorchOps
from izwi.backends.torch.triton.attention_decode import rope_tables
from izwi.backends.torch.triton.attention_prompt import PagedPrompt, PromptTile
from izwi.backends.torch.triton.ops import TritonOps
from izwi.ops.protocol import AttentionSpec
from tests.backends.torch.test_triton_decode import MAX_KEYS, PAGE, SPEC, Pages, norms, packed
from tests.ops.devices import DEVICE, DTYPES, NEAR, assert_near


def check_runs(
    runs: list[tuple[int, int]],
    spec: AttentionSpec,
    dtype: torch.dtype = torch.float32,
    attention: str = "triton",
) -> None:
    """Compare positions [start, stop) of some sequences, end to end, with empty rows behind."""
    count, empty = sum(stop - start for start, stop in runs), 3
    # what is not overwritten is earlier
    pages = Pages.for_positions([stop - 1 for _, stop in runs], spec, dtype, PAGE)
    q, k, v = packed((count + empty,), spec, 4, dtype)
    weights = norms(spec, dtype)
    cache = pages.decode_cache()
    expected = TorchOps(DEVICE, dtype).attention(
        *(x[:count] for x in (q, k, v)),
        spec=spec,
        context=PagedContext(pages.slots, runs, pages.tables),
        layer=1,
        **weights,
    )
    rows = [(n, at) for n, (start, stop) in enumerate(runs) for at in range(start, stop)]
    width = max(map(len, pages.tables)) + 1
    tables = torch.full((count + empty, width), 1 << 30, dtype=torch.int32)
    for number, table in enumerate(pages.tables):
        tables[number, : len(table)] = torch.tensor(table)
    behind = [-1] * empty
    context = PagedPrompt(
        cache,
        torch.tensor([at for _, at in rows] + behind, device=DEVICE),
        tables.flatten().to(DEVICE),
        torch.tensor([width], dtype=torch.int32, device=DEVICE),
        rope_tables(MAX_KEYS, spec.head_dim, 1e4, DEVICE, dtype),
        MAX_KEYS,
        # what an earlier step left behind the rows is not looked at
        torch.tensor([n for n, _ in rows] + [count] * empty, dtype=torch.int32, device=DEVICE),
    )
    ops = TritonOps(DEVICE, dtype, attention=attention)
    found = ops.attention(q, k, v, spec=spec, context=context, layer=1, **weights)
    assert_near(found[:count], expected, dtype)
    assert not found[count:].any()
    near = NEAR[dtype]
    for kept, reference in zip((cache.keys, cache.values), pages.slots.planes, strict=True):
        torch.testing.assert_close(kept, reference, atol=near, rtol=near, equal_nan=True)


@pytest.mark.parametrize("attention", TritonOps.attentions)
@pytest.mark.parametrize("dtype", DTYPES)
def test_many_sequences_in_a_tile_and_many_tiles_of_one(dtype: torch.dtype, attention: str) -> None:
    """With and without earlier keys, across borders of tiles and of blocks of 64 keys."""
    check_runs([(0, 1), (3, 5), (0, 37), (70, 75), (60, 61), (0, 4)], SPEC, dtype, attention)


@pytest.mark.parametrize("heads", [(1, 1), (4, 4), (10, 2)])
def test_groups_of_heads(heads: tuple[int, int]) -> None:
    spec = AttentionSpec(*heads, head_dim=16, rope_theta=1e4, norm_eps=1e-3)
    check_runs([(0, 18), (5, 6), (2, 9)], spec)


@pytest.mark.parametrize("queries", [pytest.param(32, marks=pytest.mark.slow), 128])
def test_tiles_that_see_whole_blocks(monkeypatch: pytest.MonkeyPatch, queries: int) -> None:
    """Blocks that all of a tile see go without a mask; a tile with more sequences has one."""
    tile = PromptTile(queries, keys=16, warps=4, stages=2)
    monkeypatch.setattr("izwi.backends.torch.triton.attention_prompt.tile_for", lambda *_: tile)
    check_runs([(50, 79), (3, 40)], SPEC)
    check_runs([(33, 68)], AttentionSpec(10, 2, head_dim=16, rope_theta=1e4, norm_eps=1e-3))
