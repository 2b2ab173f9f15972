"""Operations that rows of different lengths need, in plain torch."""

from __future__ import annotations

import pytest
import torch

from izwi.ops.torch_ops import TorchOps
from tests.ops.devices import DEVICE, normal

OPS = TorchOps(DEVICE)
LENGTHS = (1, 7, 12)


def mask() -> torch.Tensor:
    """(3, 1, 12): the first columns of each row."""
    lengths = torch.tensor(LENGTHS, device=DEVICE)
    return (OPS.arange(12) < lengths[:, None])[:, None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_masked_mean_is_that_of_what_is_kept(dtype: torch.dtype) -> None:
    x = normal(3, 5, 12, seed=0, dtype=dtype)
    x[0, :, 1:] = float("nan")  # whatever stands behind
    mean = OPS.masked_mean(x, mask())
    assert mean.shape == (3, 5, 1)
    assert mean.dtype == dtype
    for row, length in enumerate(LENGTHS):
        expected = x[row, :, :length].float().mean(-1, keepdim=True).to(dtype)
        torch.testing.assert_close(mean[row], expected)


def test_a_masked_mean_over_many_columns_counts_them_exactly() -> None:
    """1,401 has no bfloat16: columns must not be counted in the dtype of the sums."""
    ones = torch.ones(1, 1, 1401, dtype=torch.bfloat16, device=DEVICE)
    kept = torch.ones(1, 1, 1401, dtype=torch.bool, device=DEVICE)
    assert OPS.masked_mean(3 * ones, kept).item() == 3.0


def test_each_row_takes_columns_of_its_own() -> None:
    x = normal(2, 3, 4, seed=1)
    index = torch.tensor([[3, 3, 0, 1, 2], [0, 1, 1, 2, 3]], device=DEVICE)
    taken = OPS.take_columns(x, index)
    expected = torch.stack([x[0][:, [3, 3, 0, 1, 2]], x[1][:, [0, 1, 1, 2, 3]]])
    assert torch.equal(taken, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("other", [0.0, float("-inf")])
def test_where_keeps_the_type_and_hides_what_is_no_number(dtype: torch.dtype, other: float) -> None:
    x = normal(3, 2, 12, seed=2, dtype=dtype)
    x[:, :, -1] = float("nan")
    chosen = OPS.where(mask(), x, other)
    assert chosen.dtype == dtype
    for row, length in enumerate(LENGTHS):
        torch.testing.assert_close(
            chosen[row, :, :length], x[row, :, :length], equal_nan=True, rtol=0, atol=0
        )
        assert (chosen[row, :, length:] == other).all()
