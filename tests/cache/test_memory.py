"""Pages and the prefix tree together: users of a page, and pages from lower tiers."""

from __future__ import annotations

from collections import deque

from izwi.cache.memory import PagedMemory
from izwi.cache.pages import PagePool

SIZE = 4


class Below:
    """A lower tier that can fail to restore pages; records copies."""

    def __init__(self) -> None:
        self.kept: dict[int, int] = {}  # handle to the page that it was
        self.lost: set[int] = set()
        self.copies: list[tuple[int, int, int]] = []
        self.dropped: deque[int] = deque()
        self.gone: list[int] = []  # what it let go of by itself

    def copy(self, source: int, target: int, num_slots: int) -> None:
        self.copies.append((source, target, num_slots))

    def flush(self) -> None:
        pass

    def demote(self, page: int) -> int | None:
        handle = 100 + len(self.kept)
        self.kept[handle] = page
        return handle

    def promote(self, handle: int, page: int) -> bool:
        del page
        return handle not in self.lost

    def drop(self, handle: int) -> None:
        self.dropped.append(handle)

    def take_dropped(self) -> list[int]:
        gone, self.gone = self.gone, []
        return gone


def known(memory: PagedMemory, keys: list[int]) -> list[int]:
    """Pages of a sequence that has computed all of its keys, whole pages."""
    pages = memory.allocate(len(keys) // SIZE)
    memory.publish(keys, pages)
    return pages


def test_the_cache_does_not_count_as_a_user_of_a_page() -> None:
    memory = PagedMemory(8, SIZE, Below())
    keys = list(range(8))
    pages = known(memory, keys)
    assert memory.num_shared(pages) == 0, "preempting its only user frees both"
    assert memory.num_shared_by_others(memory.find(keys)) == 2
    shared, _ = memory.claim([*keys[:4], 99, 98])
    assert shared[:1] == pages[:1]
    assert memory.num_shared(pages) == 1
    memory.release(shared)
    memory.release(pages)
    assert memory.num_shared_by_others(memory.find(keys)) == 0
    assert memory.num_available == 8


def test_a_look_at_a_prefix_does_not_count_as_a_start() -> None:
    memory = PagedMemory(8, SIZE, Below())
    keys = list(range(8))
    known(memory, keys)
    assert memory.find([*keys, 9]).num_positions == 8
    assert (memory.positions_asked, memory.positions_hit) == (0, 0)
    memory.claim([*keys, 9])
    assert (memory.positions_asked, memory.positions_hit) == (9, 8)


def test_users_are_counted_without_the_cache() -> None:
    pool = PagePool(2)
    pages = pool.allocate(1)
    assert pool.num_users(pages[0]) == pool.num_holders(pages[0]) == 1
    pool.adopt(pages)
    assert (pool.num_users(pages[0]), pool.num_holders(pages[0])) == (1, 2)
    pool.share(pages)
    assert (pool.num_users(pages[0]), pool.num_holders(pages[0])) == (2, 3)
    pool.disown(pages)
    assert (pool.num_users(pages[0]), pool.num_holders(pages[0])) == (2, 2)


def divided(below: Below) -> tuple[PagedMemory, list[int], list[int]]:
    """Two pages of a prefix are in a lower tier, the next one is on the device."""
    memory = PagedMemory(8, SIZE, below)
    keys = list(range(12))
    memory.release(known(memory, keys[:8]))
    own = known(memory, keys)  # computed anew: the tree takes its last page alone
    taken = memory.allocate(5)
    assert len(below.kept) == 2
    memory.release(taken)
    return memory, keys, own


def test_promoted_pages_are_followed_by_a_copy_of_the_split_page() -> None:
    below = Below()
    memory, keys, own = divided(below)
    pages, num_positions = memory.claim([*keys[:10], 99])
    assert (len(pages), num_positions) == (3, 10)
    assert below.copies == [(own[2], pages[2], 2)]
    assert memory.num_promoted == 2


def test_nothing_follows_a_page_that_did_not_come_back() -> None:
    for lost, num_whole in ((1, 0), (0, 1)):  # the last page went down first
        below = Below()
        memory, keys, own = divided(below)
        below.lost.add(100 + lost)
        pages, num_positions = memory.claim([*keys[:10], 99])
        assert (len(pages), num_positions) == (num_whole, num_whole * SIZE)
        assert below.copies == []
        # what lay behind the lost one below is of no use, and is let go of at once
        assert list(below.dropped) == ([] if lost else [101])
        memory.release(pages)
        memory.release(own)
        assert memory.num_available == 8


def test_a_page_beyond_one_that_did_not_come_back_is_let_go() -> None:
    below = Below()
    memory, keys, own = divided(below)
    below.lost.add(100)
    pages, num_positions = memory.claim(keys)
    assert (len(pages), num_positions) == (1, SIZE)
    assert memory.num_shared(own) == 0
    below.lost.clear()
    again, num_positions = memory.claim(keys)
    assert (again[0], again[2], num_positions) == (pages[0], own[2], 12)


def test_a_page_that_a_tier_dropped_is_not_found_again() -> None:
    below = Below()
    memory, keys, own = divided(below)
    assert len(memory.find(keys).stored) == 2
    for handle, num_left in ((100, 1), (101, 0)):  # the last page went down first
        below.gone = [handle]
        memory.release(known(memory, [50 + handle, 51, 52, 53]))
        assert len(memory.find(keys).stored) == num_left
        assert below.gone == []
    memory.release(own)
