"""Priority under the deadline policy: it moves text, which has no playback clock, and only that."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from izwi.scheduler.deadline import BACKGROUND_STEPS, PRIORITY_S, rank_deadline
from izwi.scheduler.policy import POLICIES, Budgets, View
from tests.examples import examples
from tests.scheduler.test_policy import budgets, views
from tests.scheduler.toy import COST, PAGE, Timeline, Toy
from tests.scheduler.views import changed, view_of

TEXT_S = 0.5  # slack of text that is read
DEADLINE = POLICIES["deadline"]
ROOMY = Budgets(PAGE, 1000, tokens=1000, encodes=4, running=4, vocodes=8, step_s=0.02, cost=COST)


def text(key: int, priority: int = 0, slack_s: float = TEXT_S, **more: object) -> View:
    fields = {"num_positions": 9, "num_computed": 8, "num_pages": 3, "started": True} | more
    return view_of(key=key, priority=priority, slack_s=slack_s, **fields)


@examples(100)
@given(running=views(True, 0), waiting=views(False, 100), spend=budgets)
def test_the_playback_clock_rules_what_speaks(
    running: list[View], waiting: list[View], spend: Budgets
) -> None:
    running = [view for view in running if view.audio.chunk]
    waiting = [view for view in waiting if view.audio.chunk]
    plain = [[changed(view, priority=0) for view in group] for group in (running, waiting)]
    assert DEADLINE.plan(running, waiting, spend) == DEADLINE.plan(*plain, spend)


rows = st.lists(st.tuples(st.integers(-1, 2), st.booleans()), min_size=2, max_size=12)
tight = st.builds(
    ROOMY._replace,
    tokens=st.integers(1, 12),
    step_s=st.sampled_from([0.0, 0.011, 0.012, 0.02]),
    running=st.just(12),
)


@examples(100)
@given(texts=rows, spend=tight)
def test_text_of_higher_priority_has_its_row_first(
    texts: list[tuple[int, bool]], spend: Budgets
) -> None:
    running = [text(key, priority) for key, (priority, _) in enumerate(texts)]
    served = {row.key for row in DEADLINE.plan(running, [], spend).forward}
    assert served
    for high in running:
        for low in running:
            if high.urgency.priority > low.urgency.priority and low.key in served:
                assert high.key in served


@examples(100)
@given(texts=rows, spend=tight, chosen=st.integers(0, 11))
def test_more_priority_never_costs_a_row(
    texts: list[tuple[int, bool]], spend: Budgets, chosen: int
) -> None:
    running = [text(key, priority) for key, (priority, _) in enumerate(texts)]
    chosen %= len(running)
    before = {row.key for row in DEADLINE.plan(running, [], spend).forward}
    running[chosen] = text(chosen, texts[chosen][0] + 1)
    after = {row.key for row in DEADLINE.plan(running, [], spend).forward}
    assert chosen not in before or chosen in after


@pytest.mark.parametrize(("waited_s", "first"), [(0.9 * PRIORITY_S, 2), (1.1 * PRIORITY_S, 1)])
def test_a_level_of_priority_is_a_head_start(waited_s: float, first: int) -> None:
    old = text(1, 0, 0.1 - waited_s, num_computed=0, num_pages=0, started=False)
    new = text(2, 1, 0.1, num_computed=0, num_pages=0, started=False)
    assert min((old, new), key=rank_deadline).key == first
    full = ROOMY._replace(running=1)
    assert DEADLINE.plan([], [old, new], full).admit == (first,)


def test_new_text_preempts_lower_priority_only() -> None:
    new = text(9, 1, 0.1, num_computed=0, num_pages=0, started=False)
    running = [text(0, 1), text(1, 0), text(2, 0), text(3, 1)]
    plan = DEADLINE.plan(running, [new], ROOMY)
    assert (plan.preempt, plan.admit) == ((2,), (9,)), "the latest"
    equal = DEADLINE.plan([text(key, 1) for key in range(4)], [new], ROOMY)
    assert (equal.preempt, equal.admit) == ((), ())
    audio = [changed(text(key), chunk=4) for key in range(4)]
    assert DEADLINE.plan(audio, [new], ROOMY).preempt == ()
    plain = text(9, 0, 0.1, num_computed=0, num_pages=0, started=False)
    assert DEADLINE.plan([text(key) for key in range(4)], [plain], ROOMY).preempt == ()


def test_aged_background_text_precedes_every_priority() -> None:
    low = text(0, slack_s=0.5, idle_steps=BACKGROUND_STEPS)
    assert rank_deadline(low) < rank_deadline(text(1, 100, slack_s=-5.0))


@dataclass(slots=True, eq=False)
class Written(Timeline):
    """Text: once it has begun it is read as fast as it comes."""

    speaks: bool = False

    def view(self, step: int, now_s: float) -> View:
        view = Timeline.view(self, step, now_s)
        return changed(view, slack_s=TEXT_S) if self.log else view


@pytest.mark.parametrize("step_s", [0.0, 0.02])
def test_text_of_low_priority_ends_with_any_number_of_live_requests(step_s: float) -> None:
    """Four slots, always eight live requests: each that ends is followed by another."""
    toy = Toy(DEADLINE, num_pages=400, slots=4, step_s=step_s)
    for _ in range(8):
        toy.submit(Written(prompt=9, entries=12, priority=1))
    toy.advance()
    low = [Written(prompt=9, entries=12) for _ in range(2)]
    for written in low:
        toy.submit(written)
    for _ in range(30 * BACKGROUND_STEPS):
        ended = len(toy.done)
        toy.advance()
        for _ in range(ended, len(toy.done)):
            toy.submit(Written(prompt=9, entries=12, priority=1))
        if all(written in toy.done for written in low):
            break
    assert all(written in toy.done for written in low)
    live = sum(written.priority for written in toy.done)
    assert live > 30, "they had to wait"
