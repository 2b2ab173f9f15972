"""Products by the kernels are the products by torch, whatever is folded into them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from izwi.backends.torch.ops import rms_norm
from izwi.backends.torch.quantized import FOUR_BITS, PackedWeight, quantized_weight
from izwi.backends.torch.triton import linear as triton_linear
from izwi.backends.torch.triton import linear_tiles
from izwi.backends.torch.triton import packed as triton_packed
from izwi.backends.torch.triton import rows as triton_rows
from tests.ops.devices import DEVICE, DTYPES, assert_near, normal

EPS = 1e-3
# rows of every kernel and of a bucket that is not full; sizes that are no multiple of a tile
CASES = [(1, 40, 96), (2, 24, 1040), (3, 40, 96), (16, 33, 64), (17, 40, 80), (64, 70, 96)]


class Case:
    """Numbers of one size, and the product in float32."""

    def __init__(self, rows: int, outputs: int, inputs: int, dtype: torch.dtype):
        wide = normal(rows, inputs + 16, seed=1, dtype=dtype)
        self.x = wide[:, :inputs]  # a view of something packed
        self.weight = normal(outputs, inputs, seed=2, dtype=dtype) / inputs**0.5
        self.norm = normal(inputs, seed=3, dtype=dtype) * 0.2 + 1
        self.bias = normal(outputs, seed=4, dtype=dtype)
        self.residual = normal(rows, outputs + 16, seed=5, dtype=dtype)[:, :outputs]

    def product(self, normed: bool) -> Tensor:
        x = self.x.float()
        if normed:
            x = rms_norm(x, self.norm.float(), EPS)
        return functional.linear(x, self.weight.float())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", CASES)
def test_linear(size: tuple[int, int, int], dtype: torch.dtype) -> None:
    case = Case(*size, dtype)
    plain = triton_linear.linear(case.x, case.weight)
    assert_near(plain, case.product(normed=False), dtype)
    assert plain.is_contiguous()
    added = triton_linear.linear(case.x, case.weight, bias=case.bias, residual=case.residual)
    expected = case.product(normed=False) + case.bias.float() + case.residual.float()
    assert_near(added, expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", CASES)
def test_normed_linear(size: tuple[int, int, int], dtype: torch.dtype) -> None:
    case = Case(*size, dtype)
    found = triton_linear.linear(
        case.x, case.weight, norm=case.norm, eps=EPS, residual=case.residual
    )
    assert_near(found, case.product(normed=True) + case.residual.float(), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", CASES)
def test_a_norm_whose_weight_is_in_the_product(
    size: tuple[int, int, int], dtype: torch.dtype
) -> None:
    case = Case(*size, dtype)
    folded = case.weight * case.norm
    found = triton_linear.linear(case.x, folded, eps=EPS, residual=case.residual)
    assert_near(found, case.product(normed=True) + case.residual.float(), dtype)
    if size[1] % 2 == 0:
        gate, up = case.product(normed=True).chunk(2, dim=-1)
        found = triton_linear.gated_linear(case.x, folded, eps=EPS)
        assert_near(found, functional.silu(gate) * up, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [(rows, 2 * outputs, k) for rows, outputs, k in CASES])
def test_gated_linear(size: tuple[int, int, int], dtype: torch.dtype) -> None:
    case = Case(*size, dtype)
    for normed in (True, False):
        gate, up = case.product(normed).chunk(2, dim=-1)
        norm, eps = (case.norm, EPS) if normed else (None, None)
        found = triton_linear.gated_linear(case.x, case.weight, norm=norm, eps=eps)
        assert_near(found, functional.silu(gate) * up, dtype)


@pytest.mark.parametrize("stored", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", CASES)
def test_quantized_weights(
    size: tuple[int, int, int], dtype: torch.dtype, stored: torch.dtype
) -> None:
    """What the numbers in 8 bits stand for is what is multiplied, also on the up side of a gate."""
    check_quantized(size, dtype, stored)


# rows of both kernels; groups of 64, 32 and 16 inputs, several of them in each half
PACKED_CASES = [(1, 41, 256), (2, 24, 192), (2, 9, 2048), (3, 40, 96), (17, 33, 320), (64, 70, 256)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", PACKED_CASES)
def test_packed_weights(size: tuple[int, int, int], dtype: torch.dtype) -> None:
    check_quantized(size, dtype, FOUR_BITS)


def grouped(bits: int, *, offsets: bool, outputs: int = 2 * 33, inputs: int = 256) -> PackedWeight:
    """Drawn values in groups of 32."""
    width, groups = inputs * bits // 8, inputs // 32
    codes = torch.randint(0, 256, (outputs, width), dtype=torch.uint8).to(DEVICE)
    scale = normal(outputs, groups, seed=6).float().abs() / (100 if bits == 4 else 2000)
    offset = normal(outputs, groups, seed=7).float() / 50 if offsets else None
    return PackedWeight(codes if bits == 4 else codes.view(torch.int8), scale, offset)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("bits", "offsets"), [(4, True), (8, True), (8, False)])
@pytest.mark.parametrize("rows", [1, 3])
def test_groups_with_offsets_and_8_bits(
    rows: int, bits: int, offsets: bool, dtype: torch.dtype
) -> None:
    weight = grouped(bits, offsets=offsets)
    case = Case(rows, 66, 256, dtype)
    case.weight = weight.wide(torch.float32)
    # a GPU multiplies and adds at once
    assert_near(triton_packed.widen_packed(weight, torch.float32), case.weight, torch.float32)
    gate, up = case.product(normed=True).chunk(2, dim=-1)
    found = triton_linear.gated_linear(case.x, weight, norm=case.norm, eps=EPS)
    assert_near(found, functional.silu(gate) * up, dtype)
    for slices in (1, 2) if rows > 2 else (1,):
        tiles = linear_tiles.Tiles(16, 64, slices, 4, 2)
        found = triton_linear.linear(case.x, weight, bias=case.bias, tiles=tiles)
        assert_near(found, case.product(normed=False) + case.bias.float(), dtype)


def check_quantized(size: tuple[int, int, int], dtype: torch.dtype, stored: torch.dtype) -> None:
    rows, outputs, inputs = size
    case = Case(rows, 2 * outputs, inputs, dtype)
    case.weight[0] /= 30  # outputs have scales of their own
    weight = quantized_weight(case.weight, stored)
    case.weight = weight.wide(torch.float32)
    found = triton_linear.linear(case.x, weight, bias=case.bias, residual=case.residual)
    expected = case.product(normed=False) + case.bias.float() + case.residual.float()
    assert_near(found, expected, dtype)
    found = triton_linear.linear(case.x, weight, norm=case.norm, eps=EPS, residual=case.residual)
    assert_near(found, case.product(normed=True) + case.residual.float(), dtype)
    for normed in (True, False):
        gate, up = case.product(normed).chunk(2, dim=-1)
        norm, eps = (case.norm, EPS) if normed else (None, None)
        found = triton_linear.gated_linear(case.x, weight, norm=norm, eps=eps)
        assert_near(found, functional.silu(gate) * up, dtype)


@pytest.mark.parametrize("stored", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("dtype", DTYPES)
def test_widened_weights(dtype: torch.dtype, stored: torch.dtype) -> None:
    weight = quantized_weight(normal(5, 1100, seed=1), stored)
    assert torch.equal(triton_rows.widen(weight, dtype), weight.wide(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inputs", [1088, 24])
def test_widened_packed_weights(dtype: torch.dtype, inputs: int) -> None:
    weight = quantized_weight(normal(5, inputs, seed=1), FOUR_BITS)
    assert isinstance(weight, PackedWeight)
    assert torch.equal(triton_packed.widen_packed(weight, dtype), weight.wide(dtype))


def test_every_cut_gives_the_same_product(monkeypatch: pytest.MonkeyPatch) -> None:
    tiles = linear_tiles.Tiles
    few = [tiles(1, 16, 1, 1, 1), tiles(8, 64, 1, 2, 1), tiles(2, 256, 1, 4, 1)]
    many = [tiles(16, 16, 1, 4, 2), tiles(16, 32, 2, 2, 3), tiles(32, 16, 8, 8, 2)]
    for rows, cuts in ((2, few), (5, many)):
        case = Case(rows, 40, 128, torch.float32)
        for cut in cuts:
            monkeypatch.setitem(
                linear_tiles.TILES, (linear_tiles.bucket_of(rows), 40, 128, False), cut
            )
            found = triton_linear.linear(case.x, case.weight, norm=case.norm, eps=EPS)
            assert_near(found, case.product(normed=True), torch.float32)


def test_float16_products_do_not_overflow_before_the_norm_scales_them() -> None:
    case = Case(5, 24, 64, torch.float16)
    large = triton_linear.linear(case.x * 4096, case.weight, norm=case.norm * 64, eps=0.0)
    assert_near(large / 64, case.product(normed=True), torch.float16)


def test_what_no_kernel_takes_is_refused() -> None:
    case = Case(2, 40, 96, torch.float32)
    with pytest.raises(ValueError, match="no kernel"):
        triton_linear.linear(normal(65, 96, seed=0), case.weight)
    with pytest.raises(ValueError, match="no kernel"):
        triton_linear.linear(case.x[:, :95], case.weight)
    with pytest.raises(ValueError, match="no kernel"):
        triton_linear.linear(case.x[:, :40], case.weight.t())
    with pytest.raises(ValueError, match="no kernel"):  # groups of 4
        triton_linear.linear(case.x[:, :24], quantized_weight(case.weight[:, :24], FOUR_BITS))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows(dtype: torch.dtype) -> None:
    x = normal(2, 5, 176, seed=1, dtype=dtype)
    weight = normal(160, seed=2, dtype=dtype)
    view = x[..., :160]
    normed = triton_rows.rms_norm(view, weight, EPS)
    assert_near(normed, rms_norm(view.float(), weight.float(), EPS), dtype)
    packed = normal(3, 2100, seed=3, dtype=dtype)
    gate, up = packed.chunk(2, dim=-1)
    assert_near(triton_rows.swiglu(gate, up), functional.silu(gate.float()) * up.float(), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_snake(dtype: torch.dtype) -> None:
    x = normal(2, 3, 1030, seed=1, dtype=dtype)
    alpha, beta = normal(3, seed=2, dtype=dtype), normal(3, seed=3, dtype=dtype)
    frequency, amplitude = alpha.float().exp()[:, None], 1 / (beta.float().exp() + 1e-9)[:, None]
    expected = x.float() + amplitude * (x.float() * frequency).sin().square()
    assert_near(triton_rows.snake(x, alpha, beta), expected, dtype)
