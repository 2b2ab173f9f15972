"""Rows of codec state: whether their content is defined."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from izwi.backends.torch.state import StateArena
from izwi.model.layers import StateSpec


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


def test_arrays_of_one_type_lie_side_by_side_and_do_not_mix() -> None:
    specs = {"a": StateSpec((2, 3)), "n": StateSpec((1,), "int64"), "b": StateSpec((4,))}
    arena = StateArena(specs, 4, torch.device("cpu"), torch.float32)
    state = {
        "a": torch.arange(12.0).reshape(2, 2, 3),
        "b": torch.arange(100.0, 108.0).reshape(2, 4),
        "n": torch.tensor([[7], [1 << 40]]),
    }
    arena.scatter([2, 0], state)
    found = arena.gather(torch.tensor([0, 2, 1]))
    assert list(found) == ["a", "n", "b"]
    assert found["n"].dtype == torch.int64
    for name, part in found.items():
        assert part.shape == (3, *specs[name].shape)
        assert torch.equal(part[:2], state[name].flip(0))
        assert not part[2].any()
    saved = arena.save(2)
    assert saved.num_bytes == 6 * 4 + 8 + 4 * 4
    arena.scatter([2], {name: torch.zeros_like(part[:1]) for name, part in state.items()})
    assert not arena.gather([2])["b"].any()
    arena.restore(3, saved)
    arena.clear(0)
    after = arena.gather([3, 0, 2])
    for name, part in after.items():
        assert torch.equal(part[0], state[name][0]), "rows are copied, not shared"
        assert not part[1:].any()


def test_the_spare_row_is_no_streams_row(arena: StateArena) -> None:
    rows = [arena.allocate() for _ in range(3)]
    assert arena.spare_row not in rows
    assert arena.num_free == 0
    padded = torch.tensor([arena.spare_row, arena.spare_row])
    ones = {name: torch.ones_like(part) for name, part in arena.gather(padded).items()}
    arena.scatter(padded, ones)
    assert all(part.all() for part in arena.gather(padded).values())
    assert not any(part.any() for part in arena.gather(rows).values())
    assert all(map(arena.is_committed, rows)), "rows of a tensor are for the caller to mark"


def test_a_state_of_other_arrays_is_not_restored(arena: StateArena) -> None:
    saved = arena.save(1)
    for specs in (
        {"a": StateSpec((3, 2)), "n": StateSpec((1,), "int64")},
        {"a": StateSpec((2, 3)), "n": StateSpec((1,))},
        {"a": StateSpec((2, 3))},
    ):
        other = StateArena(specs, 3, torch.device("cpu"), torch.float32)
        with pytest.raises(ValueError, match="other arrays"):
            other.restore(0, saved)


def test_rows_are_written_and_read_concurrently_to_other_work() -> None:
    entered: list[str] = []

    @contextmanager
    def beside() -> Iterator[None]:
        entered.append("in")
        yield
        entered.append("out")

    specs = {"a": StateSpec((2,))}
    arena = StateArena(specs, 2, torch.device("cpu"), torch.float32, beside)
    assert entered == ["in", "out"]
    assert arena.device == torch.device("cpu")
    saved = arena.save(0)
    arena.restore(1, saved)
    arena.clear(0)
    assert entered == ["in", "out"] * 4
