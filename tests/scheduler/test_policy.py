"""Properties of a single plan: budgets hold, order holds, a step that can do something does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from izwi.cache.pages import pages_for
from izwi.scheduler.deadline import text_slack_s
from izwi.scheduler.policy import POLICIES, Budgets, Forward, Plan, View
from izwi.scheduler.step_builder import is_stuck
from tests.examples import examples
from tests.scheduler.toy import COST, DEAR_CALLS, PAGE, check_plan
from tests.scheduler.views import changed, view_of

INF = float("inf")


@st.composite
def views(draw: st.DrawFn, running: bool, first_key: int) -> list[View]:
    out = []
    for key in range(first_key, first_key + draw(st.integers(0, 8))):
        positions = draw(st.integers(1, 40))
        decodes = draw(st.booleans())
        computed = positions - 1 if decodes else draw(st.integers(0, positions - 1))
        pages = pages_for(computed, PAGE) if running else draw(st.integers(0, computed // PAGE))
        speaks = draw(st.booleans())
        ended = running and speaks and draw(st.integers(0, 4)) == 0
        out.append(
            view_of(
                key=key,
                num_positions=positions,
                num_computed=computed,
                num_pages=pages,
                num_encodes=draw(st.integers(0, 3)) if computed == 0 else 0,
                encode_only=computed == 0 and draw(st.integers(0, 3)) == 0,
                backpressured=draw(st.integers(0, 3)) == 0,
                priority=draw(st.integers(-1, 1)),
                slack_s=draw(st.sampled_from([-0.1, 0.0, 0.05, 0.5, 3.0, INF])),
                started=draw(st.booleans()),
                idle_steps=draw(st.sampled_from([0, 1, 40, 300, 2000])),
                frames=draw(st.integers(1, 12)) if ended else draw(st.integers(0, 12)),
                chunk=draw(st.integers(1, 12)) if speaks else 0,
                ended=ended,
                num_shared=draw(st.integers(0, pages)) if running else 0,
            )
        )
    return draw(st.permutations(out))


budgets = st.builds(
    Budgets,
    page_size=st.just(PAGE),
    free_pages=st.integers(0, 30),
    tokens=st.integers(1, 60),
    encodes=st.integers(1, 6),
    running=st.integers(1, 20),
    vocodes=st.integers(1, 8),
    step_s=st.sampled_from([0.0, 0.011, 0.02, INF]),
    cost=st.sampled_from([COST, DEAR_CALLS, Budgets(1, 0, 0, 0, 0, 0).cost]),
    new_requests=st.sampled_from([0.0, 0.5, 3.0]),
    since_start=st.integers(0, 9),
)
policies = st.sampled_from(sorted(POLICIES))


@examples(400)
@given(name=policies, running=views(True, 0), waiting=views(False, 100), spend=budgets)
def test_every_plan_keeps_what_all_policies_promise(
    name: str, running: list[View], waiting: list[View], spend: Budgets
) -> None:
    check_plan(POLICIES[name].plan(running, waiting, spend), running, waiting, spend)


@examples(150)
@given(name=policies, running=views(True, 0), spend=budgets)
def test_a_step_that_can_do_something_does(name: str, running: list[View], spend: Budgets) -> None:
    running = [changed(view, num_shared=0) for view in running]
    memory = spend.free_pages + sum(v.num_pages for v in running if not v.progress.ended)
    runnable = [
        view
        for view in running
        if (view.progress.num_encodes or not view.progress.encode_only)
        and not is_stuck(view)
        and not view.progress.ended
        and pages_for(view.progress.num_positions, PAGE) <= memory
    ]
    # the best of all must be among those that fit, as it is where admission checks the memory
    fits = len(runnable) == sum(not is_stuck(v) and not v.progress.ended for v in running)
    plan = POLICIES[name].plan(running, [], spend)
    if (runnable and fits) or any(view.progress.ended for view in running):
        assert plan.encode or plan.forward or plan.vocode


@examples(150)
@given(running=views(True, 0), waiting=views(False, 100), spend=budgets)
def test_fcfs_keeps_arrival_order(running: list[View], waiting: list[View], spend: Budgets) -> None:
    plan = POLICIES["fcfs"].plan(running, waiting, spend)
    line = sorted(view.key for view in waiting if not view.progress.backpressured)
    admitted = [key for key in plan.admit if key in line]
    assert admitted == line[: len(admitted)]
    if len(admitted) < len(
        line
    ):  # then the first of these has no room, and no held one may take it
        assert len(admitted) == len(plan.admit)


def served_s(view: View, running: list[View]) -> float:
    """The slack by which the deadline policy serves a sequence among others."""
    urgency = view.urgency
    if view.audio.chunk or not any(other.urgency.priority for other in running):
        return urgency.slack_s
    return text_slack_s(urgency)


@examples(150)
@given(name=policies, running=views(True, 0), spend=budgets)
def test_pages_go_from_the_least_worth_to_the_better(
    name: str, running: list[View], spend: Budgets
) -> None:
    running = [changed(view, num_shared=0) for view in running]
    worth = {
        "fcfs": lambda view: (is_stuck(view), view.key),
        "priority": lambda view: (is_stuck(view), -view.urgency.priority, view.key),
        "deadline": lambda view: (is_stuck(view), served_s(view, running), view.key),
    }[name]
    plan = POLICIES[name].plan(running, [], spend)
    rows = {row.key for row in plan.forward}
    lost = [worth(view) for view in running if view.key in plan.preempt]
    if lost:
        assert min(worth(view) for view in running if view.key in rows) < min(lost)
    idle = [
        view
        for view in running
        if view.num_pages and not view.progress.ended and view.key not in plan.preempt
        if view.key not in rows | dict(plan.encode).keys() | dict(plan.vocode).keys()
    ]
    # of those without a part in the step, the least worth gave theirs first
    assert not lost or all(worth(view) < min(lost) for view in idle)


@given(name=policies)
def test_an_idle_engine_plans_nothing(name: str) -> None:
    spend = Budgets(PAGE, free_pages=8, tokens=8, encodes=1, running=8, vocodes=8)
    assert POLICIES[name].plan([], [], spend) == Plan()


def test_fcfs_runs_decodes_before_prompts() -> None:
    prompt = view_of(key=0, num_positions=100)
    decode = view_of(key=1, num_positions=9, num_computed=8, num_pages=2)
    spend = Budgets(PAGE, free_pages=50, tokens=10, encodes=0, running=8, vocodes=8)
    plan = POLICIES["fcfs"].plan([prompt, decode], [], spend)
    assert plan.forward == (Forward(1, 8, 9), Forward(0, 0, 9))
    assert plan.work == (1, 9, 0, 0, 0)


@pytest.mark.parametrize("name", POLICIES)
def test_pages_of_prompts_in_flight_are_kept_from_new_requests(name: str) -> None:
    prompt = view_of(key=0, num_positions=40, num_computed=4, num_pages=1)
    new_request = view_of(key=1, num_positions=3)
    spend = Budgets(PAGE, free_pages=10, tokens=8, encodes=0, running=8, vocodes=8)
    plan = POLICIES[name].plan([prompt], [new_request], spend)
    assert plan.forward == (Forward(0, 4, 12),)
    assert plan.admit == ()  # eight pages are free after this step, the prompt needs them all
    assert (
        POLICIES[name].plan([prompt], [new_request], spend._replace(tokens=60, free_pages=11)).admit
    )


@pytest.mark.parametrize("name", POLICIES)
def test_a_backpressured_sequence_gives_its_pages_to_one_that_can_run(name: str) -> None:
    backpressured = view_of(
        key=0, num_positions=9, num_computed=8, num_pages=2, backpressured=True, slack_s=0.0
    )
    growing = view_of(key=1, num_positions=9, num_computed=8, num_pages=2, slack_s=1.0)
    spend = Budgets(PAGE, free_pages=0, tokens=8, encodes=0, running=2, vocodes=8)
    plan = POLICIES[name].plan([backpressured, growing], [], spend)
    assert (plan.preempt, plan.forward) == ((0,), (Forward(1, 8, 9),))
    new_request = view_of(key=1, num_positions=7, slack_s=1.0)
    assert POLICIES[name].plan([backpressured], [new_request], spend).admit == (1,)


@pytest.mark.parametrize("name", POLICIES)
def test_shared_pages_are_not_counted_twice(name: str) -> None:
    first = view_of(key=0, num_positions=9, num_computed=8, num_pages=2, num_shared=2)
    prompt = view_of(key=1, num_positions=30, num_computed=8, num_pages=3, num_shared=2)
    spend = Budgets(PAGE, free_pages=0, tokens=40, encodes=0, running=2, vocodes=8)
    plan = POLICIES[name].plan([first, prompt], [], spend)
    assert (plan.preempt, plan.forward) == ((1,), (Forward(0, 8, 9),))


def test_priority_goes_first_in_everything_and_takes_places_from_lower_ones() -> None:
    low = view_of(key=0, num_positions=9, num_computed=8, num_pages=3, frames=3, chunk=4)
    lower = changed(low, key=1, priority=-1)
    high = view_of(key=2, num_positions=5, priority=1, chunk=1)
    spend = Budgets(PAGE, free_pages=9, tokens=6, encodes=0, running=2, vocodes=1)
    plan = POLICIES["priority"].plan([lower, low], [high], spend)
    assert (plan.preempt, plan.admit) == ((1,), (2,))
    assert plan.forward == (Forward(2, 0, 5), Forward(0, 8, 9))
    assert plan.vocode == ((2, 1),)
    same = POLICIES["priority"].plan([lower, low], [changed(high, priority=-1)], spend)
    assert (same.preempt, same.admit) == ((), ())


def test_aged_sequences_rank_first_but_preempt_nothing() -> None:
    busy = view_of(key=0, num_positions=9, num_computed=8, num_pages=3, priority=1)
    high = view_of(key=1, num_positions=5, priority=1)
    old = view_of(key=2, num_positions=5, idle_steps=200)
    spend = Budgets(PAGE, free_pages=9, tokens=60, encodes=0, running=2, vocodes=1)
    plan = POLICIES["priority"].plan([busy], [high, old], spend)
    assert (plan.preempt, plan.admit) == ((), (2,))
    assert POLICIES["priority"].plan([busy], [high, old], spend._replace(running=1)).preempt == ()
    assert POLICIES["priority"].rank(old) < POLICIES["priority"].rank(high)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("num_positions", [7, 8, 9])
def test_a_new_request_starts_only_with_the_page_of_its_next_position(
    name: str, num_positions: int
) -> None:
    new = view_of(key=1, num_positions=num_positions, slack_s=0.1, chunk=1)
    needed = pages_for(num_positions + 1, PAGE)
    spend = Budgets(PAGE, free_pages=needed, tokens=60, encodes=0, running=8, vocodes=8)
    plan = POLICIES[name].plan
    assert plan([], [new], spend).admit == (1,)
    assert plan([], [new], spend._replace(free_pages=needed - 1)).admit == ()
    # pages that others hold too cost it nothing
    found = changed(new, num_computed=4, num_pages=1)
    assert plan([], [found], spend._replace(free_pages=needed - 1)).admit == (1,)
    assert plan([], [found], spend._replace(free_pages=needed - 2)).admit == ()
    # two start together only if both have theirs
    two = [new, changed(new, key=2)]
    assert plan([], two, spend._replace(free_pages=2 * needed)).admit == (1, 2)
    assert plan([], two, spend._replace(free_pages=2 * needed - 1)).admit == (1,)
