"""Adapters of the rows of a captured step: each row adds `up @ (down @ x)` of its own, or nothing.

A graph reads the same addresses in every launch, but adapters come and go. So each has a table of
the addresses of its arrays, and a row has the address of its adapter's table, or 0. How many
adapters there are, and of which ranks, is not captured.
"""

from __future__ import annotations

# ruff: noqa: N803 (constants of a kernel are upper case)
# mypy: allow-untyped-decorators, allow-untyped-calls, allow-untyped-defs, allow-incomplete-defs
from collections.abc import Mapping
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

# Numbers of a table for one product: addresses of `down` and `up`, and the rank.
TABLE_COLUMNS = 3
# The largest rank of a product, joined ones included: queries, keys and values have three.
MAX_RANK = 768
_RANKS, _OUTPUTS, _INPUTS = 16, 128, 256


class AdaptedRows(NamedTuple):
    """The adapters of a step's rows.

    Attributes:
        tables: (rows,) int64 on the device: addresses of the rows' tables, each of them
            (products, TABLE_COLUMNS) int64; 0 for rows without an adapter.
        products: Where the product of a name is in the tables.
    """

    tables: Tensor
    products: Mapping[str, int]

    def add(self, name: str, x: Tensor, y: Tensor) -> Tensor:
        """Add to a product what the rows' adapters add to it; see `AddsToProducts`.

        Args:
            name: Name of the product's weight.
            x: (rows, in), its input, of the dtype of the adapters.
            y: (rows, out), its result; it is overwritten, except for rows without an adapter.
        """
        place = self.products.get(name)
        if place is not None:
            add_rows(self.tables, place, x.contiguous(), y)
        return y


def add_rows(tables: Tensor, product: int, x: Tensor, y: Tensor) -> None:
    """Add to each row of `y`, in place, what its adapter adds to a product; summed in float32.

    Args:
        tables: As in `AdaptedRows`.
        product: Where the product is in the tables.
        x: (rows, in), contiguous.
        y: (rows, out), contiguous, of the same dtype.
    """
    (rows, inputs), outputs = x.shape, y.shape[1]
    low = x.new_empty((rows, MAX_RANK), dtype=torch.float32)
    _down[(rows, MAX_RANK // _RANKS)](
        tables, product, x, low, inputs, COLUMNS=TABLE_COLUMNS, MOST=MAX_RANK, RANKS=_RANKS,
        BLOCK=_INPUTS, num_warps=4,
    )  # fmt: skip
    _up[(rows, triton.cdiv(outputs, _OUTPUTS))](
        tables, product, low, y, outputs, COLUMNS=TABLE_COLUMNS, MOST=MAX_RANK, RANKS=_RANKS,
        BLOCK=_OUTPUTS, num_warps=4,
    )  # fmt: skip


@triton.jit
def _rank(table, product, COLUMNS: tl.constexpr):
    """Return the place of a product in a row's table, and its rank; 0 if there is no table."""
    place = table.to(tl.pointer_type(tl.int64)) + product * COLUMNS
    return place, tl.load(place + 2, mask=table != 0, other=0)


@triton.jit(do_not_specialize=["product"])
def _down(
    tables, product, x, low, inputs, COLUMNS: tl.constexpr, MOST: tl.constexpr,
    RANKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write RANKS numbers of `down @ x` of one row."""
    row = tl.program_id(0)
    first = tl.program_id(1) * RANKS
    place, rank = _rank(tl.load(tables + row), product, COLUMNS)
    if first < rank:
        down = tl.load(place).to(tl.pointer_type(x.dtype.element_ty))
        r = first + tl.arange(0, RANKS)
        k = tl.arange(0, BLOCK)
        acc = tl.zeros([RANKS, BLOCK], tl.float32)
        for start in tl.range(0, inputs, BLOCK):
            here = start + k
            inside = (r[:, None] < rank) & (here[None, :] < inputs)
            w = tl.load(down + r[:, None] * inputs + here[None, :], mask=inside, other=0.0)
            a = tl.load(x + row * inputs + here, mask=here < inputs, other=0.0)
            acc += w.to(tl.float32) * a.to(tl.float32)[None, :]
        tl.store(low + row * MOST + r, tl.sum(acc, 1))


@triton.jit(do_not_specialize=["product"])
def _up(
    tables, product, low, y, outputs, COLUMNS: tl.constexpr, MOST: tl.constexpr,
    RANKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add `up @ low` to BLOCK outputs of one row."""
    row = tl.program_id(0)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    place, rank = _rank(tl.load(tables + row), product, COLUMNS)
    if rank > 0:
        up = tl.load(place + 1).to(tl.pointer_type(y.dtype.element_ty))
        r = tl.arange(0, RANKS)
        acc = tl.zeros([BLOCK, RANKS], tl.float32)
        for start in tl.range(0, rank, RANKS):
            inside = (n[:, None] < outputs) & (start + r[None, :] < rank)
            w = tl.load(up + n[:, None] * rank + start + r[None, :], mask=inside, other=0.0)
            a = tl.load(low + row * MOST + start + r)
            # what lies behind the rank was not written
            acc += w.to(tl.float32) * tl.where(start + r < rank, a, 0.0)[None, :]
        there = y + row * outputs + n
        old = tl.load(there, mask=n < outputs, other=0.0).to(tl.float32)
        tl.store(there, (old + tl.sum(acc, 1)).to(y.dtype.element_ty), mask=n < outputs)
