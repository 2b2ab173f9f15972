"""The Metal kernel of paged decode attention: its source on a CPU, and on Apple's GPU itself."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from izwi.model.layers import KVSpec

mx = pytest.importorskip("mlx.core")

from izwi.backends.mlx import paged_decode  # noqa: E402
from izwi.backends.mlx.attention import attend  # noqa: E402
from izwi.backends.mlx.backend import MlxBackend  # noqa: E402
from izwi.backends.mlx.kv import MlxPagedKV  # noqa: E402
from izwi.backends.mlx.paged_decode import PagedDecoder, block_tables, decoder_of  # noqa: E402
from tests.backends.metal_emulator import HAS_COMPILER, EmulatedKernel  # noqa: E402
from tests.backends.test_chat_engine import Loop, alone, asks  # noqa: E402
from tests.models.tiny_chat import write_tiny_chat  # noqa: E402

needs_compiler = pytest.mark.skipif(not HAS_COMPILER, reason="g++ is not installed")
needs_metal = pytest.mark.skipif(not mx.metal.is_available(), reason="no Metal")
# query heads, key heads, width of a head, page, window
SHAPES = [
    (4, 2, 64, 16, None),
    (3, 3, 8, 4, None),
    (16, 2, 128, 16, 40),
    (2, 1, 80, 3, 1),
]
NEAR = {mx.float32: 2e-5, mx.float16: 3e-3, mx.bfloat16: 2e-2}


def emulated() -> EmulatedKernel:
    inputs = ["q", "keys", "values", "tables"]
    return EmulatedKernel(inputs, ["out"], paged_decode._SOURCE)


def difference(kernel: Any, shape: tuple[Any, ...], dtype: Any, seed: int, rows: int) -> float:
    """Largest difference from attention over gathered keys, in float32."""
    heads, kv_heads, width, page, window = shape
    generator = np.random.default_rng(seed)
    stops = generator.integers(1, 150, rows)
    stops[0] = generator.choice([1, page, page + 1])
    widest = -(-int(stops.max()) // page)
    tables = generator.permutation(rows * widest).reshape(rows, widest)
    stored = generator.standard_normal((2, rows * widest * page, kv_heads, width), np.float32)
    keys, values = (mx.array(part).astype(dtype) for part in stored)
    q = mx.array(generator.standard_normal((rows, heads, width), np.float32)).astype(dtype)
    exact = []
    for row, stop in enumerate(stops):
        positions = np.arange(max(0, stop - window) if window else 0, stop)
        slots = mx.array(tables[row, positions // page] * page + positions % page)
        own = [mx.take(part, slots, axis=0).astype(mx.float32)[None] for part in (keys, values)]
        exact.append(np.array(attend(q[row].astype(mx.float32)[None, None], *own, None))[0, 0])
    decoder = PagedDecoder(kernel, kv_heads, page)
    found = decoder.attend(q, keys, values, block_tables(stops, tables), window)
    assert found.shape == q.shape
    assert found.dtype == dtype
    return float(np.abs(np.array(found.astype(mx.float32)) - np.stack(exact)).max())


@needs_compiler
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        (SHAPES[2], mx.float32),
        *(
            pytest.param(shape, dtype, marks=pytest.mark.slow)
            for shape, dtype in zip(SHAPES, [*NEAR, mx.float32], strict=True)
        ),
    ],
)
def test_the_source_computes_attention_when_compiled_for_a_cpu(shape: Any, dtype: Any) -> None:
    for rows in (1, 5):
        assert difference(emulated(), shape, dtype, seed=rows, rows=rows) <= NEAR[dtype]


@needs_metal
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", NEAR, ids=str)
def test_metal_computes_attention(shape: Any, dtype: Any) -> None:
    kernel = paged_decode.metal_kernel()
    for seed in range(10):
        assert difference(kernel, shape, dtype, seed, rows=1 + seed) <= NEAR[dtype]


@needs_metal
@pytest.mark.parametrize("dtype", NEAR, ids=str)
def test_metal_keeps_the_kernel(dtype: Any) -> None:
    spec = KVSpec(2, 2, 64, windows=(None, 24))
    assert decoder_of(paged_decode.metal_kernel(), spec, 16, dtype) is not None


@needs_compiler
def test_a_kernel_that_is_right_is_kept_and_every_window_is_tried() -> None:
    kernel = emulated()
    spec = KVSpec(3, 2, 8, windows=(None, 5, None))
    assert decoder_of(kernel, spec, 4, mx.float32) == PagedDecoder(kernel, 2, 4)
    assert kernel.num_calls == 2
    assert decoder_of(kernel, KVSpec(2, 3, 16), 16, mx.bfloat16) is not None


@needs_compiler
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("key < stop", "key < stop - 1"),
        ("key < stop", "key < stop + 1"),  # which gives no number
        pytest.param("stop - WINDOW", "stop - WINDOW + 1", marks=pytest.mark.slow),
        pytest.param("stop - WINDOW", "stop - WINDOW - 1", marks=pytest.mark.slow),
        pytest.param("key % PAGE", "(key + 1) % PAGE", marks=pytest.mark.slow),
        pytest.param("* KV_HEADS + kv_head", "* KV_HEADS", marks=pytest.mark.slow),
        pytest.param("float(HEAD_DIM))", "float(HEAD_DIM + 1))", marks=pytest.mark.slow),
        pytest.param("* share", "", marks=pytest.mark.slow),
        pytest.param("simd_sum(score)", "score", marks=pytest.mark.slow),
        pytest.param(
            "threadgroup_barrier(mem_flags::mem_threadgroup);", "", marks=pytest.mark.slow
        ),
    ],
)
def test_a_kernel_that_is_wrong_is_not_used(
    right: str, wrong: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert right in paged_decode._SOURCE
    monkeypatch.setattr(paged_decode, "_SOURCE", paged_decode._SOURCE.replace(right, wrong))
    with caplog.at_level(logging.WARNING):
        assert decoder_of(emulated(), KVSpec(2, 2, 8, windows=(None, 5)), 4, mx.float32) is None
    assert "is not used" in caplog.text


def test_block_tables_are_as_the_kernel_reads_them() -> None:
    tables = block_tables(np.array([9, 3]), np.array([[5, 2, 7], [4, 0, 0]]))
    assert tables.dtype == mx.int32
    assert np.array(tables)[:, :4].tolist() == [[9, 5, 2, 7], [3, 4, 0, 0]]
    assert block_tables(np.array([1]), np.array([[3]])).size == 8  # else another address space


def test_a_kernel_that_does_not_run_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    def failing(**_: Any) -> Any:
        raise RuntimeError("no such function")

    with caplog.at_level(logging.WARNING):
        kv = MlxPagedKV(KVSpec(2, 2, 8), 3, 4, mx.float32, failing)
    assert kv.decoder is None
    assert "failed and is not used: no such function" in caplog.text


def test_only_a_gpu_gets_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def kept(spec: Any, pages: int, size: int, dtype: Any, kernel: Any) -> Any:
        made.append(kernel)
        return MlxPagedKV(spec, pages, size, dtype)

    monkeypatch.setattr("izwi.backends.mlx.backend.MlxPagedKV", kept)
    from izwi.backends.mlx.ops import MlxOps

    for is_gpu in (False, True):
        backend = MlxBackend(MlxOps())
        backend._is_gpu = is_gpu
        backend.paged_kv(KVSpec(1, 1, 8), 2, 4, "auto")
    assert made == [None, paged_decode.metal_kernel()]


@needs_compiler
def test_the_engine_gives_the_same_ids_with_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decodes alone and beside chunks of prompts, over pages that move."""
    folder = write_tiny_chat(tmp_path / "chat")
    expected, kernel = alone(folder, "mlx"), emulated()

    def with_kernel(spec: Any, pages: int, size: int, dtype: Any, _: Any) -> MlxPagedKV:
        return MlxPagedKV(spec, pages, size, dtype, kernel)

    monkeypatch.setattr("izwi.backends.mlx.backend.MlxPagedKV", with_kernel)
    loop = Loop(folder, "mlx", max_running=4, max_step_tokens=9)
    before = kernel.num_calls
    assert loop.run(*asks(loop.frontend)) == expected
    assert kernel.num_calls > before + 60
