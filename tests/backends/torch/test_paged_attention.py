"""Paged attention equals dense attention, however prompts are cut and pages are scattered."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from izwi.backends.torch.attention.dense import attend
from izwi.backends.torch.attention.paged import PagedContext
from izwi.backends.torch.attention.slots import PlainSlots
from izwi.backends.torch.ops import TorchOps
from izwi.ops.protocol import AttentionSpec

SPEC = AttentionSpec(num_heads=6, num_kv_heads=2, head_dim=8, rope_theta=1e4)
PAGE = 4
CPU = torch.device("cpu")

Rows = list[tuple[tuple[int, int], list[int]]]  # span and pages of each row


def slots_of(num_pages: int, page_size: int = PAGE) -> PlainSlots:
    """Pages whose content must not be read: NaN, except in the padding slot."""
    slots = PlainSlots((1, num_pages, 2, 8), page_size, CPU, torch.float32)
    for plane in slots.planes:
        plane[:, : slots.padding_slot] = torch.nan
    return slots


@pytest.mark.parametrize("cuts", [[13], [1] * 13, [5, 1, 7], [12, 1]])
def test_equals_dense(cuts: list[int]) -> None:
    ops, g = TorchOps(), torch.Generator().manual_seed(0)
    lengths = [13, 13, 13]
    q, k, v = (torch.randn(3, 13, heads * 8, generator=g) for heads in (6, 2, 2))
    norm = torch.rand(8, generator=g)
    whole = ops.attention(
        q, k, v, spec=SPEC, context=ops.dense_context(3, 13), layer=0, q_norm=norm, k_norm=norm
    )
    pages = np.random.default_rng(0).permutation(14)[:12].reshape(3, 4).tolist()
    slots = slots_of(14)
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
        tables = [
            pages[i][: -(-stop // PAGE)] for (i, _), (_, stop) in zip(rows, spans, strict=True)
        ]
        pick = [(i, slice(start, stop)) for (i, _), (start, stop) in zip(rows, spans, strict=True)]
        packed = ops.attention(
            *(torch.cat([x[i, s] for i, s in pick]) for x in (q, k, v)),
            spec=SPEC,
            context=PagedContext(slots, spans, tables),
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


def reference(keys: torch.Tensor, values: torch.Tensor, q: torch.Tensor, rows: Rows, page: int):
    """Lay out each row by itself in plain loops, then attend: keys and values are in place."""
    places = np.cumsum([0] + [stop - start for (start, stop), _ in rows])
    out = torch.full_like(q, torch.nan)
    for single in (True, False):
        members = [i for i, ((a, b), _) in enumerate(rows) if (b - a == 1) == single]
        if not members:
            continue
        longest = max(b - a for (a, b), _ in (rows[i] for i in members))
        longest = longest if single else -(-longest // 4) * 4
        num_keys = -(-max(rows[i][0][1] for i in members) // 64) * 64
        if num_keys % 512 in (256, 320):
            num_keys += 384 - num_keys % 512
        padded_q = torch.zeros(len(members), longest, *q.shape[1:])
        padded_k, padded_v = torch.zeros(2, len(members), num_keys, *keys.shape[1:])
        mask = torch.zeros(len(members), longest, num_keys, dtype=torch.bool)
        for r, i in enumerate(members):
            (start, stop), table = rows[i]
            padded_q[r] = q[places[i]]
            mask[r, :, 0] = True
            for position in range(stop):
                slot = table[position // page] * page + position % page
                padded_k[r, position], padded_v[r, position] = keys[slot], values[slot]
            for j in range(stop - start):
                padded_q[r, j] = q[places[i] + j]
                mask[r, j, : start + j + 1] = True
        result = attend(padded_q, padded_k, padded_v, mask)
        for r, i in enumerate(members):
            count = places[i + 1] - places[i]
            out[places[i] : places[i + 1]] = result[r, :count]
    return out


def random_rows(rng: np.random.Generator, kinds: str, page: int) -> tuple[Rows, int]:
    spans = []
    for kind in kinds:
        start = int(rng.integers(0, 140))
        spans.append((start, start + (1 if kind == "d" else int(rng.integers(2, 90)))))
    widths = [-(-stop // page) for _, stop in spans]
    pages = rng.permutation(sum(widths) + 3).tolist()
    rows = [(span, [pages.pop() for _ in range(w)]) for span, w in zip(spans, widths, strict=True)]
    return rows, sum(widths) + 3


@pytest.mark.parametrize("page", [4, 16, 48])
@pytest.mark.parametrize("kinds", ["d", "ddddddd", "p", "ppp", "pddpd"])
def test_bits_are_those_of_a_plain_layout(kinds: str, page: int) -> None:
    rng, g = np.random.default_rng(len(kinds) + page), torch.Generator().manual_seed(page)
    rows, num_pages = random_rows(rng, kinds, page)
    slots = slots_of(num_pages, page)
    # earlier steps wrote what comes before each row
    for (start, _), table in rows:
        written = [table[p // page] * page + p % page for p in range(start)]
        for plane in slots.planes:
            plane[0, written] = torch.randn(start, 2, 8, generator=g)
    num_tokens = sum(stop - start for (start, stop), _ in rows)
    q = torch.randn(num_tokens, 6, 8, generator=g)
    k, v = torch.randn(2, num_tokens, 2, 8, generator=g)
    context = PagedContext(slots, [span for span, _ in rows], [table for _, table in rows])
    out = context.attend(0, q, k, v)
    place = 0
    for (start, stop), table in rows:  # every key is where the row's table says
        for p in range(start, stop):
            slot = table[p // page] * page + p % page
            assert torch.equal(slots.planes[0][0, slot], k[place])
            assert torch.equal(slots.planes[1][0, slot], v[place])
            place += 1
    assert torch.equal(out, reference(slots.planes[0][0], slots.planes[1][0], q, rows, page))


def test_rows_bits_do_not_depend_on_the_batch() -> None:
    g = torch.Generator().manual_seed(5)
    spans = [(150, 151), (0, 40), (63, 64), (100, 140), (3, 4), (17, 69)]
    widths = [-(-stop // PAGE) for _, stop in spans]
    num_pages = sum(widths)
    pages = np.random.default_rng(5).permutation(num_pages).tolist()
    rows = [(span, [pages.pop() for _ in range(w)]) for span, w in zip(spans, widths, strict=True)]
    filled = torch.randn(2, 1, num_pages * PAGE, 2, 8, generator=g)
    counts = [stop - start for (start, stop), _ in rows]
    q, k, v = (torch.randn(sum(counts), heads, 8, generator=g) for heads in (6, 2, 2))

    def run(members: list[int]) -> list[torch.Tensor]:
        slots = slots_of(num_pages)
        for plane, before in zip(slots.planes, filled, strict=True):
            plane[:, : slots.padding_slot] = before
        context = PagedContext(slots, [rows[i][0] for i in members], [rows[i][1] for i in members])
        parts = [x.split(counts) for x in (q, k, v)]
        out = context.attend(0, *(torch.cat([part[i] for i in members]) for part in parts))
        return list(out.split([counts[i] for i in members]))

    together = run(list(range(len(rows))))
    for i in range(len(rows)):
        assert torch.equal(run([i])[0], together[i])


def test_pages_are_what_attention_reads() -> None:
    ops, g = TorchOps(), torch.Generator().manual_seed(0)
    slots = slots_of(2)
    q, k, v = (torch.randn(5, heads * 8, generator=g) for heads in (6, 2, 2))

    def step(start: int, stop: int) -> torch.Tensor:
        context = PagedContext(slots, [(start, stop)], [[1, 0][: -(-stop // PAGE)]])
        part = (x[start:stop] for x in (q, k, v))
        return ops.attention(*part, spec=SPEC, context=context, layer=0)

    step(0, 4)
    right = step(4, 5)
    slots.planes[1][0, PAGE] += 1.0  # position 0 lives in the first slot of page 1
    assert not torch.allclose(step(4, 5), right)
