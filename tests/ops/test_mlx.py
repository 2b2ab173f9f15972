"""What is of MLX's operations alone: weights in few bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.tables import normal

mx = pytest.importorskip("mlx.core")

from izwi.backends.mlx.ops import MlxOps  # noqa: E402
from izwi.backends.mlx.quantized import QuantizedMatrix  # noqa: E402


@pytest.mark.parametrize(("bits", "near"), [(8, 0.02), (4, 0.3)])
@pytest.mark.parametrize("columns", [64, 96])
def test_products_with_few_bits_come_near(bits: int, near: float, columns: int) -> None:
    ops = MlxOps(weight_bits=bits)
    weight, x = ops.array(normal(12, columns, seed=0)), ops.array(normal(3, columns, seed=1))
    kept: Any = ops.quantize(weight)
    assert isinstance(kept, QuantizedMatrix)
    assert kept.nbytes < weight.nbytes * (bits + 4) / 32
    found, exact = ops.numpy(ops.linear(x, kept)), ops.numpy(x @ weight.T)
    error = np.abs(found - exact).max() / np.sqrt(columns)
    assert 0.0 < error < near
    bias = ops.array(normal(12, seed=2))
    with_bias = ops.numpy(ops.linear(x, kept, bias))
    np.testing.assert_allclose(with_bias, found + ops.numpy(bias), rtol=1e-6, atol=1e-6)


def test_a_weight_that_no_group_divides_stays_as_it_is() -> None:
    weight = mx.zeros((12, 48))
    assert MlxOps(weight_bits=4).quantize(weight) is weight
    assert MlxOps().quantize(mx.zeros((12, 64))).dtype == mx.float32
