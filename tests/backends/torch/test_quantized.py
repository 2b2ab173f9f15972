"""Weights in 8 and in 4 bits: how they are rounded, and that every product takes them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from izwi.backends.torch import quantized
from izwi.backends.torch.backend import torch_backend
from izwi.backends.torch.ops import TorchOps
from izwi.backends.torch.quantized import (
    FOUR_BITS,
    PackedWeight,
    QuantizedWeight,
    quantized_dtype,
    quantized_weight,
)
from izwi.errors import InvalidRequest
from tests.ops.devices import normal

EPS = 1e-3


def weight_of(outputs: int, inputs: int) -> Tensor:
    """Rows of very different size, one of them zeros."""
    weight = normal(outputs, inputs, seed=0).cpu() * torch.logspace(-3, 3, outputs)[:, None]
    weight[outputs // 2] = 0
    return weight


def test_int8_is_off_by_half_a_step_of_its_row() -> None:
    weight = weight_of(9, 70)
    made = quantized_weight(weight, torch.int8)
    assert made.values.dtype == torch.int8
    assert made.shape == weight.shape
    off = (made.wide(torch.float32) - weight).abs().amax(1)
    assert (off <= weight.abs().amax(1) / 127 * 0.5001).all()
    assert made.values.abs().amax(1).tolist() == [127] * 4 + [0] + [127] * 4


def test_fp8_keeps_three_bits_of_numbers_near_the_largest() -> None:
    weight = weight_of(9, 70)
    made = quantized_weight(weight, torch.float8_e4m3fn)
    wide = made.wide(torch.float32)
    large = weight.abs() > weight.abs().amax(1, keepdim=True) / 1000
    off = ((wide - weight).abs() / weight.abs().clamp_min(1e-12))[large]
    assert off.max() <= 2**-4 * 1.001
    assert torch.isfinite(wide).all()


def test_int4_is_off_by_half_a_step_of_its_group_and_by_one_opposite_its_peak() -> None:
    weight = weight_of(9, 192)
    made = quantized_weight(weight, FOUR_BITS)
    assert isinstance(made, PackedWeight)
    assert (made.shape, made.group) == (weight.shape, 32)
    assert made.nbytes == 9 * (192 // 2 + 4 * 192 // 32)
    groups, wide = weight.unflatten(1, (-1, 32)), made.wide(torch.float32).unflatten(1, (-1, 32))
    peak = groups.abs().amax(2, keepdim=True)
    opposite = groups / groups.gather(2, groups.abs().argmax(2, keepdim=True)) < -7.5 / 8
    off = (wide - groups).abs()
    assert (off <= peak / 8 * torch.where(opposite, 1.0, 0.5) * 1.001).all()
    # the largest of a group is kept, and zeros are zeros
    assert torch.equal(wide.abs().amax(2, keepdim=True), peak)


def test_int4_keeps_what_it_can_hold() -> None:
    """Every number in either half of a row, at its place."""
    numbers = torch.stack([torch.arange(-8, 8).roll(n) for n in range(16)]).float()
    weight = torch.cat([numbers, 3 * numbers.flip(1)], 1)
    assert torch.equal(quantized_weight(weight, FOUR_BITS).wide(torch.float32), weight)
    with pytest.raises(ValueError, match="9 inputs"):
        quantized_weight(weight[:, :9], FOUR_BITS)


@pytest.mark.parametrize("stored", [torch.int8, torch.float8_e4m3fn, FOUR_BITS])
def test_a_weight_is_rounded_alike_in_blocks(
    stored: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = weight_of(11, 24)
    whole = quantized_weight(weight, stored)
    monkeypatch.setattr(quantized, "_BLOCK", 4)
    cut = quantized_weight(weight, stored)
    assert torch.equal(cut.values.view(torch.uint8), whole.values.view(torch.uint8))
    assert torch.equal(cut.scale, whole.scale)
    assert whole.nbytes == (11 * 24 + 11 * 4 if stored != FOUR_BITS else 11 * 12 + 11 * 6 * 4)


@pytest.mark.parametrize("kind", ["int8", "fp8", "int4"])
def test_every_product_takes_it(kind: str) -> None:
    ops = TorchOps(weights=kind)
    x, norm, residual = (
        normal(5, 48, seed=1).cpu(),
        normal(48, seed=2).cpu(),
        normal(5, 24, seed=3).cpu(),
    )
    plain = normal(24, 48, seed=4).cpu()
    made = ops.quantize(plain)
    assert isinstance(made, QuantizedWeight)
    wide = made.wide(torch.float32)
    assert not torch.equal(wide, plain)
    assert torch.equal(ops.linear(x, made, norm[:24]), ops.linear(x, wide, norm[:24]))
    for call in (
        lambda weight: ops.normed_linear(x, norm, EPS, weight),
        lambda weight: ops.linear_add(x, weight, residual),
        lambda weight: ops.gated_linear(x, norm, EPS, weight),
    ):
        assert torch.equal(call(made), call(wide))


def test_nothing_is_quantized_unless_requested() -> None:
    weight = normal(4, 8, seed=0).cpu()
    assert TorchOps().quantize(weight) is weight
    assert torch_backend("cpu").ops.quantize(weight) is weight
    assert isinstance(torch_backend("cpu", weights="int8").ops.quantize(weight), QuantizedWeight)


def test_unsupported_weight_dtypes_are_refused() -> None:
    assert quantized_dtype("auto", torch.device("mps")) is None
    assert quantized_dtype("int8", torch.device("mps")) is torch.int8
    with pytest.raises(InvalidRequest, match="not available"):
        quantized_dtype("fp8", torch.device("mps"))
    with pytest.raises(InvalidRequest, match="int3"):
        torch_backend("cpu", weights="int3")
