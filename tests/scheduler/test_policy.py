"""Properties of the plan: budgets hold, order holds, the earliest always gets on."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from izwi.scheduler.playback import chunk_frames, frames_to_vocode
from izwi.scheduler.policy import Budgets, Plan, View, plan_step

PAGE = 4


@st.composite
def views(draw: st.DrawFn, running: bool, first_key: int) -> list[View]:
    out = []
    for key in range(first_key, first_key + draw(st.integers(0, 8))):
        positions = draw(st.integers(1, 40))
        computed = draw(st.integers(0, positions - 1)) if running else 0
        out.append(
            View(
                key=key,
                num_positions=positions,
                num_computed=computed,
                num_pages=-(-computed // PAGE),
                num_encodes=draw(st.integers(0, 3)) if computed == 0 else 0,
                encode_only=computed == 0 and draw(st.booleans()) and draw(st.booleans()),
                held=draw(st.booleans()) and draw(st.booleans()),
            )
        )
    return out


budgets = st.builds(
    Budgets,
    page_size=st.just(PAGE),
    free_pages=st.integers(0, 30),
    tokens=st.integers(1, 60),
    encodes=st.integers(0, 6),
    running=st.integers(1, 20),
)


def plan_of(
    running: list[View], waiting: list[View], spend: Budgets
) -> tuple[Plan, dict[int, View]]:
    return plan_step(running, waiting, spend), {view.key: view for view in (*running, *waiting)}


@given(running=views(True, 0), waiting=views(False, 100), spend=budgets)
def test_budgets_are_never_exceeded(
    running: list[View], waiting: list[View], spend: Budgets
) -> None:
    plan, by_key = plan_of(running, waiting, spend)
    assert sum(row.stop - row.start for row in plan.forward) <= spend.tokens
    assert sum(count for _, count in plan.encode) <= spend.encodes
    freed = sum(by_key[key].num_pages for key in plan.preempt)
    assert sum(row.new_pages for row in plan.forward) <= spend.free_pages + freed
    alive = len(running) - len(plan.preempt) + len(plan.admit)
    assert alive <= max(spend.running, len(running))


@given(running=views(True, 0), waiting=views(False, 100), spend=budgets)
def test_rows_start_where_they_stopped_and_have_their_pages(
    running: list[View], waiting: list[View], spend: Budgets
) -> None:
    plan, by_key = plan_of(running, waiting, spend)
    keys = [row.key for row in plan.forward]
    assert len(set(keys)) == len(keys)
    assert not set(keys) & set(plan.preempt)
    encoded = dict(plan.encode)
    for row in plan.forward:
        view = by_key[row.key]
        assert row.start == view.num_computed < row.stop <= view.num_positions
        assert (view.num_pages + row.new_pages) * PAGE >= row.stop
        assert encoded.get(row.key, 0) == view.num_encodes, "ran before its audio was encoded"
        assert not view.encode_only
        assert not (view.held and row.stop == view.num_positions), "a held sequence would emit"
        assert row.key in {v.key for v in running} | set(plan.admit)


@given(running=views(True, 0), waiting=views(False, 100), spend=budgets)
def test_nobody_waiting_is_overtaken(
    running: list[View], waiting: list[View], spend: Budgets
) -> None:
    plan, _ = plan_of(running, waiting, spend)
    assert list(plan.admit) == [view.key for view in waiting[: len(plan.admit)]]


@given(running=views(True, 0), waiting=views(False, 100), spend=budgets)
def test_only_later_arrivals_are_preempted(
    running: list[View], waiting: list[View], spend: Budgets
) -> None:
    plan, _ = plan_of(running, waiting, spend)
    if plan.preempt:
        assert min(row.key for row in plan.forward) < min(plan.preempt)


@given(running=views(True, 0), spend=budgets)
def test_the_earliest_always_gets_on_if_memory_can_hold_it(
    running: list[View], spend: Budgets
) -> None:
    running = [replace(view, held=False, num_encodes=0, encode_only=False) for view in running]
    total = spend.free_pages + sum(view.num_pages for view in running)
    if running and total * PAGE >= running[0].num_positions:
        plan, _ = plan_of(running, [], spend)
        spent = sum(row.stop - row.start for row in plan.forward)
        assert plan.forward
        assert running[0].key in {row.key for row in plan.forward} or spent == spend.tokens


def test_decodes_run_before_prompts() -> None:
    prompt = View(key=0, num_positions=100)
    decode = View(key=1, num_positions=9, num_computed=8, num_pages=2)
    spend = Budgets(page_size=PAGE, free_pages=50, tokens=10, encodes=0, running=8)
    plan = plan_step([prompt, decode], [], spend)
    assert [(row.key, row.stop - row.start) for row in plan.forward] == [(1, 1), (0, 9)]


@given(
    frames=st.integers(0, 60),
    vocoded=st.integers(0, 60),
    chunks=st.integers(0, 9),
    ended=st.booleans(),
)
def test_sound_never_outruns_frames_and_an_ended_stream_drains(
    frames: int, vocoded: int, chunks: int, ended: bool
) -> None:
    vocoded = min(vocoded, frames)
    ramp = (1, 2, 4, 8, 12)
    count = frames_to_vocode(
        num_frames=frames, num_vocoded=vocoded, num_chunks=chunks, ended=ended, ramp=ramp
    )
    assert 0 <= count <= min(frames - vocoded, chunk_frames(chunks, ramp))
    if ended and frames > vocoded:
        assert count > 0
