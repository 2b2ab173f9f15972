"""Attention kernels turn rows by their rotary positions where those differ from the positions."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from izwi.backends.torch.attention.dense import rotate
from izwi.backends.torch.triton.attention_decode import (
    DecodeCache,
    PagedDecode,
    rope_tables,
)
from izwi.backends.torch.triton.attention_prompt import PagedPrompt
from izwi.ops.protocol import AttentionSpec
from tests.ops.devices import DEVICE, NEAR

SPEC = AttentionSpec(4, 2, 16, 10_000.0)


@pytest.mark.parametrize("kind", [PagedDecode, PagedPrompt])
def test_rows_turn_by_their_rotary_positions(kind):
    torch.manual_seed(0)
    keys, values = torch.randn(2, 1, 33, 2, 16).to(DEVICE)
    keys[:, 32] = values[:, 32] = 0
    positions = torch.tensor([5, 9], device=DEVICE)
    width = torch.tensor([2], dtype=torch.int32, device=DEVICE)
    tables = torch.arange(4, dtype=torch.int32, device=DEVICE)
    rope = rope_tables(32, 16, 10_000.0, DEVICE, torch.float32)
    q, k, v = (torch.randn(2, size).to(DEVICE) for size in (64, 32, 32))
    runs = (torch.arange(2, dtype=torch.int32, device=DEVICE),) if kind is PagedPrompt else ()

    def context(rotary):
        cache = DecodeCache(keys.clone(), values.clone(), 8)
        made = kind(cache, positions, tables, width, rope, 32, *runs)
        made.rotary = rotary
        return made, cache

    outputs = []
    for rotary in (torch.tensor([2, 4], device=DEVICE), None):
        ours, written = context(rotary)
        outputs.append(ours.attend_fused(0, q, k, v, SPEC, None, None))
        plain, expected = context(rotary)
        table = plain.in_torch.rope(2, SPEC, torch.float32)
        turned = [rotate(x.view(2, -1, 16), table) for x in (q, k)]
        out = plain.in_torch.attend(0, *turned, v.view(2, 2, 16)).flatten(-2)
        torch.testing.assert_close(outputs[-1], out, atol=NEAR[torch.float32], rtol=0)
        torch.testing.assert_close(written.keys, expected.keys, atol=1e-6, rtol=0)
    assert (outputs[0] - outputs[1]).abs().max() > 1e-2
