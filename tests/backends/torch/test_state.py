"""Rows of codec state: whether what is in them is known."""

from __future__ import annotations

import pytest
import torch

from izwi.backends.torch.state import StateArena
from izwi.layers import StateSpec


@pytest.fixture
def arena() -> StateArena:
    specs = {"a": StateSpec((2, 3)), "n": StateSpec((1,), "int64")}
    return StateArena(specs, 3, torch.device("cpu"), torch.float32)


def fill(arena: StateArena, row: int, value: float) -> None:
    state = {name: torch.full_like(part, value) for name, part in arena.gather([row]).items()}
    arena.scatter([row], state)


def test_a_row_is_known_again_when_it_is_committed_cleared_or_restored(arena: StateArena) -> None:
    one, other = arena.allocate(), arena.allocate()
    fill(arena, one, 4.0)
    assert (arena.is_committed(one), arena.is_committed(other)) == (False, True)
    arena.commit([one])
    assert arena.is_committed(one)
    saved = arena.save(one)
    fill(arena, one, 5.0)
    arena.restore(one, saved)
    assert arena.is_committed(one)
    assert {float(part.max()) for part in arena.gather([one]).values()} == {4.0}
    fill(arena, one, 6.0)
    arena.release(one)
    assert arena.allocate() == one
    assert arena.is_committed(one)
    assert not any(part.any() for part in arena.gather([one]).values())
    with pytest.raises(ValueError, match="twice"):
        arena.release(2)
