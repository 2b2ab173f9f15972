"""New requests are delayed to batch where passes with prompts are expensive."""

from __future__ import annotations

import random
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.simulation.arrivals import Arrival
from benchmarks.simulation.batching_delay import COMPUTE, MACHINE, STREAMS, closed_loop, stream
from benchmarks.simulation.cluster import Cluster
from benchmarks.simulation.shadow import Shadow
from izwi.config import EngineConfig
from izwi.scheduler import batching_delay
from izwi.scheduler.batching_delay import (
    LEAST_BATCH,
    MOST_BACKGROUND_STEPS,
    MOST_STEPS,
    SPARE,
    should_delay_requests,
)
from izwi.scheduler.cost import StepCost
from izwi.scheduler.policy import POLICIES, Budgets, View
from tests.examples import examples
from tests.scheduler.toy import DEAR_CALLS, Timeline, Toy
from tests.scheduler.views import changed, view_of

SPEND = Budgets(16, 1000, 2048, 16, 64, 64, 0.012, COMPUTE, new_requests=1.2, since_start=0)
NEW = view_of(99, 20, slack_s=0.1, chunk=1)
LIMIT_S = 0.018
plan = POLICIES["deadline"].plan


def rows(count: int) -> list[View]:
    return [view_of(key, 41, 40, 3, slack_s=2.0, started=True, chunk=8) for key in range(count)]


def test_new_requests_are_delayed_with_many_rows_only() -> None:
    many, few = rows(60), rows(4)
    assert plan(many, [NEW], SPEND).admit == ()
    assert len(plan(many, [NEW], SPEND).forward) == 60
    # four rows last as long as sixty, so new requests are as much rarer
    assert plan(few, [NEW], SPEND._replace(new_requests=0.08)).admit == (99,)
    assert plan([], [NEW], SPEND).admit == (99,), "nothing else runs"


@pytest.mark.parametrize(
    "other",
    [
        {"since_start": MOST_STEPS - 1},
        {"new_requests": 0.3},
        {"cost": replace(COMPUTE, prefill_call_s=0.0)},
        {"cost": StepCost()},
        {"tokens": 80},
    ],
)
def test_request_starts_at_once_if_a_delay_gains_nothing(other: dict[str, object]) -> None:
    assert not should_delay_requests([NEW], 60, SPEND._replace(**other), LIMIT_S)
    assert should_delay_requests([NEW], 60, SPEND, LIMIT_S)


def test_pieces_far_ahead_do_not_count_as_new_requests() -> None:
    far = changed(NEW, key=98, slack_s=30.0, started=True)
    assert should_delay_requests([NEW, far], 60, SPEND._replace(far_new_requests=0.2), LIMIT_S)
    mostly_far = SPEND._replace(far_new_requests=1.0)
    assert not should_delay_requests([NEW, far], 60, mostly_far, LIMIT_S)
    assert should_delay_requests([far], 60, mostly_far, LIMIT_S), "among themselves they are"


def test_it_joins_a_pass_that_is_paid_for() -> None:
    prompt = view_of(70, 300, 64, 4, slack_s=0.08, chunk=1)
    assert 99 in plan([*rows(50), prompt], [NEW], SPEND).admit


def test_a_request_is_not_delayed_past_its_slack() -> None:
    assert should_delay_requests([NEW], 60, SPEND, LIMIT_S)
    for slack_s in (0.02, 0.0, -1.0):
        late = changed(NEW, key=98, slack_s=slack_s)
        assert set(plan(rows(60), [NEW, late], SPEND).admit) == {98, 99}


def test_background_work_is_delayed_longer_if_it_fits_into_a_step() -> None:
    clip = view_of(99, 120, num_encodes=1)
    spend = SPEND._replace(since_start=MOST_STEPS)
    assert should_delay_requests([clip], 30, spend, LIMIT_S)
    assert not should_delay_requests([clip], 30, spend._replace(since_start=8), LIMIT_S)
    assert not should_delay_requests([clip], 30, spend, 0.008), "one fills a step"
    assert not should_delay_requests([changed(clip, num_encodes=16)], 30, spend, 1.0)


