"""Pages and state rows of every backend: bits are restored, neighbours do not change."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from izwi.errors import InvalidRequest
from izwi.model.layers import ConvSpec, KVSpec, StateSpec
from tests.backends.kinds import backend_of, each_and_ahead

PAGE = 4
SPEC = KVSpec(2, 2, 8, 1e4)
WITH_CONV = KVSpec(2, 2, 8, 1e4, conv=ConvSpec(3, 6, 3))


def filled(backend: str, spec: KVSpec = SPEC, dtype: str = "float32") -> tuple[Any, Any]:
    """Six pages of random bytes, and what is in them."""
    made = backend_of(backend, dtype)
    kv = made.paged_kv(spec, 6, PAGE, "auto")
    page_bytes = made.page_bytes(spec, PAGE, "auto")
    numbers = np.random.default_rng(0).standard_normal((6, page_bytes // 2)).astype(np.float16)
    kv.write_pages(list(range(6)), numbers.view(np.uint8))
    return kv, numbers.view(np.uint8)


@each_and_ahead
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("spec", [SPEC, WITH_CONV], ids=["attention", "convolution"])
def test_pages_come_back_bit_for_bit(backend: str, dtype: str, spec: KVSpec) -> None:
    kv, data = filled(backend, spec, dtype)
    assert np.array_equal(kv.read_pages([4, 1]), data[[4, 1]])
    kv.write_pages([2, 5], data[[0, 3]])
    assert np.array_equal(kv.read_pages(range(6)), data[[0, 1, 0, 3, 4, 3]])


@each_and_ahead
def test_a_part_of_a_page_is_copied_and_the_rest_stays(backend: str) -> None:
    kv, data = filled(backend)
    kv.copy([(0, 3, 2), (3, 1, PAGE)])  # every source is read before any is written
    kv.copy([])
    after = kv.read_pages(range(6)).view(np.float32).reshape(6, 4, PAGE, -1)  # planes of layers
    before = data.view(np.float32).reshape(6, 4, PAGE, -1)
    expected = before.copy()
    expected[3, :, :2] = before[0, :, :2]
    expected[1] = before[3]
    assert np.array_equal(after.view(np.uint32), expected.view(np.uint32))


WINDOW = 5


def dense(q: Any, k: Any, v: Any, window: int | None) -> Any:
    """Attention of each query over the keys that it sees, (positions, 2 heads, 8)."""
    outputs = np.zeros_like(q)
    for at in range(len(q)):
        first = 0 if window is None else max(0, at - window + 1)
        for head in range(q.shape[1]):
            weights = np.exp(k[first : at + 1, head] @ q[at, head] / np.sqrt(q.shape[2]))
            outputs[at, head] = weights @ v[first : at + 1, head] / weights.sum()
    return outputs


@each_and_ahead
@pytest.mark.parametrize("starts", [(0,), (0, 4), (0, 5, 6, 7), tuple(range(11))], ids=str)
def test_a_window_ends_at_its_border(backend: str, starts: tuple[int, ...]) -> None:
    """In prompts and in decodes, and beside a layer without a window."""
    made, ops = backend_of(backend), backend_of(backend).ops
    kv = made.paged_kv(KVSpec(2, 2, 8, windows=(None, WINDOW)), 6, PAGE, "auto")
    rng = np.random.default_rng(len(starts))
    q, k, v = (rng.standard_normal((11, 2, 8)).astype(np.float32) for _ in range(3))
    pages = [3, 0, 4]
    for start, stop in zip(starts, (*starts[1:], 11), strict=True):
        context = kv.context([SimpleNamespace(pages=pages, start=start, stop=stop)])
        parts = [ops.array(part[start:stop]) for part in (q, k, v)]
        for layer, window in enumerate((None, WINDOW)):
            found = context.attend(layer, *parts)
            expected = dense(q, k, v, window)[start:stop]
            np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-4, atol=1e-5)


@each_and_ahead
def test_pages_of_another_size_are_refused(backend: str) -> None:
    kv, data = filled(backend)
    with pytest.raises(ValueError, match="bytes each"):
        kv.write_pages([0], data[:1, 1:])
    with pytest.raises(ValueError, match="bytes each"):
        kv.write_pages([0], data[:1].astype(np.int16))
    with pytest.raises(InvalidRequest):
        backend_of(backend).paged_kv(SPEC, 6, PAGE, "int3")


STATE = {"x": StateSpec((2, 3)), "n": StateSpec((1,), "int64")}


def values(ops: Any, rows: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "x": ops.array(rng.standard_normal((rows, 2, 3))),
        "n": ops.array(rng.integers(0, 1 << 40, (rows, 1))),
    }


def read(made: Any, arena: Any, rows: list[int]) -> dict[str, Any]:
    return {name: made.ops.numpy(part).tolist() for name, part in arena.gather(rows).items()}


@each_and_ahead
def test_rows_are_gathered_scattered_saved_and_restored(backend: str) -> None:
    made = backend_of(backend)
    arena = made.state_arena(STATE, 3)
    rows = [arena.allocate() for _ in range(3)]
    assert arena.num_free == 0
    given = values(made.ops, 2, seed=1)
    arena.scatter([rows[2], rows[0]], given)
    assert not arena.is_committed(rows[0])
    arena.commit([rows[0], rows[2]])
    assert arena.is_committed(rows[0])
    expected = {name: made.ops.numpy(part).tolist() for name, part in given.items()}
    assert read(made, arena, [rows[2], rows[0]]) == expected
    assert read(made, arena, [rows[1]]) == {"x": [[[0.0] * 3] * 2], "n": [[0]]}
    saved = arena.save(rows[2])
    assert saved.num_bytes == 6 * 4 + 8
    arena.clear(rows[2])
    assert read(made, arena, [rows[2]]) == {"x": [[[0.0] * 3] * 2], "n": [[0]]}
    arena.restore(rows[1], saved)
    both = read(made, arena, [rows[1], rows[0]])
    assert both == expected
    arena.release(rows[1])
    assert arena.allocate() == rows[1]
    assert read(made, arena, [rows[1]])["n"] == [[0]]
    arena.release(rows[0])
    with pytest.raises(ValueError, match="twice"):
        arena.release(rows[0])
    with pytest.raises(ValueError, match="other arrays"):
        made.state_arena({"x": StateSpec((2, 3))}, 1).restore(0, saved)
