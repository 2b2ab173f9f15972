"""Each policy chooses as it says, from plain values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from izwi.router.policy import ROUTER_POLICIES, Arrival, Candidate

CANDIDATES = st.lists(
    st.tuples(st.integers(0, 40), st.floats(0, 1e6), st.integers(0, 5000), st.booleans()),
    min_size=1,
    max_size=6,
).map(lambda rows: [Candidate(replica, *row) for replica, row in enumerate(rows)])
ARRIVALS = st.builds(Arrival, st.integers(0, 10**6), st.floats(0, 1, exclude_max=True))


FIRST = Arrival()


def chosen(policy: str, candidates: list[Candidate], arrival: Arrival = FIRST) -> int:
    return ROUTER_POLICIES[policy](candidates, arrival).replica


def test_least_load_takes_the_least_work_then_the_fewest_requests() -> None:
    busy, idle = Candidate(0, 1, work=900.0), Candidate(1, 5, work=40.0)
    assert chosen("least_load", [busy, idle]) == 1
    few = Candidate(2, 2, work=40.0)
    assert chosen("least_load", [busy, idle, few]) == 2


def test_prefix_takes_the_longest_cached_prefix_though_it_has_more_work() -> None:
    holder, idle = Candidate(0, 2, work=5000.0, num_cached=128), Candidate(1, 0)
    assert chosen("prefix", [holder, idle]) == 0
    longer = Candidate(2, 3, work=9000.0, num_cached=192)
    assert chosen("prefix", [holder, idle, longer]) == 2


def test_a_short_prefix_is_not_worth_a_queue() -> None:
    idle = Candidate(1, 0)
    assert chosen("prefix", [Candidate(0, 0, work=1.0, num_cached=32), idle]) == 0
    assert chosen("prefix", [Candidate(0, 1, work=1.0, num_cached=32), idle]) == 1
    assert chosen("prefix", [Candidate(0, 3, work=1.0, num_cached=191), idle]) == 1
    assert chosen("prefix", [Candidate(0, 3, work=1.0, num_cached=192), idle]) == 0


def test_prefix_takes_the_least_work_where_prefixes_are_equal() -> None:
    candidates = [Candidate(0, 1, 50.0, 64), Candidate(1, 1, 20.0, 64), Candidate(2, 0, 0.0)]
    assert chosen("prefix", candidates) == 1
    assert chosen("prefix", [Candidate(0, 1, 50.0), Candidate(1, 1, 20.0)]) == 1


def test_prefix_passes_over_an_engine_that_is_far_ahead_in_requests() -> None:
    """One popular prompt does not fill one engine while another is idle."""
    idle = Candidate(1, 3)
    assert chosen("prefix", [Candidate(0, 14, 1.0, num_cached=4096), idle]) == 0
    assert chosen("prefix", [Candidate(0, 15, 1.0, num_cached=4096), idle]) == 1


def test_round_robin_takes_one_after_the_other() -> None:
    candidates = [Candidate(0), Candidate(2), Candidate(5)]
    taken = [chosen("round_robin", candidates, Arrival(number)) for number in range(5)]
    assert taken == [0, 2, 5, 0, 2]


@pytest.mark.parametrize(("draw", "replica"), [(0.0, 0), (0.49, 0), (0.5, 3), (0.999, 3)])
def test_random_takes_each_with_the_same_probability(draw: float, replica: int) -> None:
    assert chosen("random", [Candidate(0), Candidate(3)], Arrival(0, draw)) == replica


def test_fcfs_fills_the_first_engines_first() -> None:
    full, open_ = Candidate(0, 64, 9.0, has_room=False), Candidate(1, 60, 8.0)
    assert chosen("fcfs", [full, open_, Candidate(2)]) == 1
    fuller = Candidate(1, 64, 8.0, has_room=False)
    assert chosen("fcfs", [full, fuller]) == 1  # as least load


@pytest.mark.parametrize("policy", ROUTER_POLICIES)
@given(candidates=CANDIDATES, arrival=ARRIVALS)
def test_a_policy_takes_one_of_the_candidates(
    policy: str, candidates: list[Candidate], arrival: Arrival
) -> None:
    taken = ROUTER_POLICIES[policy](candidates, arrival)
    assert taken in candidates
    assert ROUTER_POLICIES[policy](candidates, arrival) == taken
