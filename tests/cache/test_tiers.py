"""Pages in lower tiers: exact bytes, budgets kept, and no fault reaches the loop."""

from __future__ import annotations

import errno
from io import FileIO
from math import inf
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from izwi.backends.torch.state import StateArena
from izwi.cache.tiers import PageStore, Tier, TierCosts, cheapest
from izwi.model.layers import StateSpec
from tests.examples import examples

SIZE = 64
# keeping is always cheaper than rebuilding
KEEP = TierCosts(rebuild_s_per_position=1.0)


def page(i: int) -> np.ndarray:
    return np.random.default_rng(i).integers(0, 256, SIZE, dtype=np.uint8)


def store(host: int, disk: int, folder: Path | None, costs: TierCosts = KEEP) -> PageStore:
    return PageStore(SIZE, costs, host * SIZE, disk * SIZE, folder)


def handles(kept: PageStore, count: int) -> list[int]:
    """Put pages 0..count-1, all of which must be accepted."""
    given = [kept.put(page(i), 16) for i in range(count)]
    assert None not in given
    return [handle for handle in given if handle is not None]


def test_the_longest_unused_go_down_and_then_away(tmp_path: Path) -> None:
    kept = store(2, 2, tmp_path)
    a, b = handles(kept, 2)
    kept.get(a)
    c = kept.put(page(2), 16)
    assert (kept.num_host, kept.num_disk) == (2, 1)  # b went to disk
    kept.put(page(3), 16)  # then a
    assert kept.get(b) is not None  # so a is now the longest unused of the two on disk
    assert kept.take_dropped() == []
    kept.put(page(4), 16)  # c goes down, a goes away
    assert kept.take_dropped() == [a]
    assert kept.take_dropped() == []
    assert kept.get(a) is None
    for handle, i in ((b, 1), (c, 2)):
        assert handle is not None
        np.testing.assert_array_equal(kept.get(handle), page(i))
    kept.close()


def test_the_store_keeps_a_copy(tmp_path: Path) -> None:
    kept = store(1, 1, tmp_path)
    data = page(0)
    handle = kept.put(data, 16)
    data[:] = 0
    assert handle is not None
    read = kept.get(handle)
    assert read is not None
    np.testing.assert_array_equal(read, page(0))
    with pytest.raises(ValueError):
        read[0] = 1
    with pytest.raises(ValueError):
        kept.put(page(0)[1:], 16)


@examples(60)
@given(
    host=st.integers(0, 3),
    disk=st.integers(0, 3),
    acts=st.lists(
        st.tuples(st.sampled_from(["put", "get", "drop"]), st.integers(0, 9)), max_size=40
    ),
)
def test_nothing_is_lost_unsaid(host: int, disk: int, acts: list[tuple[str, int]]) -> None:
    """Every page put is there with its bytes, unless it was dropped or reported as such."""
    kept = store(host, disk, None)
    alive: dict[int, int] = {}
    for step, (act, pick) in enumerate(acts):
        if act == "put":
            handle = kept.put(page(step), 16)
            assert (handle is None) == (host + disk == 0)
            if handle is not None:
                assert handle not in alive
                alive[handle] = step
        elif alive:
            handle = sorted(alive)[pick % len(alive)]
            if act == "drop":
                kept.drop(handle)
                del alive[handle]
                assert kept.get(handle) is None
            else:
                np.testing.assert_array_equal(kept.get(handle), page(alive[handle]))
        for handle in kept.take_dropped():
            del alive[handle]
        assert len(alive) == kept.num_host + kept.num_disk
        assert kept.num_host <= host
        assert kept.num_disk <= disk
    for handle, made in alive.items():
        np.testing.assert_array_equal(kept.get(handle), page(made))
    kept.close()


def test_the_file_has_no_name_and_is_closed(tmp_path: Path) -> None:
    kept = store(0, 2, tmp_path / "made" / "here")
    handle = kept.put(page(0), 16)
    assert handle is not None
    assert kept.num_disk == 1
    assert list((tmp_path / "made" / "here").iterdir()) == []
    kept.close()
    assert kept.get(handle) is None
    assert kept.put(page(1), 16) is None


