"""The adapters of captured steps: tables of addresses, which the steps read (ADR 62)."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from izwi.backends.torch.transfer import to_device
from izwi.backends.torch.triton.adapters import MAX_RANK, TABLE_COLUMNS
from izwi.model.adapters import ProductUpdates, TakesAdapters
from izwi.model.protocol import Model
from izwi.model.step_batch import Row


class AdapterTables:
    """The tables of the adapters of one model that the last steps ran with.

    Attributes:
        products: Where each product is in a table, by the name of its weight.
    """

    def __init__(self, model: Model, device: torch.device):
        """Set up; a model that takes no adapters has no products."""
        names = model.adapted.products if isinstance(model, TakesAdapters) else ()
        self.products = {name: place for place, name in enumerate(names)}
        self._device = device
        # by identity, with the adapter, so that the identity is that of no other
        self._tables: dict[int, tuple[ProductUpdates, Tensor]] = {}

    def takes(self, rows: Seq[Row]) -> bool:
        """Return whether captured steps run with the adapters of these rows."""
        adapters = {id(row.adapter): row.adapter for row in rows if row.adapter is not None}
        return all(_most_rank(updates) <= MAX_RANK for updates in adapters.values())

    def addresses(self, rows: Seq[Row]) -> npt.NDArray[np.int64]:
        """Return the addresses of the rows' tables; 0 for rows without an adapter.

        The tables stay until a later step has other adapters. What is freed then is used again
        behind this step only, since the device runs both in order.
        """
        found = {id(row.adapter): row.adapter for row in rows if row.adapter is not None}
        there = self._tables
        self._tables = {
            key: there.get(key) or (updates, self._table(updates)) for key, updates in found.items()
        }
        tables = self._tables
        return np.array(
            [0 if row.adapter is None else tables[id(row.adapter)][1].data_ptr() for row in rows],
            dtype=np.int64,
        )

    def _table(self, updates: ProductUpdates) -> Tensor:
        table = torch.zeros((len(self.products), TABLE_COLUMNS), dtype=torch.int64)
        for name, update in updates.items():
            down, up = update.down, update.up
            assert down.is_contiguous()
            assert up.is_contiguous()
            values = [down.data_ptr(), up.data_ptr(), down.shape[0]]
            table[self.products[name]] = torch.tensor(values)
        return to_device(table, self._device)


def _most_rank(updates: ProductUpdates) -> int:
    return max((update.down.shape[0] for update in updates.values()), default=0)
