"""Paged attention in plain torch: writes and reads the pages through block tables.

Rows of one step are packed end to end. Rows of one new position (decodes) and rows of several
(prompts) attend in two groups, so that a prompt does not pad every decode to its length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from izwi.ops.attention.torch_dense import RopeTable, attend, rope_table
from izwi.ops.protocol import AttentionSpec

_KEY_BLOCK = 64


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows that attend together.

    Attributes:
        tokens: (rows, longest) int64 places of the rows' tokens in the packed array.
        slots: (rows, keys) int64 slots of the rows' keys, padded with slot 0.
        mask: (rows, longest, keys) bool.
        used: (tokens,) int64 places in the padded rows that are real, or None if all are.
    """

    tokens: Tensor
    slots: Tensor
    mask: Tensor
    used: Tensor | None


class PagedContext:
    """Attention of one step's packed rows over the pages of one model."""

    def __init__(
        self,
        keys: Tensor,
        values: Tensor,
        page_size: int,
        spans: Sequence[tuple[int, int]],
        tables: Sequence[Sequence[int]],
    ):
        """Lay out a step.

        Args:
            keys: (layers, slots, kv_heads, head_dim), written by `attend`.
            values: The same for values.
            page_size: Slots of one page.
            spans: Positions [start, stop) that each row runs.
            tables: Pages of each row, covering [0, stop).
        """
        self._keys, self._values = keys, values
        device = keys.device
        slot_rows = [
            _slots(table, page_size, stop) for table, (_, stop) in zip(tables, spans, strict=True)
        ]
        places = np.cumsum([0] + [stop - start for start, stop in spans])
        positions = np.concatenate([np.arange(start, stop) for start, stop in spans])
        written = np.concatenate(
            [slots[start:] for slots, (start, _) in zip(slot_rows, spans, strict=True)]
        )
        self._positions = torch.from_numpy(positions).to(device)
        self._written = torch.from_numpy(written).to(device)
        self._rope: RopeTable | None = None
        single = [i for i, (start, stop) in enumerate(spans) if stop - start == 1]
        several = [i for i, (start, stop) in enumerate(spans) if stop - start > 1]
        self._groups = [
            _group([(spans[i], int(places[i]), slot_rows[i]) for i in members], device)
            for members in (single, several)
            if members
        ]

    def rope(self, num_tokens: int, spec: AttentionSpec, dtype: torch.dtype) -> RopeTable:
        assert num_tokens == len(self._positions)
        if self._rope is None:  # the same for every layer of one step
            assert spec.rope_theta is not None
            self._rope = rope_table(self._positions, spec.head_dim, spec.rope_theta, dtype)
        return self._rope

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = self._keys[layer], self._values[layer]
        keys[self._written] = k
        values[self._written] = v
        if len(self._groups) == 1 and self._groups[0].used is None:
            return _attend_group(self._groups[0], q, keys, values).flatten(0, 1)
        out = torch.empty_like(q)
        for group in self._groups:
            rows = _attend_group(group, q, keys, values).flatten(0, 1)
            tokens = group.tokens.flatten()
            if group.used is not None:
                rows, tokens = rows[group.used], tokens[group.used]
            out[tokens] = rows
        return out


def _attend_group(group: _Group, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return attend(q[group.tokens], keys[group.slots], values[group.slots], group.mask)


def _slots(table: Sequence[int], page_size: int, stop: int) -> np.ndarray:
    pages = np.asarray(table, dtype=np.int64)
    slots = pages[:, None] * page_size + np.arange(page_size)
    return slots.reshape(-1)[:stop]


def _group(rows: Sequence[tuple[tuple[int, int], int, np.ndarray]], device: torch.device) -> _Group:
    longest = max(stop - start for (start, stop), _, _ in rows)
    # the sums over keys are cut into blocks; whole blocks of masked keys change no bit, so a
    # row's result does not depend on how long its neighbours are
    num_keys = -(-max(stop for (_, stop), _, _ in rows) // _KEY_BLOCK) * _KEY_BLOCK
    tokens = np.zeros((len(rows), longest), dtype=np.int64)
    slots = np.zeros((len(rows), num_keys), dtype=np.int64)
    # a padded query sees key 0, so that its softmax is over something; its output is not used
    mask = np.zeros((len(rows), longest, num_keys), dtype=bool)
    mask[:, :, 0] = True
    used: list[np.ndarray] = []
    for i, ((start, stop), place, row_slots) in enumerate(rows):
        count = stop - start
        tokens[i, :count] = np.arange(place, place + count)
        tokens[i, count:] = place
        slots[i, :stop] = row_slots
        mask[i, :count] = np.arange(num_keys) <= np.arange(start, stop)[:, None]
        used.append(i * longest + np.arange(count))
    real = np.concatenate(used)
    return _Group(
        torch.from_numpy(tokens).to(device),
        torch.from_numpy(slots).to(device),
        torch.from_numpy(mask).to(device),
        None if len(real) == tokens.size else torch.from_numpy(real).to(device),
    )
