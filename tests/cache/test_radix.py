"""The prefix tree against a naive model: a dictionary of prefixes, searched by brute force."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from izwi.cache.pages import PagePool
from izwi.cache.radix import Match, RadixTree, page_chain
from tests.examples import examples

NUM_PAGES, SIZE = 20, 3
KEYS = st.builds(  # few different pages, so that most sequences share some
    lambda pages, rest: [key for page in pages for key in page] + rest,
    st.lists(st.sampled_from([(0, 0, 0), (0, 0, 1), (0, 1, 0)]), max_size=5),
    st.lists(st.integers(0, 1), max_size=SIZE - 1),
)
Prefix = tuple[int, ...]


@dataclass
class Known:
    """The model's entry for a prefix of whole pages: a page, or a handle of a lower tier."""

    page: int | None
    handle: int | None
    stamp: int


@dataclass
class Holder:
    """A sequence that holds pages; contents of all whole ones are computed."""

    keys: list[int]
    pages: list[int]


class Tree(RuleBasedStateMachine):
    """Sequences come, share, grow, are offered to the tree and go; pages go down and up."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(NUM_PAGES)
        self.tree = RadixTree(self.pool, SIZE)
        self.known: dict[Prefix, Known] = {}
        self.holders: list[Holder] = []
        self.clock = self.num_handles = self.asked = self.hit = 0
        self.orphans: list[int] = []
        self.before: tuple[int, set[int]] = 0, set()

    # the model

    def use(self, keys: list[int], count: int) -> None:
        self.clock += 1
        for stop in range(1, count + 1):
            self.known[tuple(keys[: stop * SIZE])].stamp = self.clock

    def num_known(self, keys: list[int]) -> int:
        count = 0
        while len(keys) >= (count + 1) * SIZE and tuple(keys[: (count + 1) * SIZE]) in self.known:
            count += 1
        return count

    def num_slots(self, keys: list[int], count: int) -> int:
        """Most slots that a page on the device after the known whole pages shares."""
        rest, best = keys[count * SIZE : (count + 1) * SIZE], 0
        for prefix, known in self.known.items():
            if known.page is None or len(prefix) != (count + 1) * SIZE:
                continue
            if list(prefix[: count * SIZE]) == keys[: count * SIZE]:
                best = max(best, shared(rest, list(prefix[count * SIZE :])))
        return best

    def forget(self, prefix: Prefix) -> None:
        for other in [other for other in self.known if other[: len(prefix)] == prefix]:
            known = self.known.pop(other)
            if known.handle is not None:
                self.orphans.append(known.handle)

    def evictable(self) -> list[Prefix]:
        """Prefixes whose page is unused, in the order of eviction."""
        used = {page for holder in self.holders for page in holder.pages}
        idle = [
            prefix
            for prefix, known in self.known.items()
            if known.page is not None and known.page not in used
        ]
        return sorted(idle, key=lambda prefix: (self.known[prefix].stamp, -len(prefix)))

    def offer(self, holder: Holder, count: int) -> None:
        """`insert` in both worlds."""
        adopted = 0
        for index in range(count):
            prefix = tuple(holder.keys[: (index + 1) * SIZE])
            known = self.known.get(prefix)
            if known is None or known.page is None:
                if known is not None and known.handle is not None:
                    self.orphans.append(known.handle)
                self.known[prefix] = Known(holder.pages[index], None, 0)
                adopted += 1
        self.use(holder.keys, count)
        assert self.tree.insert(holder.keys, holder.pages[:count]) == adopted

    def look_up(self, keys: list[int], peek: bool = False) -> Match:
        """`match` in both worlds."""
        count = self.num_known(keys)
        slots = self.num_slots(keys, count)
        if not peek:
            self.use(keys, count)
            self.asked += len(keys)
            self.hit += count * SIZE + slots
        match = self.tree.match(keys, peek=peek)
        found = [self.known[tuple(keys[: (index + 1) * SIZE])] for index in range(count)]
        first = next((i for i, known in enumerate(found) if known.page is None), count)
        assert match.num_positions == count * SIZE + slots
        assert match.pages == [known.page for known in found[:first]]
        rest = list(enumerate(found))[first:]
        assert match.stored == tuple((i, known.handle) for i, known in rest if known.page is None)
        assert match.beyond == tuple((i, known.page) for i, known in rest if known.page is not None)
        if slots == 0:
            assert match.copy_from is None
        else:
            sources = [p for p, known in self.known.items() if known.page == match.copy_from]
            assert [source[: match.num_positions] for source in sources] == [
                tuple(keys[: match.num_positions])
            ]
            assert len(sources[0]) == (count + 1) * SIZE
        return match

    # what happens

    @rule(keys=KEYS)
    def arrive(self, keys: list[int]) -> None:
        match = self.look_up(keys)
        self.pool.share(match.pages)
        own = len(keys) // SIZE - len(match.pages)
        if own > self.pool.num_free:
            self.pool.release(match.pages)
        else:
            self.holders.append(Holder(keys, match.pages + self.pool.allocate(own)))

    @rule(keys=KEYS)
    def visit(self, keys: list[int]) -> None:
        """Arrive, run to the end and leave."""
        num_before = len(self.holders)
        self.arrive(keys)
        for holder in self.holders[num_before:]:
            self.offer(holder, len(holder.pages))
            self.pool.release(holder.pages)
        del self.holders[num_before:]

    @rule(keys=KEYS)
    def peek(self, keys: list[int]) -> None:
        self.look_up(keys, peek=True)

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), more=KEYS)
    def grow(self, data: st.DataObject, more: list[int]) -> None:
        holder = data.draw(st.sampled_from(self.holders))
        own = (len(holder.keys) + len(more)) // SIZE - len(holder.pages)
        if own <= self.pool.num_free:
            holder.keys += more
            holder.pages += self.pool.allocate(own)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        holder = data.draw(st.sampled_from(self.holders))
        self.offer(holder, data.draw(st.integers(0, len(holder.pages))))

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), keep=st.booleans())
    def leave(self, data: st.DataObject, keep: bool) -> None:
        holder = self.holders.pop(data.draw(st.integers(0, len(self.holders) - 1)))
        if keep:
            self.offer(holder, len(holder.pages))
        self.pool.release(holder.pages)

    @rule(count=st.integers(1, 6), kept=st.lists(st.booleans(), min_size=NUM_PAGES))
    def evict(self, count: int, kept: list[bool]) -> None:
        wanted: list[tuple[int, int]] = []
        plan = iter(kept)
        first_handle = self.num_handles
        asked: list[tuple[int, int]] = []
        while len(wanted) < count and (idle := self.evictable()):
            known = self.known[idle[0]]
            assert known.page is not None
            wanted.append((known.page, len(idle[0])))
            if next(plan):
                known.page, known.handle = None, self.num_handles
                self.num_handles += 1
            else:
                self.forget(idle[0])
        answers, handles = iter(kept), iter(range(first_handle, self.num_handles))

        def demote(page: int, num_positions: int) -> int | None:
            asked.append((page, num_positions))
            return next(handles) if next(answers) else None

        freed = self.tree.evict(count, demote)
        assert asked == wanted
        assert freed == [page for page, _ in wanted]

    @rule(count=st.integers(0, 6))
    def evict_for_good(self, count: int) -> None:
        wanted: list[int | None] = []
        while len(wanted) < count and (idle := self.evictable()):
            wanted.append(self.known[idle[0]].page)
            self.forget(idle[0])
        assert self.tree.evict(count) == wanted

    @precondition(lambda self: self.tree.num_stored)
    @rule(data=st.data(), extra=KEYS, drop=st.booleans())
    def restore(self, data: st.DataObject, extra: list[int], drop: bool) -> None:
        below = [prefix for prefix, known in self.known.items() if known.handle is not None]
        keys = [*data.draw(st.sampled_from(sorted(below))), *extra]
        match = self.look_up(keys)
        pages = self.pool.allocate(min(len(match.stored), self.pool.num_free))
        if drop:  # the tier throws something away while pages are in flight
            self.drop(data)
        found = []
        for (index, handle), page in zip(match.stored, pages, strict=False):
            known = self.known.get(tuple(keys[: (index + 1) * SIZE]))
            if known is not None and known.handle == handle:
                known.page, known.handle = page, None
                self.orphans.append(handle)
                found.append(index)
        if found:
            self.use(keys, found[-1] + 1)
        assert self.tree.restore(match, pages) == len(found)
        self.pool.release(pages)

    @precondition(lambda self: self.tree.num_stored)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        below = {known.handle: p for p, known in self.known.items() if known.handle is not None}
        handle = data.draw(st.sampled_from(sorted(below)))
        self.forget(below[handle])
        self.orphans.remove(handle)
        self.tree.drop(handle)
        self.tree.drop(handle)  # once more does nothing

    # what always holds

    @invariant()
    def counts_are_what_holders_think(self) -> None:
        counts = [0] * NUM_PAGES
        for holder in self.holders:
            for page in holder.pages:
                counts[page] += 1
        for known in self.known.values():
            if known.page is not None:
                counts[known.page] += 1
        assert [self.pool.num_holders(page) for page in range(NUM_PAGES)] == counts
        assert self.pool.num_free == counts.count(0)

    @invariant()
    def figures_are_those_of_brute_force(self) -> None:
        assert self.tree.num_evictable == len(self.evictable())
        assert self.tree.num_pages == sum(k.page is not None for k in self.known.values())
        assert self.tree.num_stored == sum(k.handle is not None for k in self.known.values())
        assert (self.tree.positions_asked, self.tree.positions_hit) == (self.asked, self.hit)

    @invariant()
    def digests_are_those_of_all_known_prefixes(self) -> None:
        digests = self.tree.digests(NUM_PAGES * 10)
        assert sorted(digests) == sorted(page_chain(known, SIZE)[-1] for known in self.known)
        assert self.tree.digests(3) == digests[:3]
        now = self.tree.num_changes, set(digests)
        assert now[1] == self.before[1] or now[0] > self.before[0]
        self.before = now

    @invariant()
    def every_handle_is_known_or_reported_once(self) -> None:
        assert sorted(self.tree.take_orphans()) == sorted(self.orphans)
        self.orphans.clear()


Tree.TestCase.settings = examples(150, stateful_step_count=50)
TestTree = Tree.TestCase


def shared(ours: list[int], theirs: list[int]) -> int:
    count = 0
    while count < min(len(ours), len(theirs)) and ours[count] == theirs[count]:
        count += 1
    return count


def filled(keys: list[int], num_pages: int = 8, size: int = 2) -> tuple[PagePool, RadixTree]:
    """A tree that alone holds the pages of some keys, numbered from 0."""
    pool = PagePool(num_pages)
    tree = RadixTree(pool, size)
    pages = pool.allocate(len(keys) // size)
    tree.insert(keys, pages)
    pool.release(pages)
    return pool, tree


def test_the_split_page_is_copied_and_whole_ones_are_shared() -> None:
    _, tree = filled([1, 2, 3, 4, 5, 6])
    assert tree.match([1, 2, 3, 4, 5, 9]) == Match([0, 1], 5, copy_from=2)
    assert tree.match((1, 2, 3)) == Match([0], 3, copy_from=1)
    assert tree.match([9, 2]) == Match([], 0)


def test_a_sequence_that_computed_again_what_is_known_may_continue_it() -> None:
    # the tree's own first page is idle while what follows it is in use: it must be evictable
    pool, tree = filled([1, 2])
    pages = pool.allocate(2)
    assert tree.insert([1, 2, 3, 4], pages) == 1
    assert tree.num_evictable == 1
    assert tree.evict(2) == [0]
    assert tree.num_pages == 0
    assert [pool.num_holders(page) for page in pages] == [1, 1]
    assert tree.insert([1, 2, 3, 4], pages) == 2
    assert tree.match([1, 2, 3, 4]).pages == pages


def test_digests_of_prefixes_that_were_used_last_come_first_with_all_before_them() -> None:
    pool, tree = filled([1, 2, 3, 4, 5, 6])
    pages = pool.allocate(2)
    tree.insert([1, 2, 7, 8], pages)
    assert tree.digests(2) == page_chain([1, 2, 7, 8], 2)
    tree.match([1, 2, 3, 4, 5, 6])
    chain = page_chain([1, 2, 3, 4, 5, 6], 2)
    assert tree.digests(3) == chain
    assert set(tree.digests(9)) == {*chain, *page_chain([1, 2, 7, 8], 2)}


def test_a_page_is_not_known_by_two_names() -> None:
    pool = PagePool(4)
    tree = RadixTree(pool, 2)
    pages = pool.allocate(2)
    tree.insert([1, 2, 3, 4], pages)
    with pytest.raises(ValueError, match="other keys"):
        tree.insert([1, 2, 3, 5], pages)
    with pytest.raises(ValueError, match="twice"):
        tree.insert([7, 7, 8, 8], pages[::-1])
    with pytest.raises(ValueError, match="keys"):
        tree.insert([1, 2, 3], pages)


def test_a_tier_may_make_room_while_it_is_given_a_page() -> None:
    pool, tree = filled([1, 2, 3, 4, 5, 6])
    holder = tree.match([1, 2, 3, 4, 5, 6]).pages[2:]
    pool.share(holder)  # so that the page before goes down first
    assert tree.evict(1, lambda *_: 7) == [1]
    pool.release(holder)

    def demote(page: int, num_positions: int) -> int | None:
        if page == 2:
            tree.drop(7)  # what comes before that very page
        return page + 100

    assert sorted(tree.evict(8, demote)) == [0, 2]
    assert tree.take_orphans() == [102]
    assert tree.match([1, 2, 3, 4]).stored == ((0, 100),)
    assert pool.num_free == 8


def test_a_forgotten_page_may_come_back_as_another() -> None:
    pool, tree = filled([1, 2, 3, 4])
    tree.match([1, 2])  # so that the pages are two edges
    pool.share([1])
    assert tree.evict(1, lambda *_: 7) == [0]
    pool.release([1])
    tree.match([9])
    tree.drop(7)
    assert pool.allocate(1) == [1]
    tree.insert([5, 6], [1])
    pool.release([1])
    assert tree.evict(2) == [1]
    assert (tree.num_pages, tree.match([5, 6])) == (0, Match([], 0))


def test_a_handle_names_one_page() -> None:
    _, tree = filled([1, 2, 3, 4])
    assert tree.evict(1, lambda *_: 7) == [1]
    with pytest.raises(ValueError, match="in use"):
        tree.evict(1, lambda *_: 7)


def test_restored_pages_were_used_last() -> None:
    pool, tree = filled([1, 2])
    assert tree.evict(1, lambda *_: 7) == [0]
    match = tree.match([1, 2])
    other = pool.allocate(1)
    tree.insert([3, 4], other)
    loaded = pool.allocate(1)
    assert tree.restore(match, loaded) == 1
    pool.release(other + loaded)
    assert tree.evict(2) == other + loaded


def test_inserting_a_page_at_a_time_compares_nothing_again() -> None:
    class Counted(list[int]):
        """Keys that count how many of them are read."""

        num_read = 0

        def __getitem__(self, index):  # type: ignore[no-untyped-def]
            part = super().__getitem__(index)
            Counted.num_read += len(part)
            return part

    pool = PagePool(400)
    tree = RadixTree(pool, 4)
    pages = pool.allocate(400)
    keys = Counted(range(1600))
    for count in range(1, 401):
        assert tree.insert(keys, pages[:count]) == 1
    assert Counted.num_read < 400 * 4 * 4