prices = st.floats(0.0, 0.05)


@examples(300)
@given(
    slacks=st.lists(st.sampled_from([-1.0, 0.01, 0.1, 1.0, inf]), min_size=1, max_size=5),
    num_rows=st.integers(0, 200),
    cost=st.builds(StepCost, *[prices] * len(StepCost.__slots__)),
    rate=st.floats(0.0, 20.0),
    since=st.integers(0, 20),
)
def test_waiting_is_bounded_in_steps_and_in_time_and_must_pay(
    slacks: list[float], num_rows: int, cost: StepCost, rate: float, since: int
) -> None:
    new_requests = [view_of(key, 20, slack_s=slack) for key, slack in enumerate(slacks)]
    spend = SPEND._replace(cost=cost, new_requests=rate, since_start=since)
    if not should_delay_requests(new_requests, num_rows, spend, LIMIT_S):
        return
    least = min(slacks)
    most = MOST_BACKGROUND_STEPS if least == inf else MOST_STEPS
    assert since + 1 < most
    assert rate * most >= LEAST_BATCH
    # a wait from now to the end of the interval costs less than half of what the passes cost
    step_s = cost.base_s + num_rows * cost.decode_row_s
    waited_s = rate * (since + 1) ** 2 / 2 * step_s / num_rows
    assert waited_s <= cost.prefill_call_s
    assert least > SPARE * (2 * step_s + cost.prefill_call_s)


@examples(20)
@given(
    slots=st.integers(2, 40),
    entries=st.integers(3, 30),
    streams=st.booleans(),
    encodes=st.integers(0, 1),
)
def test_with_free_pages_waits_are_bounded(
    slots: int, entries: int, streams: bool, encodes: int
) -> None:
    toy = Toy(POLICIES["deadline"], 10_000, slots, tokens=4096, vocodes=64, cost=DEAR_CALLS)

    def timeline(number: int) -> Timeline:
        return Timeline(5 + number % 7, entries + number % 5, streams, encodes=encodes)

    crowd = [timeline(number) for number in range(slots)]
    for one in crowd:
        toy.submit(one)
    toy.churn(200, timeline)
    assert toy.done
    # two pieces of audio a step are encoded, so that others may stand before it in line
    behind = encodes * slots // 2
    most = MOST_STEPS if streams else MOST_BACKGROUND_STEPS
    assert max(one.longest_idle_waiting for one in toy.done) <= most + behind


def test_batching_gains_throughput_and_the_first_audio_stays_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gathered = closed_loop(stream, STREAMS, 64, 400)
    monkeypatch.setattr(batching_delay, "MOST_STEPS", 1)
    at_once = closed_loop(stream, STREAMS, 64, 400)
    assert gathered["audio_s_per_s"] > 1.15 * at_once["audio_s_per_s"]
    assert gathered["ttfa_p50_ms"] < 60.0
    assert gathered["underrun_share"] == 0.0


@pytest.mark.parametrize("shadow", ["deadline", "fcfs"])
def test_shadow_policy_plans_the_same_new_requests(shadow: str) -> None:
    rng = random.Random(0)
    drawn = [stream(number, rng) for number in range(250)]
    scripts = {request.request_id: script for request, script in drawn}
    cluster = Cluster(1, STREAMS, MACHINE, EngineConfig(), scripts)
    scheduler = cluster.devices[0].worker.scheduler
    second = Shadow(POLICIES[shadow])
    scheduler.policy = second.beside(scheduler.policy)
    cluster.run([Arrival(number / 100, request) for number, (request, _) in enumerate(drawn)])
    assert second.steps == scheduler.counts.steps
    assert bool(second.difference.admit) == (shadow == "fcfs")
    assert bool(second.difference) == (shadow == "fcfs")
