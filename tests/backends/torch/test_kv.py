"""Pages keep exact bits when they are copied or moved, and 8 bits are close enough."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from izwi.backends.torch.attention.slots import dequantize, quantize, stored_dtype
from izwi.backends.torch.kv import PagedKV, bytes_per_page
from izwi.errors import InvalidRequest
from izwi.model.layers import KVSpec
from izwi.model.step_batch import Row

CPU = torch.device("cpu")
SPEC = KVSpec(num_layers=3, num_kv_heads=2, head_dim=6)  # odd sizes on purpose
PAGE = 4
KINDS = [
    (torch.float32, "auto"),
    (torch.bfloat16, "auto"),
    (torch.float16, "auto"),
    (torch.bfloat16, "int8"),
    (torch.float32, "fp8"),
]


def row(pages: list[int], start: int, stop: int) -> Row:
    # what a cache asks of it
    return cast(Any, SimpleNamespace(pages=pages, start=start, stop=stop))


def filled(dtype: torch.dtype, kv_dtype: str, num_pages: int = 6) -> PagedKV:
    """Every page written through attention, as in a step."""
    kv = PagedKV(SPEC, num_pages, PAGE, CPU, dtype, kv_dtype)
    context = kv.context([row(list(range(num_pages)), 0, num_pages * PAGE)])
    g = torch.Generator().manual_seed(0)
    for layer in range(SPEC.num_layers):
        q, k, v = torch.randn(3, num_pages * PAGE, 2, 6, generator=g).to(dtype)
        context.attend(layer, q, k, v)
    return kv


def attended(kv: PagedKV, pages: list[int], dtype: torch.dtype) -> torch.Tensor:
    """What the last position of these pages sees in every layer."""
    count = len(pages) * PAGE
    context = kv.context([row(pages, count - 1, count)])
    g = torch.Generator().manual_seed(1)
    q, k, v = torch.randn(3, 1, 2, 6, generator=g).to(dtype)
    return torch.stack([context.attend(layer, q, k, v) for layer in range(SPEC.num_layers)])


@pytest.mark.parametrize(("dtype", "kv_dtype"), KINDS)
def test_pages_come_back_bit_for_bit(dtype: torch.dtype, kv_dtype: str) -> None:
    kv = filled(dtype, kv_dtype)
    pages = [4, 1, 3]
    data = kv.read_pages(pages)
    assert data.shape == (3, kv.page_bytes)
    assert len({page.tobytes() for page in data}) == 3
    expected = attended(kv, [*pages, 5], dtype)
    kept = kv.read_pages([5])
    other = PagedKV(SPEC, 8, PAGE, CPU, dtype, kv_dtype)
    other.write_pages([0, 7, 2], data)
    other.write_pages([5], kept)
    np.testing.assert_array_equal(other.read_pages([0, 7, 2]), data)
    assert torch.equal(attended(other, [0, 7, 2, 5], dtype), expected)


def test_pages_keep_bits_that_are_no_numbers() -> None:
    kv = PagedKV(SPEC, 3, PAGE, CPU, torch.bfloat16)
    data = np.random.default_rng(0).integers(0, 256, (2, kv.page_bytes), dtype=np.uint8)
    kv.write_pages([2, 0], data)
    np.testing.assert_array_equal(kv.read_pages([2, 0]), data)


def test_pages_of_another_size_are_refused() -> None:
    kv = PagedKV(SPEC, 2, PAGE, CPU, torch.float32)
    with pytest.raises(ValueError):
        kv.write_pages([0], np.zeros((1, kv.page_bytes - 1), dtype=np.uint8))


@pytest.mark.parametrize(("dtype", "kv_dtype"), KINDS)
def test_copy_takes_the_first_slots_only(dtype: torch.dtype, kv_dtype: str) -> None:
    kv = filled(dtype, kv_dtype)

    def of(page: int) -> np.ndarray:
        """(slots, bytes) of a page, whatever the planes."""
        bytes_of = [plane[..., None].view(torch.uint8).flatten(2) for plane in kv._slots.planes]
        start = page * PAGE
        slots = [plane[:, start : start + PAGE].transpose(0, 1).flatten(1) for plane in bytes_of]
        return torch.cat(slots, 1).numpy()

    before = [of(page).copy() for page in range(6)]
    kv.copy([(0, 1, 3), (1, 2, 4), (5, 3, 1)])  # page 1 is read before it is written
    np.testing.assert_array_equal(of(1), np.concatenate([before[0][:3], before[1][3:]]))
    np.testing.assert_array_equal(of(2), before[1])
    np.testing.assert_array_equal(of(3), np.concatenate([before[5][:1], before[3][1:]]))
    for page in (0, 4, 5):
        np.testing.assert_array_equal(of(page), before[page])
    kv.copy([])


def test_stale_contents_of_a_page_do_not_reach_attention() -> None:
    dtype = torch.float32
    clean, dirty = PagedKV(SPEC, 4, PAGE, CPU, dtype), PagedKV(SPEC, 4, PAGE, CPU, dtype)
    rotten = np.full((4, dirty.page_bytes // 4), np.nan, dtype=np.float32).view(np.uint8)
    dirty.write_pages([0, 1, 2, 3], rotten)
    clean.write_pages([0, 1, 2, 3], np.zeros_like(rotten))
    g = torch.Generator().manual_seed(2)
    q, k, v = torch.randn(3, 7, 2, 6, generator=g)
    outs = []
    for kv in (clean, dirty):
        context = kv.context([row([3, 1], 0, 6), row([2], 0, 1)])
        outs.append(context.attend(1, q, k, v))
    assert torch.equal(*outs)


@pytest.mark.parametrize(("kv_dtype", "tolerance"), [("int8", 0.01), ("fp8", 0.06)])
@pytest.mark.parametrize("size", [1e-4, 1.0, 1e4])
def test_attention_over_8_bits_is_close(kv_dtype: str, tolerance: float, size: float) -> None:
    """Against exact pages, relative to the size of the values.

    The last bit of int8 is 1/127 of a vector's largest number and rounding errs by half of it;
    e4m3 errs by up to 1/16 of each number. Sums over keys err less, softmax weights a little more.
    """
    spec, count = KVSpec(1, 2, 64), 100
    g = torch.Generator().manual_seed(3)
    q = torch.randn(count, 4, 64, generator=g)
    k = torch.randn(count, 2, 64, generator=g)
    v = torch.randn(count, 2, 64, generator=g) * size
    outs = []
    for kind in ("auto", kv_dtype):
        kv = PagedKV(spec, 8, 16, CPU, torch.float32, kind)
        outs.append(kv.context([row([7, 0, 3, 1, 2, 5, 6], 0, count)]).attend(0, q, k, v) / size)
    error = (outs[0] - outs[1]).abs()
    assert 0 < error.square().mean().sqrt() < tolerance
    assert error.max() < 8 * tolerance


def test_8_bits_do_not_depend_on_cuts() -> None:
    g = torch.Generator().manual_seed(4)
    q, k, v = torch.randn(3, 9, 2, 6, generator=g)
    stored = []
    for cuts in ([0, 9], [0, 4, 5, 9]):
        kv = PagedKV(SPEC, 3, PAGE, CPU, torch.float32, "int8")
        kv.write_pages([0, 1, 2], np.zeros((3, kv.page_bytes), dtype=np.uint8))
        for start, stop in pairwise(cuts):
            context = kv.context([row([2, 0, 1], start, stop)])
            context.attend(0, q[start:stop], k[start:stop], v[start:stop])
        stored.append(kv.read_pages([0, 1, 2]))
    np.testing.assert_array_equal(*stored)


@pytest.mark.parametrize("stored", [torch.int8, torch.float8_e4m3fn])
def test_zeros_stay_zeros_and_sick_numbers_stay_sick(stored: torch.dtype) -> None:
    x = torch.zeros(3, 4)
    x[1, 2], x[2, 0] = torch.inf, torch.nan
    back = dequantize(*quantize(x, stored), torch.float32)
    assert torch.equal(back[0], x[0])
    assert not back[1].isfinite().all()
    assert not back[2].isfinite().all()


@pytest.mark.parametrize(("dtype", "kv_dtype"), KINDS)
def test_bytes_per_page_are_what_is_allocated(dtype: torch.dtype, kv_dtype: str) -> None:
    slots = PagedKV(SPEC, 6, PAGE, CPU, dtype, kv_dtype)._slots
    per_slot = sum(plane.nbytes for plane in slots.planes) // (6 * PAGE + 1)
    assert bytes_per_page(SPEC, PAGE, dtype, kv_dtype) == PAGE * per_slot


def test_8_bits_take_about_half_of_16() -> None:
    spec = KVSpec(28, 8, 128)
    exact = bytes_per_page(spec, 16, torch.bfloat16)
    assert exact == 2 * 28 * 8 * 128 * 16 * 2
    for kind in ("int8", "fp8"):
        assert bytes_per_page(spec, 16, torch.bfloat16, kind) / exact == pytest.approx(
            0.516, abs=1e-3
        )


def test_unknown_and_unsupported_kinds_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="int4"):
        PagedKV(SPEC, 1, PAGE, CPU, torch.float32, "int4")
    with pytest.raises(InvalidRequest, match="mps"):
        stored_dtype("fp8", torch.float32, torch.device("mps"))
    assert stored_dtype("int8", torch.float32, torch.device("mps")) is torch.int8


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("dtype", "kv_dtype"), KINDS)
def test_pages_moved_to_a_gpu_keep_their_bits(dtype: torch.dtype, kv_dtype: str) -> None:
    cpu = filled(dtype, kv_dtype)
    data = cpu.read_pages([4, 1, 3])
    gpu = PagedKV(SPEC, 8, PAGE, torch.device("cuda"), dtype, kv_dtype)
    gpu.write_pages([0, 7, 2], data)
    gpu.copy([(0, 5, PAGE), (7, 4, PAGE)])
    np.testing.assert_array_equal(gpu.read_pages([5, 4, 2]), data)
    g = torch.Generator().manual_seed(1)
    q, k, v = torch.randn(3, 6, 2, 6, generator=g).to(dtype)
    rows = [([4, 1, 3], [5, 4, 2], 9, 12), ([0, 2], [1, 3], 0, 2), ([5], [6], 0, 1)]
    outs = []
    for kv, column in ((cpu, 0), (gpu, 1)):
        context = kv.context([row(r[column], r[2], r[3]) for r in rows])
        device = kv._slots.device
        outs.append(context.attend(2, q.to(device), k.to(device), v.to(device)).cpu())
    torch.testing.assert_close(*outs, atol=1e-2 if dtype != torch.float32 else 1e-5, rtol=1e-2)
