"""Pages: none is lost, none is handed out twice, none is freed twice."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from izwi.cache.pages import PagePool, pages_for

NUM_PAGES = 12


class Pool(RuleBasedStateMachine):
    """The pool against a dictionary of counts, and the set of pages that the cache holds."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(NUM_PAGES)
        self.counts: dict[int, int] = {}
        self.adopted: set[int] = set()
        self.idle_before: set[int] = set()

    @property
    def idle(self) -> set[int]:
        return {page for page in self.adopted if self.counts[page] == 1}

    def let_go(self, page: int) -> None:
        self.counts[page] -= 1
        if self.counts[page] == 0:
            del self.counts[page]

    @rule(count=st.integers(0, NUM_PAGES))
    def allocate(self, count: int) -> None:
        if count > self.pool.num_free:
            with pytest.raises(ValueError, match="free"):
                self.pool.allocate(count)
            return
        pages = self.pool.allocate(count)
        assert len(set(pages)) == count
        assert not set(pages) & set(self.counts)
        self.counts.update(dict.fromkeys(pages, 1))

    @rule(page=st.integers(0, NUM_PAGES - 1))
    def share(self, page: int) -> None:
        if page not in self.counts:
            with pytest.raises(ValueError, match="free"):
                self.pool.share([page])
            return
        self.pool.share([page])
        self.counts[page] += 1

    @rule(page=st.integers(0, NUM_PAGES - 1))
    def release(self, page: int) -> None:
        if page not in self.counts or page in self.idle:
            with pytest.raises(ValueError, match="twice"):
                self.pool.release([page])
            return
        self.pool.release([page])
        self.let_go(page)

    @rule(page=st.integers(0, NUM_PAGES - 1))
    def adopt(self, page: int) -> None:
        if page not in self.counts or page in self.adopted:
            with pytest.raises(ValueError, match="adopted"):
                self.pool.adopt([page])
            return
        self.pool.adopt([page])
        self.counts[page] += 1
        self.adopted.add(page)

    @precondition(lambda self: self.counts)
    @rule(data=st.data())
    def disown(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(sorted(self.counts)))
        if page not in self.adopted:
            with pytest.raises(ValueError, match="not adopted"):
                self.pool.disown([page])
            return
        self.pool.disown([page])
        self.adopted.discard(page)
        self.let_go(page)

    @rule()
    def take_idled(self) -> None:
        taken = self.pool.take_idled()
        assert self.idle - self.idle_before <= taken
        self.idle_before = self.idle

    @invariant()
    def counts_are_what_holders_think(self) -> None:
        self.idle_before &= self.idle
        owned = [self.pool.num_holders(page) for page in range(NUM_PAGES)]
        assert owned == [self.counts.get(page, 0) for page in range(NUM_PAGES)]
        assert self.pool.num_free == NUM_PAGES - len(self.counts)

    @invariant()
    def idle_is_what_the_cache_alone_holds(self) -> None:
        assert self.pool.num_idle == len(self.idle)
        assert {page for page in range(NUM_PAGES) if self.pool.is_idle(page)} == self.idle
        assert self.pool.count_idle(range(NUM_PAGES)) == len(self.idle)


TestPool = Pool.TestCase


def test_a_negative_count_takes_nothing() -> None:
    pool = PagePool(2)
    with pytest.raises(ValueError, match="asked"):
        pool.allocate(-1)
    assert pool.num_free == 2


@pytest.mark.parametrize(("positions", "pages"), [(0, 0), (1, 1), (16, 1), (17, 2)])
def test_pages_for(positions: int, pages: int) -> None:
    assert pages_for(positions, 16) == pages
