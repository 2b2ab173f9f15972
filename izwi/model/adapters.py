"""Adapters of a model (LoRA): small matrices that add to products, for some rows of a step only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from izwi.arrays import Float32
from izwi.model.scalings import InputScaling
from izwi.model.step_batch import Row
from izwi.ops.protocol import Array, AttentionContext, Ops


@dataclass(frozen=True, slots=True, eq=False)
class MatrixUpdate:
    """What an adapter adds to one weight of a checkpoint: `up @ down`.

    Attributes:
        down: (rank, in) float32.
        up: (out, rank) float32, multiplied by the adapter's scale.
    """

    down: Float32
    up: Float32


@dataclass(frozen=True, slots=True, eq=False)
class ProductUpdate:
    """What an adapter adds to one product of a model, on the device.

    Attributes:
        down: (rank, in).
        up: (out, rank).
    """

    down: Array
    up: Array


# By the name of the product's weight in the model.
ProductUpdates = Mapping[str, ProductUpdate]


class AddsToProducts(Protocol):
    """What is added to the products of a pass, such as `RowUpdates`."""

    def add(self, name: str, x: Array, y: Array) -> Array:
        """Return the result of a product, given its weight's name, its input and its result."""
        ...


class AdaptedStack(Protocol):
    """The part of a model that adapters change."""

    @property
    def adaptable(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes (out, in) of the weights that adapters may change, by name in the checkpoint."""
        ...

    @property
    def products(self) -> Sequence[str]:
        """Names of the weights whose products adapters may change, in the model."""
        ...

    def product_matrices(self, matrices: Mapping[str, MatrixUpdate]) -> Mapping[str, MatrixUpdate]:
        """Return what an adapter adds to each product, still on the host; may run in any thread.

        Args:
            matrices: Updates of some of the `adaptable` weights, of their shapes.
        """
        ...

    @property
    def scalings(self) -> Sequence[InputScaling]:
        """Inputs of its products that may be scaled before weights are rounded, in their order."""
        ...

    def run(self, x: Array, context: AttentionContext, updates: AddsToProducts) -> Array:
        """Do the same as `Model.run`, with what adapters add to some positions."""
        ...


@runtime_checkable
class TakesAdapters(Protocol):
    """A model whose rows may run with adapters, each with its own."""

    @property
    def adapted(self) -> AdaptedStack:
        """The stack that they change."""
        ...


class RowUpdates:
    """The adapters of a step's positions."""

    def __init__(self, ops: Ops, rows: Sequence[Row]):
        """Group the positions of rows by their adapter, `Row.adapter`."""
        self._ops = ops
        stops = np.cumsum([row.stop - row.start for row in rows])
        self._count = int(stops[-1])
        places: dict[int, tuple[ProductUpdates, list[npt.NDArray[np.int64]]]] = {}
        for row, stop in zip(rows, stops.tolist(), strict=True):
            if row.adapter is not None:
                _, mine = places.setdefault(id(row.adapter), (row.adapter, []))
                mine.append(np.arange(stop - (row.stop - row.start), stop))
        joined = [(updates, np.concatenate(mine)) for updates, mine in places.values()]
        self._groups = [(updates, mine, ops.array(mine)) for updates, mine in joined]

    def add(self, name: str, x: Array, y: Array) -> Array:
        """Add to a product what the adapters add to it.

        Args:
            name: Name of the product's weight.
            x: (positions, in), its input.
            y: (positions, out), its result, or a sum of which it is a part.

        Returns:
            (positions, out); positions without an adapter keep their bits.
        """
        ops, parts, index = self._ops, [y], np.arange(self._count)
        start = self._count
        for updates, places, on_device in self._groups:
            update = updates.get(name)
            if update is None:
                continue
            low = ops.linear(ops.take(x, on_device), update.down)
            parts.append(ops.take(y, on_device) + ops.linear(low, update.up))
            index[places] = start + np.arange(len(places))
            start += len(places)
        if len(parts) == 1:
            return y
        return ops.take(ops.concat(parts, 0), ops.array(index))


def on_device(ops: Ops, matrices: Mapping[str, MatrixUpdate]) -> ProductUpdates:
    """Put what an adapter adds to products on the device."""
    return {
        name: ProductUpdate(ops.array(one.down), ops.array(one.up))
        for name, one in matrices.items()
    }


def joined_update(
    updates: Sequence[MatrixUpdate | None], outputs: Sequence[int]
) -> MatrixUpdate | None:
    """Return the update of weights that are joined along their outputs; None if there is none.

    Args:
        updates: What is added to each; None for nothing.
        outputs: Outputs of each.
    """
    there = [update for update in updates if update is not None]
    if not there:
        return None
    up = np.zeros((sum(outputs), sum(one.up.shape[1] for one in there)), np.float32)
    row = column = 0
    for update, count in zip(updates, outputs, strict=True):
        if update is not None:
            rank = update.up.shape[1]
            up[row : row + count, column : column + rank] = update.up
            column += rank
        row += count
    return MatrixUpdate(np.concatenate([one.down for one in there]), up)
