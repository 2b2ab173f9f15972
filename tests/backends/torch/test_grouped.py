"""Weights as checkpoints pack them: their numbers, their products, and what our kernels take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from izwi.backends.torch import grouped
from izwi.backends.torch.grouped import (
    GroupedWeight,
    JoinedWeight,
    grouped_weight,
    has_kernel,
    joined_weight,
    kernel_bytes,
    kernel_weight,
)
from izwi.backends.torch.ops import TorchOps
from izwi.backends.torch.quantized import PackedWeight
from izwi.checkpoints.linear_spec import E4M3, LinearForm, LinearSpec, Numbers
from tests.ops.devices import assert_near, normal

CPU = torch.device("cpu")
FORMS = {
    "4 bits": LinearForm(70, 96, 4, 32, zero=8),
    "4 bits, wide groups": LinearForm(70, 512, 4, 128, zero=8),
    "4 bits, one group": LinearForm(70, 96, 4, 96, zero=8),
    "4 bits, zeros": LinearForm(70, 96, 4, 32, zero=None),
    "4 bits, offsets": LinearForm(70, 96, 4, 32, has_offsets=True),
    "4 bits, reordered": LinearForm(70, 96, 4, 32, zero=8, is_reordered=True),
    "4 bits, small groups": LinearForm(70, 96, 4, 8, zero=8),
    "4 bits, a table": LinearForm(70, 96, 4, 32, Numbers.TABLE),
    "8 bits": LinearForm(70, 96, 8, 96, zero=128),
    "8 bits, groups": LinearForm(70, 96, 8, 32, zero=128),
    "8 bits, another zero": LinearForm(70, 96, 8, 96, zero=127),
    "floats": LinearForm(70, 96, 8, 96, Numbers.E4M3),
    "floats, blocks": LinearForm(70, 96, 8, 48, Numbers.E4M3),
    "floats, uneven blocks": LinearForm(70, 96, 8, 40, Numbers.E4M3),
}
WITHOUT_KERNEL = {"4 bits, reordered", "4 bits, small groups", "4 bits, a table"}
WITHOUT_KERNEL |= {"floats, uneven blocks"}
# zeros that are not the storage's become offsets
SHIFTED = {"4 bits, zeros", "4 bits, offsets", "8 bits, another zero"}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """With more, a row's last bits may depend on its batch (ADR 5)."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def spec_of(form: LinearForm) -> LinearSpec:
    rng = np.random.default_rng(3)
    width = form.inputs * form.bits // 8
    codes = rng.integers(0, 256, (form.outputs, width), np.uint8)
    if form.numbers is Numbers.E4M3:
        codes[codes & 0x7F == 0x7F] = 1
    groups = form.outputs, form.num_groups
    return LinearSpec(
        form,
        codes,
        rng.random(groups, np.float32) + np.float32(0.1),
        zeros=rng.integers(0, 16, groups, np.uint8) if form.zero is None else None,
        offsets=rng.random(groups, np.float32) if form.has_offsets else None,
        group_of=rng.permutation(form.inputs) // form.group if form.is_reordered else None,
        table=rng.random(16, np.float32) if form.numbers is Numbers.TABLE else None,
    )


def weight_of(name: str) -> tuple[GroupedWeight, torch.Tensor]:
    spec = spec_of(FORMS[name])
    return grouped_weight(spec, CPU), torch.from_numpy(spec.wide())


def test_every_code_of_8_bit_floats_has_its_number() -> None:
    codes = torch.tensor([[c for c in range(256) if c & 0x7F != 0x7F]], dtype=torch.uint8)
    form = LinearForm(1, 254, 8, 254, Numbers.E4M3)
    wide = GroupedWeight(form, codes, torch.ones(1, 1)).wide(torch.float32)
    assert torch.equal(wide, torch.from_numpy(E4M3[codes.numpy()]))


@pytest.mark.parametrize("name", FORMS)
def test_products_are_those_of_the_numbers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouped, "_BLOCK", 32)
    weight, wide = weight_of(name)
    assert weight.shape == wide.shape
    assert weight.nbytes == FORMS[name].num_bytes
    assert torch.equal(weight.wide(torch.float32), wide)
    ops, x, bias = TorchOps(), normal(2, 5, wide.shape[1], seed=1).cpu(), normal(70, seed=2).cpu()
    assert_near(ops.linear(x, weight, bias), ops.linear(x, wide, bias), torch.float32)
    for row in range(5):  # the same bits in any batch
        assert torch.equal(ops.linear(x, weight)[:, row], ops.linear(x[:, row], weight))
    at = torch.tensor([[3, 69, 3]])
    assert torch.equal(ops.take(weight, at), wide[at])


@pytest.mark.parametrize("name", FORMS)
def test_kernels_take_what_has_groups(name: str) -> None:
    form, (weight, wide) = FORMS[name], weight_of(name)
    assert has_kernel(form, has_fp8=True) == (name not in WITHOUT_KERNEL)
    floats = form.numbers is Numbers.E4M3
    assert has_kernel(form, has_fp8=False) == (name not in WITHOUT_KERNEL and not floats)
    if name not in WITHOUT_KERNEL:
        made = kernel_weight(weight)
        if name in SHIFTED:
            torch.testing.assert_close(made.wide(torch.float32), wide)
        else:
            assert torch.equal(made.wide(torch.float32), wide)
        assert made.nbytes == kernel_bytes(form)
        if isinstance(made, PackedWeight):
            assert 16 <= made.group <= 64


def test_outputs_of_one_form_are_joined_and_others_stand_beside_each_other() -> None:
    (ours, wide), (other, beside) = weight_of("4 bits, zeros"), weight_of("8 bits")
    plain = normal(9, 96, seed=5).cpu()
    joined = joined_weight([ours, ours])
    assert isinstance(joined, GroupedWeight)
    assert torch.equal(joined.wide(torch.float32), torch.cat([wide, wide]))
    mixed = joined_weight([joined_weight([ours, plain]), other])
    assert isinstance(mixed, JoinedWeight)
    expected = torch.cat([wide, plain, beside])
    assert torch.equal(mixed.wide(torch.float32), expected)
    assert (mixed.shape, mixed.nbytes) == (
        expected.shape,
        ours.nbytes + plain.nbytes + other.nbytes,
    )
    x = normal(3, 96, seed=6).cpu()
    assert_near(TorchOps().linear(x, mixed), x @ expected.T, torch.float32)


def test_weights_of_other_orders_or_tables_are_not_joined_to_one() -> None:
    for name, part in (("4 bits, reordered", "group_of"), ("4 bits, a table", "table")):
        weight, _ = weight_of(name)
        assert isinstance(joined_weight([weight, weight]), GroupedWeight)
        other = replace(weight, **{part: getattr(weight, part).flip(0)})
        assert isinstance(joined_weight([weight, other]), JoinedWeight)


def test_packed_weights_are_neither_quantized_again_nor_folded() -> None:
    weight, _ = weight_of("4 bits")
    ops = TorchOps(weights="int8")
    assert ops.quantize(weight) is weight
    norm = normal(96, seed=1).cpu()
    assert ops.fold_norm(norm, weight) == (norm, weight)
    assert not TorchOps(weights="float").keeps_packed(weight.form)
