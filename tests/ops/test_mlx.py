"""What is of MLX's operations alone: weights in few bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.tables import normal

mx = pytest.importorskip("mlx.core")

from izwi.backends.mlx import conv  # noqa: E402
from izwi.backends.mlx.ops import MlxOps  # noqa: E402
from izwi.backends.mlx.quantized import QuantizedMatrix, _right_factor  # noqa: E402


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


@pytest.mark.skipif(mx.default_device().type != mx.cpu, reason="only a CPU keeps them transposed")
def test_on_a_cpu_weights_lie_transposed_and_give_the_same_bits_in_any_batch() -> None:
    ops = MlxOps()
    weight, x = ops.array(normal(96, 40, seed=0)), ops.array(normal(8, 40, seed=1))
    kept: Any = ops.quantize(weight)
    np.testing.assert_array_equal(ops.numpy(kept), ops.numpy(weight))
    assert np.array(kept, copy=False).strides == (4, 4 * 96)
    found = ops.numpy(ops.linear(x, kept))
    np.testing.assert_array_equal(found, ops.numpy(ops.linear(x, weight)))
    for row in range(8):
        np.testing.assert_array_equal(
            found[row : row + 1], ops.numpy(ops.linear(x[row][None], kept))
        )


@pytest.mark.skipif(mx.default_device().type != mx.cpu, reason="a GPU rounds by the shape")
def test_on_a_cpu_rows_have_the_same_bits_however_many_there_are() -> None:
    ops = MlxOps()
    weight, bias = ops.array(normal(96, 40, seed=0)), ops.array(normal(96, seed=2))
    x = ops.array(normal(2, 9, 40, seed=1))
    strides = [np.array(_right_factor(weight, rows), copy=False).strides for rows in (2, 18)]
    assert strides == [(4, 4 * 40), (4 * 96, 4)]  # the ways of the two products below
    for more in (None, bias):
        many = ops.numpy(ops.linear(x, weight, more))
        for row in range(9):
            few = ops.numpy(ops.linear(x[1:, row : row + 1], weight, more))
            np.testing.assert_array_equal(few[0, 0], many[1, row])


@pytest.mark.skipif(mx.default_device().type != mx.cpu, reason="only for a CPU")
@pytest.mark.parametrize("dilation", [1, 3, 9])
def test_seven_taps_by_fewer_products_are_as_exact(
    dilation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conv, "_as_product", None)  # the other way is not to be taken
    channels, outputs = 24, 20
    few = mx.zeros((1, channels, 100)), mx.zeros((outputs, channels, 7)), None
    with pytest.raises(TypeError):  # which few columns take
        conv.conv1d(*few, dilation=dilation)
    weight = normal(outputs, channels, 7, seed=1) / 13
    least = -(-conv._LEAST_PRODUCTS // (channels * outputs))
    for columns in (least, least + 1, least + 7, least + 23):
        x = normal(2, channels, columns + 6 * dilation, seed=columns)
        given = mx.array(x), mx.array(weight), None
        found = np.array(conv.conv1d(*given, dilation=dilation))
        taps = [x[:, :, n * dilation : n * dilation + columns].astype(float) for n in range(7)]
        exact = sum(np.einsum("oc,bct->bot", weight[:, :, n], taps[n]) for n in range(7))
        assert found.shape == (2, outputs, columns)
        assert np.abs(found - exact).max() < 3e-6
        alone = np.array(conv.conv1d(given[0][1:], *given[1:], dilation=dilation))
        np.testing.assert_array_equal(alone[0], found[1])  # the same bits in any batch


def test_only_float32_lies_transposed() -> None:
    narrow = mx.zeros((12, 64), dtype=mx.bfloat16)
    assert MlxOps(mx.bfloat16).quantize(narrow) is narrow


def test_snake_is_exact_far_from_zero_and_at_half_turns() -> None:
    angles = np.concatenate([np.linspace(-20, 20, 999), np.arange(-6, 7) * np.pi / 2])
    alpha, beta = np.array([0.0, 0.7]), np.array([0.0, -0.4])
    x = np.stack([angles / np.exp(one) for one in alpha])
    exact = x + np.sin(angles) ** 2 / np.exp(beta)[:, None]
    ops = MlxOps()
    found = ops.numpy(ops.snake(ops.array(x[None]), ops.array(alpha), ops.array(beta)))
    np.testing.assert_allclose(found[0], exact, rtol=0, atol=1e-5)
