"""Pages: none is lost, none is handed out twice, none is freed twice."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from izwi.cache.pages import PagePool, pages_for


class Pool(RuleBasedStateMachine):
    """The pool against a dictionary of counts."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(12)
        self.counts: dict[int, int] = {}

    @rule(count=st.integers(0, 12))
    def allocate(self, count: int) -> None:
        if count > self.pool.num_free:
            with pytest.raises(ValueError):
                self.pool.allocate(count)
            return
        pages = self.pool.allocate(count)
        assert len(set(pages)) == count
        assert not set(pages) & set(self.counts)
        self.counts.update(dict.fromkeys(pages, 1))

    @precondition(lambda self: self.counts)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(sorted(self.counts)))
        self.pool.share([page])
        self.counts[page] += 1

    @precondition(lambda self: self.counts)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(sorted(self.counts)))
        self.pool.release([page])
        self.counts[page] -= 1
        if self.counts[page] == 0:
            del self.counts[page]
            with pytest.raises(ValueError):
                self.pool.release([page])
            with pytest.raises(ValueError):
                self.pool.share([page])

    @invariant()
    def free_is_what_nobody_holds(self) -> None:
        assert self.pool.num_free == 12 - len(self.counts)


TestPool = Pool.TestCase


@pytest.mark.parametrize(("positions", "pages"), [(0, 0), (1, 1), (16, 1), (17, 2)])
def test_pages_for(positions: int, pages: int) -> None:
    assert pages_for(positions, 16) == pages
