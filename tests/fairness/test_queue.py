"""Start-time fair queueing: bounds that hold for any callers and any work."""

from __future__ import annotations

from collections import Counter, deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from izwi.fairness.queue import FairClock, FairQueue, may_queue

WORK = st.integers(1, 50)
JOBS = st.lists(st.tuples(st.sampled_from("abcd"), WORK), max_size=60)


def drained(queue):
    return [queue.pop() for _ in range(len(queue))]


@given(jobs=JOBS)
def test_the_work_of_one_caller_keeps_its_order_and_nothing_is_lost(jobs):
    queue = FairQueue()
    for number, (caller, work) in enumerate(jobs):
        queue.put(caller, work, (caller, number))
    taken = drained(queue)
    assert sorted(number for _, number in taken) == list(range(len(jobs)))
    for caller in "abcd":
        own = [number for name, number in taken if name == caller]
        assert own == sorted(own)
    with pytest.raises(IndexError):
        queue.pop()


@given(heavy=st.lists(st.lists(WORK, min_size=1, max_size=40), min_size=1, max_size=4), work=WORK)
def test_a_light_caller_waits_for_one_piece_of_each_other_caller_at_most(heavy, work):
    queue = FairQueue()
    for name, pieces in enumerate(heavy):
        for piece in pieces:
            queue.put(f"heavy {name}", piece, f"heavy {name}")
    for _ in range(sum(map(len, heavy)) // 2):
        queue.pop()
    queue.put("light", work, "light")
    before = Counter(iter(queue.pop, "light"))
    assert all(count <= 1 for count in before.values())


@given(data=st.data(), most=WORK)
def test_callers_who_always_ask_get_equal_work(data, most):
    """To within two of the largest pieces, at every moment, also if others come and leave."""
    queue, given_work = FairQueue(), Counter()

    def put(caller):
        size = data.draw(st.integers(1, most))
        queue.put(caller, size, (caller, size))

    for caller in "abc":
        put(caller)
        put(caller)
    for _ in range(60):
        if data.draw(st.booleans()) and not queue.num_waiting("guest"):
            put("guest")
        caller, size = queue.pop()
        if caller != "guest":
            given_work[caller] += size
            put(caller)
        assert max(given_work.values()) - min(given_work[c] for c in "abc") <= 2 * most


@given(idle=st.integers(1, 100), work=WORK)
def test_idle_time_gives_no_credit(idle, work):
    queue = FairQueue()
    for number in range(idle + 20):
        queue.put("busy", work, ("busy", number))
    for _ in range(idle):
        queue.pop()
    for number in range(10):
        queue.put("new", work, ("new", number))
    callers = [caller for caller, _ in drained(queue)]
    assert abs(callers[:10].count("new") - 5) <= 1


@given(jobs=JOBS.filter(bool))
def test_the_order_of_pieces_is_that_in_which_the_queue_gives_them(jobs):
    queue, clock = FairQueue(), FairClock()
    for place, (caller, work) in enumerate(jobs):
        queue.put(caller, work, place)
        clock.add_work(caller)
    assert clock.order([(caller, float(work)) for caller, work in jobs]) == drained(queue)


def test_a_caller_that_leaves_and_returns_keeps_what_it_was_given():
    clock = FairClock()
    clock.add_work("a")
    clock.add_work("b")
    clock.charge("a", 10.0)
    clock.remove_work("a")
    clock.add_work("a")
    assert (clock.lead("a"), clock.lead("b")) == (10.0, 0.0)
    clock.charge("b", 30.0)
    clock.remove_work("a")
    clock.add_work("a")
    assert clock.time("a") == clock.time("b") == 30.0  # its idle time gives no credit


def test_the_lead_of_a_caller_is_bounded():
    clock = FairClock(max_lead=5.0)
    clock.add_work("stalled")
    clock.add_work("a")
    for _ in range(100):
        clock.charge("a", 2.0)
    assert clock.lead("a") <= 7.0


def test_callers_that_left_are_forgotten():
    clock = FairClock()
    clock.add_work("stays")
    for number in range(5000):
        clock.add_work(f"{number}")
        clock.charge(f"{number}", 1.0 + number)
        clock.remove_work(f"{number}")
    assert len(clock._idle) <= 1024
    assert clock.num_callers == 1


@given(
    asks=st.lists(st.sampled_from("abc"), max_size=120), most=st.integers(1, 40), late=st.booleans()
)
def test_a_full_queue_takes_less_than_twice_and_every_caller_has_a_part(asks, most, late):
    waiting, line = Counter(), deque()
    for caller in asks:
        if may_queue(waiting, caller, most):
            waiting[caller] += 1
            line.append(caller)
    assert len(line) <= 2 * most
    assert may_queue(Counter(a=most), "a", most) is False
    assert may_queue(Counter(a=most), "b", most) is (most >= 2)
    assert may_queue(Counter(a=most - 1), "a", most)
