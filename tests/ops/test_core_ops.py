"""Operations that rows of different lengths need, on every backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from izwi.ops import Ops
from tests.ops.tables import each_backend, normal, table

LENGTHS = (1, 7, 12)


def mask(ops: Ops) -> Any:
    """(3, 1, 12): the first columns of each row."""
    return (ops.arange(12) < ops.array(np.array(LENGTHS))[:, None])[:, None]


@each_backend
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_masked_mean_is_that_of_what_is_kept(backend: str, dtype: str) -> None:
    ops = table(backend, dtype)
    x = normal(3, 5, 12, seed=0)
    x[0, :, 1:] = np.nan  # whatever stands behind
    given = ops.array(x)
    mean = ops.masked_mean(given, mask(ops))
    assert mean.shape == (3, 5, 1)
    assert mean.dtype == given.dtype
    near = 1e-6 if dtype == "float32" else 4e-3
    for row, length in enumerate(LENGTHS):
        expected = ops.numpy(given)[row, :, :length].mean(-1, keepdims=True)
        np.testing.assert_allclose(ops.numpy(mean)[row], expected, rtol=near, atol=near)


@each_backend
def test_a_masked_mean_over_many_columns_counts_them_exactly(backend: str) -> None:
    """1,401 has no bfloat16: columns must not be counted in the dtype of the sums."""
    ops = table(backend, "bfloat16")
    kept = ops.arange(1401)[None, None] >= 0
    threes = ops.array(np.full((1, 1, 1401), 3.0))
    assert ops.numpy(ops.masked_mean(threes, kept)).item() == 3.0


@each_backend
def test_each_row_takes_columns_of_its_own(backend: str) -> None:
    ops = table(backend)
    x, index = normal(2, 3, 4, seed=1), np.array([[3, 3, 0, 1, 2], [0, 1, 1, 2, 3]])
    taken = ops.numpy(ops.take_columns(ops.array(x), ops.array(index)))
    expected = np.stack([x[0][:, index[0]], x[1][:, index[1]]])
    assert np.array_equal(taken, expected)


@each_backend
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("other", [0.0, float("-inf")])
def test_where_keeps_the_dtype_and_hides_nan(backend: str, dtype: str, other: float) -> None:
    ops = table(backend, dtype)
    x = normal(3, 2, 12, seed=2)
    x[:, :, -1] = np.nan
    given = ops.array(x)
    chosen = ops.where(mask(ops), given, other)
    assert chosen.dtype == given.dtype
    found, expected = ops.numpy(chosen), ops.numpy(given)
    for row, length in enumerate(LENGTHS):
        assert np.array_equal(found[row, :, :length], expected[row, :, :length], equal_nan=True)
        assert (found[row, :, length:] == other).all()
