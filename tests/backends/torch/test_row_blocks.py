"""Rows of a product on a CPU have the same bits alone and in any batch, whatever the library."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from izwi.backends.torch import row_blocks
from izwi.backends.torch.row_blocks import linear_by_rows, row_multiple

FLOAT = torch.float32
Linear = Callable[..., Tensor]


@pytest.fixture(autouse=True)
def fresh_answers() -> Iterator[None]:
    row_multiple.cache_clear()
    yield
    row_multiple.cache_clear()


def in_order(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    out = torch.zeros(len(x), len(weight))
    for column in range(x.shape[1]):
        out += x[:, column, None] * weight[:, column]
    return out if bias is None else out + bias


def backwards(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return in_order(x.flip(1), weight.flip(1), bias)


def a_library(other: Callable[[int], bool]) -> Linear:
    """One that adds in another order for some numbers of rows."""

    def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return (backwards if other(len(x)) else in_order)(x, weight, bias)

    return linear


LIBRARIES = {
    "like fours": (lambda rows: rows % 4 > 0, (4, True)),
    "small ones differ": (lambda rows: rows < 16, (16, True)),
    "none agree": (lambda rows: rows == 256 or rows % 3 == 0, (64, False)),
}


@pytest.mark.parametrize("name", LIBRARIES)
def test_rows_agree_where_the_library_changes_kernels(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, expected = LIBRARIES[name]
    monkeypatch.setattr(row_blocks.F, "linear", a_library(other))
    x, weight, bias = torch.randn(150, 24), torch.randn(10, 24), torch.randn(10)
    together = linear_by_rows(x, weight, bias)
    assert row_multiple(10, 24, FLOAT, torch.get_num_threads()) == expected
    for start, stop in ((0, 1), (3, 8), (70, 150), (149, 150)):
        assert torch.equal(linear_by_rows(x[start:stop], weight, bias), together[start:stop])


@pytest.mark.parametrize("shape", [(6, 96), (32, 96), (256, 192), (70, 512)])
@pytest.mark.parametrize(
    "threads", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3, 8))]
)
def test_rows_agree_with_this_library_and_any_number_of_threads(
    shape: tuple[int, int], threads: int
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        x, weight = torch.randn(77, shape[1]), torch.randn(shape)
        together = linear_by_rows(x, weight, None)
        for start, stop in ((0, 1), (1, 6), (40, 77)):
            assert torch.equal(linear_by_rows(x[start:stop], weight, None), together[start:stop])
    finally:
        torch.set_num_threads(before)
