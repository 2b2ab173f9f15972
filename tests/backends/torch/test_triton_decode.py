"""The decode kernels attend as torch does, and keep the same keys and values."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from izwi.backends.torch.attention.paged import PagedContext
from izwi.backends.torch.attention.slots import PlainSlots
from izwi.backends.torch.ops import TorchOps
from izwi.backends.torch.triton.attention_decode import (
    DecodeCache,
    PagedDecode,
    ScratchDecode,
    num_parts,
    rope_tables,
    takes_heads,
)
from izwi.backends.torch.triton.ops import TritonOps
from izwi.backends.torch.triton.rows import PendingNorm
from izwi.ops.protocol import AttentionSpec
from tests.ops.devices import DEVICE, DTYPES, NEAR, assert_near, normal

SPEC = AttentionSpec(num_heads=6, num_kv_heads=2, head_dim=16, rope_theta=1e4, norm_eps=1e-3)
PAGE, LAYERS, MAX_KEYS = 4, 2, 160


def packed(
    rows: tuple[int, ...], spec: AttentionSpec, seed: int, dtype: torch.dtype
) -> list[Tensor]:
    """q, k and v as views of one projection."""
    widths = [n * spec.head_dim for n in (spec.num_heads, spec.num_kv_heads, spec.num_kv_heads)]
    return list(normal(*rows, sum(widths), seed=seed, dtype=dtype).split(widths, dim=-1))


def norms(spec: AttentionSpec, dtype: torch.dtype) -> dict[str, Tensor]:
    q_norm, k_norm = (normal(spec.head_dim, seed=s, dtype=dtype) * 0.2 + 1 for s in (8, 9))
    return {"q_norm": q_norm, "k_norm": k_norm}


def divided(parts: list[Tensor], pending: PendingNorm) -> list[Tensor]:
    """What a pending norm makes of queries, keys and values."""
    roots = torch.rsqrt(pending.x.float().square().mean(-1) + pending.eps)
    return [part.float() * roots.view(*part.shape[:-1], 1) for part in parts]


@dataclass(frozen=True, slots=True, eq=False)
class Pages:
    """Rows of some lengths on scattered pages; what is not a row's earlier position is NaN."""

    slots: PlainSlots
    tables: list[list[int]]

    @staticmethod
    def for_positions(
        positions: list[int], spec: AttentionSpec, dtype: torch.dtype, page: int
    ) -> Pages:
        counts = [position // page + 1 for position in positions]
        pages = np.random.default_rng(3).permutation(sum(counts) + 2).tolist()
        tables = [[pages.pop() for _ in range(count)] for count in counts]
        shape = (LAYERS, sum(counts) + 2, spec.num_kv_heads, spec.head_dim)
        slots = PlainSlots(shape, page, DEVICE, dtype)
        for seed, plane in enumerate(slots.planes):
            numbers = normal(*plane.shape, seed=20 + seed, dtype=dtype)
            plane[:, : slots.padding_slot] = torch.nan
            for position, table in zip(positions, tables, strict=True):
                earlier = [table[p // page] * page + p % page for p in range(position)]
                plane[:, earlier] = numbers[:, earlier]
        return Pages(slots, tables)

    def decode_cache(self) -> DecodeCache:
        keys, values = (plane.clone() for plane in self.slots.planes)
        return DecodeCache(keys, values, self.slots.page_size)


def check_paged(
    positions: list[int],
    spec: AttentionSpec,
    dtype: torch.dtype = torch.float32,
    page: int = PAGE,
    max_keys: int = MAX_KEYS,
    normed: bool = True,
    attention: str = "triton",
    pending: bool = False,
) -> None:
    """Compare a step in which every second row is empty."""
    live = list(range(0, 2 * len(positions), 2))
    pages = Pages.for_positions(positions, spec, dtype, page)
    cache = pages.decode_cache()
    q, k, v = packed((2 * len(positions),), spec, 4, dtype)
    weights = norms(spec, dtype) if normed else {"q_norm": None, "k_norm": None}
    norm = PendingNorm(3 * normal(len(q), 40, seed=5, dtype=dtype), 0.1) if pending else None
    whole = divided([q, k, v], norm) if norm else [q, k, v]
    expected = TorchOps(DEVICE, dtype).attention(
        *(x[live].to(dtype) for x in whole),
        spec=spec,
        context=PagedContext(pages.slots, [(p, p + 1) for p in positions], pages.tables),
        layer=1,
        **weights,
    )
    all_positions = torch.full((2 * len(positions),), -1)
    all_positions[live] = torch.tensor(positions)
    width = max(len(table) for table in pages.tables) + 3
    tables = torch.full((len(all_positions), width), 1 << 30, dtype=torch.int32)
    for row, table in zip(live, pages.tables, strict=True):
        tables[row, : len(table)] = torch.tensor(table)
    theta = spec.rope_theta
    context = PagedDecode(
        cache,
        all_positions.to(DEVICE),
        tables.flatten().to(DEVICE),
        torch.tensor([width], dtype=torch.int32, device=DEVICE),
        None if theta is None else rope_tables(MAX_KEYS, spec.head_dim, theta, DEVICE, dtype),
        max_keys,
    )
    ops = TritonOps(DEVICE, dtype, attention=attention)
    if norm:
        found = context.attend_fused(1, q, k, v, spec, *weights.values(), norm)
    else:
        found = ops.attention(q, k, v, spec=spec, context=context, layer=1, **weights)
    assert_near(found[live], expected, dtype)
    assert not found[1::2].any()
    near = NEAR[dtype]
    for kept, reference in zip((cache.keys, cache.values), pages.slots.planes, strict=True):
        torch.testing.assert_close(kept, reference, atol=near, rtol=near, equal_nan=True)


@pytest.mark.parametrize("attention", TritonOps.attentions)
@pytest.mark.parametrize("dtype", DTYPES)
def test_paged_attention(dtype: torch.dtype, attention: str) -> None:
    """First tokens, borders of pages and of blocks of 64 keys, and more than two blocks."""
    check_paged([0, 1, 3, 4, 5, 63, 64, 65, 150], SPEC, dtype, attention=attention)


@pytest.mark.parametrize("seed", range(6))
def test_every_implementation_attends_alike_whatever_the_shapes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    group, kv_heads = (int(n) for n in rng.integers(1, 6, 2))
    theta = None if seed % 3 == 0 else 1e4
    spec = AttentionSpec(group * kv_heads, kv_heads, int(rng.choice([16, 32, 64])), theta, 1e-3)
    positions = rng.integers(0, MAX_KEYS, rng.integers(1, 6)).tolist()
    page = int(rng.choice([1, 4, 16]))
    for attention in TritonOps.attentions:
        check_paged(positions, spec, page=page, normed=seed % 2 == 0, attention=attention)


@pytest.mark.parametrize("page", [1, 16])
def test_sizes_of_pages(page: int) -> None:
    check_paged([0, 15, 16, 70], SPEC, page=page)


@pytest.mark.parametrize("dtype", DTYPES)
def test_keys_in_parts(dtype: torch.dtype) -> None:
    """With the parts of a long row: none, fewer than one block each, several."""
    assert num_parts(8, 2, 1024) == 4
    check_paged([0, 1, 64, 150], SPEC, dtype, max_keys=1024)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("max_keys", [MAX_KEYS, 1024])
def test_a_norm_that_is_pending(max_keys: int, dtype: torch.dtype) -> None:
    for normed in (True, False):
        check_paged([0, 5, 70], SPEC, dtype, max_keys=max_keys, normed=normed, pending=True)


def test_without_rotation_or_norm() -> None:
    check_paged([0, 9], replace(SPEC, rope_theta=None), normed=True)
    check_paged([0, 9], SPEC, normed=False)


def test_one_query_a_head_and_many() -> None:
    check_paged([2, 9], AttentionSpec(3, 3, 32, 1e4))
    check_paged([2, 9], AttentionSpec(20, 1, 32, 1e4))


def test_parts_follow_from_sizes_alone() -> None:
    assert num_parts(1, 8, 512) == num_parts(64, 8, 512) == 1
    assert num_parts(1, 8, 4096) == 16
    assert num_parts(64, 8, 4096) == 4
    assert num_parts(1, 8, 600) == 4


def test_heads_that_the_kernels_take() -> None:
    assert takes_heads(16)
    assert not takes_heads(8)
    assert not takes_heads(48)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("calls", [[2, 1, 1, 1], [1] * 5, [1, 2, 2]])
@pytest.mark.parametrize("pending", [False, True])
def test_scratch_attention(pending: bool, calls: list[int], dtype: torch.dtype) -> None:
    rows, capacity = 3, 5
    ops = TorchOps(DEVICE, dtype)
    reference = ops.scratch_context(rows, capacity, LAYERS, SPEC)
    context = ScratchDecode(rows, capacity, LAYERS, SPEC, DEVICE, dtype)
    weights = norms(SPEC, dtype)
    for step, tokens in enumerate(calls):
        for layer in range(LAYERS):
            seed = 10 * step + layer
            parts = packed((rows, tokens), SPEC, seed, dtype)
            x = 3 * normal(rows * tokens, 40, seed=seed, dtype=dtype)
            norm = PendingNorm(x, 0.1) if pending else None
            q, k, v = (part.to(dtype) for part in (divided(parts, norm) if norm else parts))
            expected = ops.attention(q, k, v, spec=SPEC, context=reference, layer=layer, **weights)
            found = context.attend_fused(layer, *parts, SPEC, **weights, pending=norm)
            assert_near(found, expected, dtype)
        reference.advance(tokens)
        context.advance(tokens)


def test_scratch_attention_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="33 positions"):
        ScratchDecode(1, 33, 1, SPEC, DEVICE, torch.float32)
    context = ScratchDecode(1, 4, 1, SPEC, DEVICE, torch.float32)
    with pytest.raises(ValueError, match="3 tokens"):
        context.attend_fused(0, *packed((1, 3), SPEC, 0, torch.float32), SPEC, None, None)
    context.advance(3)
    with pytest.raises(ValueError, match="2 tokens at position 3"):
        context.attend_fused(0, *packed((1, 2), SPEC, 0, torch.float32), SPEC, None, None)
