"""Attention and short convolutions of one sequence without the engine's pages."""

from __future__ import annotations

from typing import Any

import torch

from izwi.backends.torch.attention.dense import attend, rope_table


class LoopContext:
    """Keys, values and convolution states of one sequence, kept whole."""

    def __init__(self) -> None:
        self._length, self._start = 0, 0
        self._kept: dict[int, Any] = {}
        self._inputs: dict[int, Any] = {}

    def extend(self, num_positions: int) -> None:
        """Say that the next calls are about so many more positions."""
        self._start, self._length = self._length, self._length + num_positions

    def rope(self, num_tokens: int, spec: Any, dtype: torch.dtype) -> Any:
        positions = torch.arange(self._start, self._length)
        return rope_table(positions, spec.head_dim, spec.rope_theta, dtype)

    def attend(self, layer: int, q: Any, k: Any, v: Any) -> Any:
        new = torch.stack([k, v])
        kept = self._kept.get(layer)
        self._kept[layer] = new if kept is None else torch.cat([kept, new], 1)
        keys, values = self._kept[layer]
        places = torch.arange(self._length)
        mask = places <= places[self._start :, None]
        return attend(q[None], keys[None], values[None], mask[None])[0]

    def before(self, layer: int, x: Any, width: int) -> list[Any]:
        kept = self._inputs.get(layer, x.new_zeros((width - 1, x.shape[1])))
        joined = torch.cat([kept, x])
        self._inputs[layer] = joined[-(width - 1) :]
        return [joined[width - 1 - back :][: x.shape[0]] for back in range(1, width)]
