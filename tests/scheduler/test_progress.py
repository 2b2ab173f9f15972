"""Any mix of requests ends: no standstill, no endless preemption, no starvation."""

from __future__ import annotations

from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from izwi.scheduler import deadline, ordered
from izwi.scheduler.cost import StepCost
from izwi.scheduler.policy import POLICIES
from tests.examples import examples
from tests.scheduler.toy import COST, DEAR_CALLS, Timeline, Toy

timelines = st.builds(
    Timeline,
    prompt=st.integers(1, 40),
    entries=st.integers(1, 30),
    streams=st.booleans(),
    speaks=st.booleans(),
    priority=st.integers(-1, 1),
    encodes=st.integers(0, 3),
    arrives=st.integers(0, 60),
    backpressured=st.tuples(st.integers(0, 80), st.integers(0, 80)),
)


@pytest.mark.parametrize("name", POLICIES)
@examples(120)
@given(
    crowd=st.lists(timelines, min_size=1, max_size=12),
    spare_pages=st.integers(0, 12),
    slots=st.integers(1, 8),
    tokens=st.integers(1, 40),
    vocodes=st.integers(1, 4),
    step_s=st.sampled_from([0.0, 0.011, 0.02, float("inf")]),
    cost=st.sampled_from([COST, DEAR_CALLS]),
    overlaps=st.booleans(),
)
def test_all_end_with_memory_for_little_more_than_one(
    name: str,
    crowd: list[Timeline],
    spare_pages: int,
    slots: int,
    tokens: int,
    vocodes: int,
    step_s: float,
    cost: StepCost,
    overlaps: bool,
) -> None:
    pages = max(timeline.whole_pages for timeline in crowd) + spare_pages
    toy = Toy(POLICIES[name], pages, slots, tokens, vocodes, step_s, cost, overlaps)
    work = sum(timeline.prompt + 2 * timeline.entries + timeline.encodes for timeline in crowd)
    # one at a time, one position a step, each begun anew a few times: far more than it takes
    toy.run(crowd, limit=200 + 20 * work)
    assert len(toy.done) == len(crowd)


@pytest.mark.parametrize("name", POLICIES)
@examples(60)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 60)), min_size=2, max_size=6),
    streams=st.booleans(),
    overlaps=st.booleans(),
)
def test_each_step_makes_progress_and_preemption_is_rare(
    name: str, sizes: list[tuple[int, int]], streams: bool, overlaps: bool
) -> None:
    crowd = [Timeline(prompt, entries, streams, priority=entries % 3) for prompt, entries in sizes]
    toy = Toy(POLICIES[name], max(timeline.whole_pages for timeline in crowd), overlaps=overlaps)
    toy.run(crowd, limit=20_000)
    assert all(plan.forward or plan.vocode for plan in toy.plans), "a step did nothing"
    # a preempted sequence comes back when there is room for all it is, which takes others' end
    assert sum(timeline.num_preempted for timeline in crowd) <= 4 * len(crowd) ** 2


@pytest.mark.parametrize("name", POLICIES)
def test_two_that_do_not_fit_together_do_not_take_turns(name: str) -> None:
    crowd = [Timeline(8, 60), Timeline(8, 60), Timeline(8, 60, streams=False, priority=1)]
    toy = Toy(POLICIES[name], max(timeline.whole_pages for timeline in crowd) + 3)
    toy.run(crowd, limit=1000)
    assert sum(timeline.num_preempted for timeline in crowd) <= 4


@examples(12)
@given(
    slots=st.integers(2, 5),
    num_background=st.integers(1, 3),
    entries=st.integers(5, 25),
    step_s=st.sampled_from([0.005, 0.015, float("inf")]),
    cost=st.sampled_from([COST, DEAR_CALLS]),
)
def test_deadline_background_ends_in_an_endless_rush_of_streams(
    slots: int, num_background: int, entries: int, step_s: float, cost: StepCost
) -> None:
    patience, interval = 60, 8
    rows = 2 + 12 + 5  # of its prompt in chunks, its decodes, and its last audio
    longest_stream = 3 * entries + 20  # in steps, generously
    one_background = patience + longest_stream + rows * (interval + num_background)
    with (
        mock.patch.object(deadline, "PATIENCE_STEPS", patience),
        mock.patch.object(deadline, "BACKGROUND_STEPS", interval),
    ):
        toy = Toy(POLICIES["deadline"], 1000, slots, step_s=step_s, cost=cost)
        background = [Timeline(70, 12, streams=False) for _ in range(num_background)]
        for _ in range(2 * slots):
            toy.submit(Timeline(10, entries))
        for timeline in background:
            toy.submit(timeline)
        toy.churn(
            num_background * one_background, lambda number: Timeline(10, entries + number % 3)
        )
    for place, timeline in enumerate(background):
        assert timeline.done
        assert timeline.longest_idle_running <= interval + num_background
        assert timeline.longest_idle_waiting <= (place + 1) * one_background


@examples(25)
@given(slots=st.integers(1, 4), low=st.integers(1, 4), entries=st.integers(3, 20))
def test_priority_bounds_the_wait_of_the_lowest(slots: int, low: int, entries: int) -> None:
    aged = 40
    with mock.patch.object(ordered, "AGED_STEPS", aged):
        toy = Toy(POLICIES["priority"], 1000, slots)
        for _ in range(2 * slots):
            toy.submit(Timeline(10, entries, priority=1))
        lows = [Timeline(10, 5, priority=0) for _ in range(low)]
        for timeline in lows:
            toy.submit(timeline)
        toy.churn(500, lambda _: Timeline(10, entries, priority=1))
    for timeline in lows:
        assert max(timeline.longest_idle_waiting, timeline.longest_idle_running) <= aged + low * (
            2 * entries + 10
        )
        assert timeline.log > 0


@examples(25)
@given(slots=st.integers(1, 4), entries=st.integers(3, 20), behind=st.integers(1, 6))
def test_fcfs_waits_only_for_earlier_arrivals(slots: int, entries: int, behind: int) -> None:
    toy = Toy(POLICIES["fcfs"], 1000, slots)
    for _ in range(slots + behind):
        toy.submit(Timeline(10, entries))
    last = toy.alive[-1]
    toy.churn(300, lambda _: Timeline(10, entries))
    assert last.longest_idle_waiting <= (behind // slots + 1) * (2 * entries + 10)


def test_without_load_background_runs_in_every_step() -> None:
    toy = Toy(POLICIES["deadline"], 1000, step_s=0.1)
    crowd = [Timeline(10, 20, streams=False), Timeline(10, 20)]
    toy.run(crowd, limit=60)
    assert all(timeline.longest_idle_running == 0 for timeline in crowd)
    assert COST.seconds(toy.plans[5].work) < 0.1
