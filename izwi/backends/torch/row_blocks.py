"""Products on a CPU whose rows have the same bits in any batch, whatever the library does.

A matrix library chooses its kernel by the sizes of a product, and kernels round differently. On one
other processor products of 96 inputs did so with one thread (presumably small kernels of MKL; it
was not traced); here all whole fours agree (ADR 5). So the library is asked, once for each size.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)
from torch import Tensor

# Multiples to which rows may be padded, the cheapest first.
_MULTIPLES = (4, 8, 16, 32, 64)
# Where none of them agrees, products are of exactly this many rows each.
_FIXED_ROWS = 64
# Every multiple up to here is tried, as several threads do not share all numbers of rows evenly.
_EACH_UP_TO = 96
_MOST_ROWS = 256


def linear_by_rows(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute `F.linear` of (rows, inputs), such that a row's bits do not depend on the others."""
    rows = x.shape[0]
    multiple, agrees = row_multiple(*weight.shape, x.dtype, torch.get_num_threads())
    padded = F.pad(x, (0, 0, 0, -rows % multiple)) if rows % multiple else x
    if agrees or len(padded) == multiple:
        return F.linear(padded, weight, bias)[:rows]
    blocks = (padded[at : at + multiple] for at in range(0, len(padded), multiple))
    return torch.cat([F.linear(block, weight, bias) for block in blocks])[:rows]


@lru_cache(maxsize=256)
def row_multiple(
    outputs: int, inputs: int, dtype: torch.dtype, num_threads: int
) -> tuple[int, bool]:
    """Find how many rows a product must have, so that each row's bits are those of any other.

    Args:
        outputs: Outputs of the weight.
        inputs: Its inputs.
        dtype: Dtype of both factors.
        num_threads: Threads of the library, among which it divides a product.

    Returns:
        A number of rows, and whether any multiple of it gives the same bits. If not, only products
        of exactly this number do.
    """
    del num_threads  # the library's own number, here for the cache
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn((outputs, inputs), generator=generator).to(dtype)
    x = torch.randn((_MOST_ROWS, inputs), generator=generator).to(dtype)
    for multiple in _MULTIPLES:
        if _agrees(x, weight, multiple):
            return multiple, True
    return _FIXED_ROWS, False


def _agrees(x: Tensor, weight: Tensor, multiple: int) -> bool:
    """Return whether rows have the same bits in products of several multiples, at other places."""
    whole = F.linear(x, weight)
    counts = [*range(multiple, _EACH_UP_TO + 1, multiple), *range(128, _MOST_ROWS, 64)]
    return all(
        torch.equal(F.linear(x[multiple : multiple + n], weight), whole[multiple : multiple + n])
        for n in counts
        if multiple + n <= _MOST_ROWS
    )
