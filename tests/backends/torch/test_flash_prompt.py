"""Long prompts by FlashAttention 3: what the library is given, and what it is not asked.

Without the package, a function in torch with its documented arguments takes its place.
"""

from __future__ import annotations

from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from izwi.backends.torch.ops import TorchOps
from izwi.errors import InvalidRequest
from izwi.ops.protocol import AttentionSpec
from tests.ops.devices import DEVICE, GPU, normal

pytest.importorskip("triton")

from izwi.backends.torch.triton import attention_flash
from izwi.backends.torch.triton.attention_flash import Runs, has_flash, takes_prompt, turned_queries
from izwi.backends.torch.triton.ops import TritonOps
from tests.backends.torch.test_triton_decode import SPEC
from tests.backends.torch.test_triton_prompt import check_runs

RUNS = [(0, 1), (3, 5), (0, 37), (70, 75), (60, 61), (0, 4)]
THERE = GPU and has_flash(DEVICE)


def in_torch(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    *,
    cache_seqlens: Tensor,
    page_table: Tensor,
    cu_seqlens_q: Tensor,
    max_seqlen_q: int,
    softmax_scale: float,
    causal: bool,
    num_splits: int,
    out: Tensor,
) -> Tensor:
    """Attend sequence by sequence, as sgl_kernel's flash_attn_with_kvcache is documented."""
    assert causal
    assert num_splits == 1
    assert {x.dtype for x in (cache_seqlens, page_table, cu_seqlens_q)} == {torch.int32}
    assert len(page_table) == len(cache_seqlens) == len(cu_seqlens_q) - 1
    page = k_cache.shape[1]
    borders = cu_seqlens_q.tolist()
    for n, (start, stop) in enumerate(pairwise(borders)):
        keys = int(cache_seqlens[n])
        assert stop - start <= max_seqlen_q
        if start == stop:
            continue
        pages = page_table[n, : -(-keys // page)].long()
        k, v = (c[pages].flatten(0, 1)[:keys].transpose(0, 1) for c in (k_cache, v_cache))
        seen = torch.ones(stop - start, keys, dtype=torch.bool, device=q.device)
        seen = seen.tril(keys - (stop - start))  # aligned at the last key
        out[start:stop] = scaled_dot_product_attention(
            q[start:stop].transpose(0, 1), k, v, seen, scale=softmax_scale, enable_gqa=True
        ).transpose(0, 1)
    return out


@pytest.fixture
def flash(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every prompt go to the library, or to torch in its place."""
    monkeypatch.setattr(attention_flash, "FLASH_FROM", 1)
    if not THERE:
        monkeypatch.setattr(attention_flash, "flash_attention", lambda: in_torch)
        monkeypatch.setattr(attention_flash, "_DTYPES", (torch.float32, torch.float16))
        monkeypatch.setattr("izwi.backends.torch.triton.ops.has_flash", lambda _: True)


@pytest.mark.usefixtures("flash")
def test_sequences_with_and_without_earlier_keys() -> None:
    """The library attends as torch does, and empty rows behind the sequences stay zeros."""
    spec, dtype = SPEC, torch.float32
    if THERE:  # its kernel takes 16 bits and such widths
        spec, dtype = AttentionSpec(16, 8, head_dim=128, rope_theta=1e4), torch.bfloat16
    check_runs(RUNS, spec, dtype, "sgl-kernel")


@pytest.mark.usefixtures("flash")
def test_the_library_is_asked_once_a_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    if THERE:
        pytest.skip("the library is there")
    asked: list[Any] = []
    monkeypatch.setattr(
        attention_flash,
        "flash_attention",
        lambda: lambda *of, **named: asked.append(named) or in_torch(*of, **named),
    )
    check_runs([(0, 5)], SPEC, torch.float32, "triton")
    assert not asked
    check_runs([(0, 5)], SPEC, torch.float32, "sgl-kernel")
    assert len(asked) == 1


def test_unused_runs_are_empty() -> None:
    """Runs beyond the step's own have no rows and no keys, whatever empty rows say of theirs."""
    positions = torch.tensor([4, 5, 0, 1, 2, -1, -1], device=DEVICE)
    runs = torch.tensor([0, 0, 1, 1, 1, 9, 9], dtype=torch.int32, device=DEVICE)
    tables = torch.arange(6, dtype=torch.int32, device=DEVICE)  # of two runs, three pages each
    width = torch.tensor([3], dtype=torch.int32, device=DEVICE)
    laid = Runs.lay_out(positions, runs, tables, width, (4, 5))
    assert laid.borders.tolist() == [0, 2, 5, 5, 5]
    assert laid.stops.tolist() == [6, 3, 0, 0]
    assert laid.tables[:2, :3].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert laid.tables.shape == (4, 5)


def test_queries_turn_by_rotary_positions_if_there_are_any() -> None:
    from izwi.backends.torch.triton.attention_decode import rope_tables

    rope = rope_tables(32, SPEC.head_dim, 1e4, DEVICE, torch.float32)
    q = normal(3, SPEC.num_heads * SPEC.head_dim, seed=1)
    at, other = (torch.tensor(n, device=DEVICE) for n in ([7, 9, -1], [2, 3, 4]))
    plain = turned_queries(q, at, None, rope, SPEC, None)
    assert not plain[2].any()
    moved = turned_queries(q, at, other, rope, SPEC, None)
    assert torch.equal(moved[:2], turned_queries(q, other, None, rope, SPEC, None)[:2])
    assert not torch.allclose(moved[:2], plain[:2])


@pytest.mark.parametrize(
    ("rows", "head_dim", "dtype", "taken"),
    [
        (attention_flash.FLASH_FROM, 128, torch.bfloat16, True),
        (attention_flash.FLASH_FROM - 1, 128, torch.bfloat16, False),
        (4096, 128, torch.float32, False),
        (4096, 512, torch.float16, False),
    ],
)
def test_what_goes_to_the_library(
    rows: int, head_dim: int, dtype: torch.dtype, taken: bool
) -> None:
    assert takes_prompt(rows, head_dim, dtype) is taken


@pytest.mark.skipif(find_spec("sgl_kernel") is not None, reason="the package is there")
@pytest.mark.parametrize("ops", [TorchOps, TritonOps])
def test_without_the_package_it_is_refused_by_name(ops: type[TorchOps]) -> None:
    with pytest.raises(InvalidRequest, match="packages triton and sglang-kernel"):
        ops(DEVICE, torch.float32, attention="sgl-kernel")


def test_auto_stays_with_our_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("izwi.backends.torch.triton.ops.has_flash", lambda _: True)
    assert TritonOps(DEVICE, torch.float32).attends_with == "triton"
    assert TritonOps(DEVICE, torch.float32, attention="sgl-kernel").reads_tables
