"""Drafts of ids: what followed the last ids before."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from izwi.scheduler.drafts import (
    FIRST,
    LONGEST,
    LONGEST_PAUSE,
    MOST,
    SHORTEST,
    Drafting,
    find_draft,
)
from tests.examples import examples


def draft_of(ids: list[int], most: int = 3) -> tuple[int, ...]:
    return find_draft(array("i", ids).tobytes(), most)


@pytest.mark.parametrize(
    ("ids", "draft"),
    [
        ([], ()),
        ([1], ()),
        ([1, 2], ()),
        ([1, 2, 3, 1], ()),  # one id is not enough
        ([1, 2, 3, 4, 5, 1, 2], (3, 4, 5)),
        ([1, 2, 7, 7, 1, 2, 8, 8, 1, 2], (8, 8, 1)),  # the last one
        ([9, 1, 2, 7, 5, 8, 1, 2, 6, 9, 1, 2], (7, 5, 8)),  # the longest one
        ([7, 7, 7], (7, 7, 7)),
        ([1, 2, 1, 2], (1, 2, 1)),
        ([1, 2, 3, -1, 4, 1, 2], (3,)),  # audio cannot be drafted
        ([-1, -1, 3, -1, -1], ()),
        ([256, 1, 0, 0, 1, 5, 256, 1], (0, 0, 1)),  # equal bytes between ids are no ids
        ([0x01020304, 0, 0x04010203, 0x04010203, 9], ()),
    ],
)
def test_the_draft_is_what_followed(ids: list[int], draft: tuple[int, ...]) -> None:
    assert draft_of(ids) == draft


@examples(60)
@given(ids=st.lists(st.sampled_from([-1, 0, 1, 256, 65536]), max_size=24), most=st.integers(1, 20))
def test_the_draft_is_that_of_a_plain_search(ids: list[int], most: int) -> None:
    expected: list[int] = []
    for length in range(LONGEST, SHORTEST - 1, -1):
        suffix = ids[-length:]
        starts = [n for n in range(len(ids) - length) if ids[n : n + length] == suffix]
        if len(suffix) == length and min(suffix) >= 0 and starts:
            said = list(ids)
            for n in range(most):  # go on as it did then
                said.append(said[starts[-1] + length + n])
            expected = said[len(ids) :]
            break
    expected = expected[: expected.index(-1)] if -1 in expected else expected
    assert draft_of(ids, most) == tuple(expected)


def test_prompt_and_log_are_one_text() -> None:
    drafting = Drafting([5, 6, 7, 8])
    assert drafting.draft([], 4) == ()
    assert drafting.draft([(1,), (5,), (6,)], 4) == (7, 8, 1, 5)
    assert drafting.draft([(1,), (5,), (6,), (7,)], 1) == (8,)
    assert drafting.draft([(1,), (5,), (6,), (7,)], 0) == ()


def test_right_drafts_grow_and_wrong_ones_pause() -> None:
    log = [(7,)] * 8
    drafting = Drafting([7] * 8)
    assert len(drafting.draft(log, 99)) == FIRST
    drafting.record(FIRST, FIRST, 8)
    assert len(drafting.draft(log, 99)) == 2 * FIRST
    drafting.record(8, 8, 8)
    assert len(drafting.draft(log, 99)) == MOST
    drafting.record(MOST, 2, 8)
    assert len(drafting.draft(log, 99)) == 3
    drafting.record(3, 0, 8)
    assert len(drafting.draft(log, 99)) == 1  # the first failure costs no pause
    drafting.record(1, 0, 8)
    assert drafting.draft(log + [(7,)] * 3, 99) == ()
    assert len(drafting.draft(log + [(7,)] * 4, 99)) == 1
    for _ in range(9):
        drafting.record(1, 0, 8)
    assert drafting.draft(log + [(7,)] * (LONGEST_PAUSE - 1), 99) == ()
    assert len(drafting.draft(log + [(7,)] * LONGEST_PAUSE, 99)) == 1


def test_as_much_is_expected_as_was_accepted() -> None:
    drafting = Drafting([])
    assert drafting.expected(0) == 0.0
    assert drafting.expected(2) == pytest.approx(0.5 + 0.25)
    for _ in range(40):
        drafting.record(4, 4, 0)
    assert 3.5 < drafting.expected(4) < 4.0
    for _ in range(40):
        drafting.record(4, 0, 0)
    assert drafting.expected(4) < 0.2