def test_an_unwritable_folder_only_costs_the_pages(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    kept = store(1, 5, tmp_path / "file")
    a, b = handles(kept, 2)
    assert kept.take_dropped() == [a]
    np.testing.assert_array_equal(kept.get(b), page(1))
    assert store(0, 5, tmp_path / "file").put(page(0), 16) is None


def test_a_full_disk_only_costs_the_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = store(1, 5, tmp_path)
    first = handles(kept, 3)  # 0 and 1 are on disk

    def full(self: FileIO, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def open_full() -> None:
        file = kept._disk._file
        assert file is not None
        kept._disk._file = type("Full", (), {"write": full, "seek": file.seek})()

    real = kept._disk._file
    open_full()
    fourth = kept.put(page(3), 16)
    assert fourth is not None
    assert kept.take_dropped() == [first[2]]
    kept._disk._file = real
    for i in (0, 1):
        np.testing.assert_array_equal(kept.get(first[i]), page(i))
    # the file grows no more, but its places are used again
    fifth = kept.put(page(4), 16)
    assert fifth is not None
    assert kept.take_dropped() == [first[0]]
    np.testing.assert_array_equal(kept.get(fourth), page(3))
    kept.close()


def test_a_page_that_cannot_be_read_back_is_gone(tmp_path: Path) -> None:
    kept = store(0, 3, tmp_path)
    a, b = handles(kept, 2)
    assert kept._disk._file is not None
    kept._disk._file.truncate(SIZE + SIZE // 2)
    assert kept.get(b) is None
    assert kept.num_disk == 1
    np.testing.assert_array_equal(kept.get(a), page(0))
    kept.close()


@pytest.mark.parametrize(
    ("costs", "tier"),
    [
        (TierCosts(1e-3, 1e-10, 1e-9, 1e-9), Tier.HOST),
        (TierCosts(1e-3, inf, 1e-9, 1e-9), Tier.DROP),
        (TierCosts(1e-9, 1e-10, 1e-9, 1e-9), Tier.DROP),
    ],
)
def test_cheapest_of_all(costs: TierCosts, tier: Tier) -> None:
    assert cheapest(16, 1 << 20, costs) is tier


def test_cheapest_of_those_there_are() -> None:
    # 16 positions of 64 KiB: 1.0 ms to write and read, 0.2 ms over the bus
    costs = TierCosts(1e-4, 1e-10, 5e-10, 5e-10)
    below = {Tier.DISK, Tier.DROP}
    assert cheapest(16, 16 << 16, costs, below) is Tier.DISK
    assert cheapest(16, 16 << 16, TierCosts(7e-5, 1e-10, 5e-10, 5e-10), below) is Tier.DROP
    assert cheapest(16, 16 << 16, costs, {Tier.DROP}) is Tier.DROP


def test_the_store_follows_the_costs(tmp_path: Path) -> None:
    cheap_rebuild = TierCosts(rebuild_s_per_position=0.0)
    kept = store(2, 2, tmp_path, cheap_rebuild)
    assert kept.tier_for(16) is Tier.DROP
    assert kept.put(page(0), 16) is None
    kept.costs = TierCosts(1e-6, 1e-10, 1e-6, 1e-6)  # 16 positions or two pages to the disk
    first = [kept.put(page(i), positions) for i, positions in enumerate((1000, 16, 16, 16))]
    assert kept.take_dropped() == [first[1]]  # what saves more goes to the disk
    assert (kept.num_host, kept.num_disk) == (2, 1)
    kept.close()


def test_state_comes_back_bit_for_bit() -> None:
    specs = {"history": StateSpec((3, 5)), "start": StateSpec((), "int64")}
    arena = StateArena(specs, 3, torch.device("cpu"), torch.bfloat16)
    a, b = arena.allocate(), arena.allocate()
    g = torch.Generator().manual_seed(0)
    state = {
        "history": torch.randn(2, 3, 5, generator=g).bfloat16(),
        "start": torch.tensor([7, -(2**60)]),
    }
    arena.scatter([a, b], state)
    saved = arena.save(b)
    assert saved.num_bytes == 3 * 5 * 2 + 8
    arena.release(b)
    c = arena.allocate()  # the same row, zeroed: what is saved is a copy
    assert arena.gather([c])["start"].item() == 0
    arena.restore(c, saved)
    for name, array in arena.gather([a, c]).items():
        assert torch.equal(array, state[name])
    other = StateArena({"start": StateSpec((), "int64")}, 1, torch.device("cpu"), torch.float32)
    with pytest.raises(ValueError):
        other.restore(other.allocate(), saved)
