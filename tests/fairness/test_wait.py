"""How long a full queue takes is predicted from how fast it moved."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from izwi.fairness.wait import QueueWait


def moved(gap_s, count=20):
    """A queue from which one request left after each gap, and when the last one did."""
    wait = QueueWait()
    wait.note_first(0.0)
    for number in range(1, count + 1):
        wait.note_left(1, gap_s * number)
    return wait, gap_s * count


def test_of_a_queue_that_never_moved_what_it_has_stood_is_known():
    wait = QueueWait()
    assert wait.retry_after_s(500, 9.0) == 1
    wait.note_first(9.0)
    assert wait.retry_after_s(500, 9.0) == 1
    assert wait.retry_after_s(10, 10.5) == 15


@pytest.mark.parametrize(
    ("gap_s", "num_waiting", "expected_s"),
    [(0.001, 512, 1), (0.05, 510, 26), (0.05, 19, 1), (1.0, 512, 120), (0.1, 0, 1)],
)
def test_it_takes_as_long_as_all_that_wait_need_to_leave(gap_s, num_waiting, expected_s):
    wait, now_s = moved(gap_s)
    assert wait.retry_after_s(num_waiting, now_s) == expected_s


def test_several_leave_at_a_time_and_the_latest_counts_most():
    wait = QueueWait()
    wait.note_first(0.0)
    for number in range(1, 30):
        wait.note_left(8, 0.8 * number)
    assert wait.retry_after_s(95, 0.8 * 29) == 10
    at_s = 0.8 * 29
    for _ in range(30):
        at_s += 0.02
        wait.note_left(1, at_s)
    assert wait.retry_after_s(95, at_s) == 2


def test_a_queue_that_stands_still_is_not_promised_to_move():
    wait, now_s = moved(0.01)
    assert wait.retry_after_s(95, now_s) == 1
    assert wait.retry_after_s(95, now_s + 0.3) == 29


def test_time_in_which_nothing_waited_does_not_count():
    wait, now_s = moved(0.01)
    wait.note_first(now_s + 3600.0)
    assert wait.retry_after_s(95, now_s + 3600.0) == 1


@given(
    st.lists(st.tuples(st.integers(0, 64), st.floats(0, 100)), max_size=50), st.integers(0, 9999)
)
def test_it_is_always_from_one_to_120_whole_seconds(steps, num_waiting):
    wait, now_s = QueueWait(), 0.0
    wait.note_first(now_s)
    for count, seconds in steps:
        now_s += seconds
        wait.note_left(count, now_s)
        assert 1 <= wait.retry_after_s(num_waiting, now_s) <= 120
