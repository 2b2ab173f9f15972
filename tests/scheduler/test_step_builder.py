"""A step spends exactly its budgets: pages, positions, slots and seconds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from izwi.scheduler.cost import StepCost
from izwi.scheduler.ordered import AGED_STEPS, rank_priority
from izwi.scheduler.plan import Budgets, Forward, View
from izwi.scheduler.policy import POLICIES
from izwi.scheduler.step_builder import StepBuilder, is_decode, is_due, is_stuck
from tests.scheduler.views import changed, view_of

PAGE = 16
U = 1 / 1024  # a power of two, so that sums of prices are exact
COST = StepCost(
    base_s=4 * U,
    decode_row_s=U,
    prefill_token_s=U / 16,
    encode_s=8 * U,
    vocode_call_s=2 * U,
    vocode_frame_s=U / 4,
    prefill_call_s=3 * U,
    encode_call_s=5 * U,
)
SPEND = Budgets(PAGE, 100, 1000, 10, 100, 10, cost=COST)


def builder(*running: View, **budget: object) -> StepBuilder:
    return StepBuilder(running, SPEND._replace(**budget), worth=lambda view: (view.key,))  # type: ignore[arg-type]


def decode(key: int, positions: int = 33, pages: int = 3, **rest: object) -> View:
    return view_of(key, positions, positions - 1, pages, **rest)  # type: ignore[arg-type]


def plan(made: StepBuilder):
    return made.build_plan(vocode_order=lambda view: (view.key,))


# -- what a view is ------------------------------------------------------------------------------
def test_a_decode_is_one_position_that_may_emit() -> None:
    assert is_decode(decode(1))
    assert not is_decode(view_of(1, 33, 31))
    for other in (
        {"backpressured": True},
        {"num_encodes": 1},
        {"ended": True},
        {"encode_only": True},
    ):
        assert not is_decode(decode(1, **other))


def test_audio_is_due_with_the_frames_of_a_chunk_or_the_rest_at_the_end() -> None:
    assert is_due(decode(1, frames=4, chunk=4))
    assert not is_due(decode(1, frames=3, chunk=4))
    assert not is_due(decode(1, frames=3, chunk=0))
    assert is_due(decode(1, frames=1, chunk=4, ended=True))
    assert not is_due(decode(1, frames=0, chunk=4, ended=True))


def test_a_sequence_that_may_not_emit_is_stuck_before_its_last_position() -> None:
    assert is_stuck(view_of(1, 33, 32, backpressured=True))
    assert not is_stuck(view_of(1, 33, 31, backpressured=True))
    assert not is_stuck(view_of(1, 33, 32))
    assert not is_stuck(view_of(1, 33, 32, backpressured=True, num_encodes=1))


# -- pages ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(("positions", "pages"), [(15, 1), (16, 2), (31, 2), (32, 3)])
def test_a_start_needs_the_page_of_its_next_position_too(positions: int, pages: int) -> None:
    assert not builder(free_pages=pages - 1).admit(view_of(9, positions))
    assert builder(free_pages=pages).admit(view_of(9, positions))
    assert builder(free_pages=pages - 1).admit(view_of(9, positions, num_pages=1))


def test_admission_leaves_pages_that_running_prompts_need() -> None:
    prompt = view_of(1, 47, 16, 1)  # two pages more, for 48 positions
    for free, starts in ((2, False), (3, True)):
        made = builder(prompt, free_pages=free)
        made.set_aside(prompt)
        assert made.admit(view_of(9, 15)) is starts
        assert not made.admit(view_of(10, 15))
    begun = builder(free_pages=3, tokens=64)
    assert begun.admit(view_of(8, 40, num_encodes=20))  # its audio first: its pages come later
    assert not begun.admit(view_of(9, 10))


def test_a_part_of_a_prompt_uses_what_was_kept_for_it() -> None:
    prompt = view_of(1, 100)  # 7 pages, for 101 positions
    for free, starts in ((7, False), (8, True)):
        made = builder(prompt, free_pages=free)
        made.set_aside(prompt)
        assert made.take_share(
            prompt, limit_s=11 * U
        )  # 4 + 3 for the pass, so 64 positions: 4 pages
        assert plan(made).forward == (Forward(1, 0, 64),)
        assert made.admit(view_of(9, 15)) is starts


@pytest.mark.parametrize(
    "view",
    [
        view_of(1, 17, 16, 1),
        view_of(1, 47, 0, 0, num_encodes=1, encode_only=True),
        view_of(1, 47, 16, 1, ended=True),
    ],
)
def test_nothing_is_kept_for_what_computes_no_prompt(view: View) -> None:
    made = builder(view, free_pages=1)
    made.set_aside(view)
    assert made.admit(view_of(9, 15))


def test_audio_to_encode_is_a_prompt_to_come() -> None:
    view = view_of(1, 17, 16, 1, num_encodes=1)
    made = builder(view, free_pages=1)
    made.set_aside(view)
    assert not made.admit(view_of(9, 15))


def test_a_prompt_for_which_nothing_was_kept_takes_only_its_own_pages() -> None:
    prompt = view_of(1, 32)
    made = builder(prompt, free_pages=3)
    assert made.take_share(prompt)
    assert not made.admit(view_of(9, 20)), "one page is left"
    assert made.admit(view_of(9, 15))


def test_a_row_takes_a_page_only_at_a_border() -> None:
    made = builder(free_pages=1)
    assert made.take_row(decode(1, 32, 2))
    assert made.take_row(decode(2, 33, 2))
    assert not made.take_row(decode(3, 33, 2))
    assert made.take_row(decode(4, 32, 2))
    assert plan(made).forward == (Forward(1, 31, 32), Forward(2, 32, 33), Forward(4, 31, 32))


def test_room_is_made_of_what_is_worth_less_and_of_no_more_of_it_than_needed() -> None:
    needy = decode(2, 33, 2)
    others = [decode(1), decode(3), decode(4, num_shared=3), decode(5)]
    made = builder(needy, *others, free_pages=0)
    assert made.take_share(needy)
    assert plan(made).preempt == (5,)
    # 5 has its part in the step already, and 4 frees nothing
    made = builder(needy, *others, free_pages=0)
    assert made.take_share(others[3])
    assert made.take_share(needy)
    assert plan(made).preempt == (4, 3)
    assert not made.take_share(others[1]), "it was preempted"
    made = builder(needy, decode(1), free_pages=0)
    assert not made.take_share(needy), "1 is worth more"
    assert plan(made).preempt == ()


def test_a_preempted_sequence_gives_all_pages_but_those_that_others_hold() -> None:
    rows = [decode(key, 33, 2) for key in (1, 2, 3)]
    made = builder(*rows, decode(9, pages=3, num_shared=1), free_pages=0)
    assert made.take_share(rows[0])
    assert made.take_share(rows[1])
    assert made.take_share(rows[2]) is False
    assert plan(made).preempt == (9,)


def test_a_start_takes_nothing_that_was_taken_from_its_betters() -> None:
    needy, victim = decode(2, 33, 2), decode(5)
    made = builder(needy, victim, free_pages=0)
    assert made.take_share(needy)
    assert plan(made).preempt == (5,)
    assert not made.admit(view_of(6, 10))
    assert made.admit(view_of(4, 10))


def test_victims_of_a_start_are_as_few_as_do_and_none_if_they_do_not() -> None:
    running = [decode(key) for key in (1, 2, 3)]
    made = builder(*running, free_pages=0)
    assert made.admit(view_of(0, 60), victims=reversed(running))  # 4 pages
    assert plan(made).preempt == (3, 2)
    made = builder(*running, free_pages=0)
    assert not made.admit(view_of(0, 160), victims=running)
    assert plan(made).preempt == ()
    shared = decode(3, num_shared=3)
    made = builder(*running[:2], shared, free_pages=0)
    assert made.admit(view_of(0, 10), victims=[shared, running[1]])
    assert plan(made).preempt == (2,)


def test_places_are_as_many_as_may_run() -> None:
    made = builder(decode(1), running=2)
    assert made.admit(view_of(8, 10))
    assert not made.admit(view_of(9, 10))
    made = builder(decode(1), running=3)
    assert [made.admit(view_of(key, 10)) for key in (7, 8, 9)] == [True, True, False]
    made = builder(decode(1), running=1)
    assert not made.admit(view_of(8, 10))
    assert made.admit(view_of(0, 10), victims=[decode(1, num_shared=3)])
    assert plan(made).preempt == (1,)
    assert made.num_admitted == 1


def test_a_limit_beyond_all_positions_admits_the_whole_prompt() -> None:
    made = builder(cost=replace(COST, prefill_token_s=1e-9))
    assert made.admit(view_of(9, 40), limit_s=1e308)


# -- positions -----------------------------------------------------------------------------------
def test_positions_are_as_many_as_the_pass_takes() -> None:
    made = builder(tokens=2)
    assert [made.take_share(decode(key)) for key in (1, 2, 3)] == [True, True, False]
    assert plan(made).work.decode_rows == 2


def test_a_prompt_takes_what_is_left_of_the_pass() -> None:
    made = builder(tokens=64)
    assert made.admit(view_of(9, 100))
    assert plan(made).forward == (Forward(9, 0, 64),)
    made = builder(tokens=10)
    assert made.admit(view_of(9, 10))
    assert not made.admit(view_of(10, 1))
    assert plan(made).forward == (Forward(9, 0, 10),)


def test_a_prompt_that_may_not_emit_runs_but_for_its_last_position() -> None:
    made = builder()
    assert made.admit(view_of(9, 100, 10, backpressured=True))
    assert plan(made).forward == (Forward(9, 10, 99),)
    assert not builder().admit(view_of(9, 100, 99, backpressured=True))


def test_a_prompt_goes_as_far_as_its_pages() -> None:
    prompt = view_of(1, 200, 0, 0)
    made = builder(prompt, free_pages=5)
    assert made.take_share(prompt)
    assert plan(made).forward == (Forward(1, 0, 80),)
    assert not made.take_share(decode(2, 33, 2)), "no page is left"
    assert not builder(prompt, free_pages=0).take_share(prompt)


# -- seconds -------------------------------------------------------------------------------------
def test_a_row_costs_a_pass_once_and_a_limit_may_be_met() -> None:
    made = builder()
    assert not made.take_share(decode(1), limit_s=4.5 * U)
    assert made.is_empty
    assert made.take_share(decode(1), limit_s=5 * U)
    assert made.seconds == 5 * U
    assert not made.is_empty
    assert not made.take_share(decode(2), limit_s=5.5 * U)
    assert made.take_share(decode(2), limit_s=5.5 * U, least_tokens=1), "whatever the limit"
    assert made.seconds == 6 * U


def test_prompts_cost_a_call_once_and_their_positions() -> None:
    made = builder()
    assert made.admit(view_of(1, 32))
    assert made.seconds == (4 + 3 + 2) * U
    assert made.admit(view_of(2, 16))
    assert made.seconds == (4 + 3 + 3) * U
    assert made.admit(view_of(3, 17, 16, 1))  # one position costs what a decode does
    assert made.seconds == (4 + 3 + 3 + 1) * U
    assert plan(made).work.decode_rows == 1


def test_a_prompt_gets_the_positions_that_the_time_allows() -> None:
    # a pass and a call are 7 units, so that 5 are left for 80 positions
    made = builder()
    assert made.admit(view_of(1, 200), limit_s=12 * U)
    assert plan(made).forward == (Forward(1, 0, 80),)
    assert made.seconds == 12 * U
    assert not builder().admit(view_of(1, 200), limit_s=10 * U), "48 are too few for a row"
    for limit_s in (10 * U, U):
        made = builder()
        assert made.admit(view_of(1, 200), limit_s=limit_s, least_tokens=64)
        assert plan(made).forward == (Forward(1, 0, 64),)


def test_audio_is_encoded_as_far_as_pieces_and_time_go() -> None:
    listens = view_of(1, 40, num_encodes=4)
    made = builder(encodes=3)
    assert made.admit(listens)
    assert plan(made).encode == ((1, 3),)
    assert made.seconds == (5 + 3 * 8) * U
    assert not made.admit(view_of(2, 10, num_encodes=1))
    made = builder()
    assert made.admit(listens, limit_s=(5 + 2 * 8) * U)
    assert plan(made).encode == ((1, 2),)
    assert made.admit(view_of(2, 40, num_encodes=1), limit_s=(5 + 3 * 8) * U), "one call for both"
    assert made.seconds == (5 + 3 * 8) * U
    assert plan(made).forward == ()
    assert not builder().admit(listens, limit_s=12 * U)
    made = builder()
    assert made.admit(listens, limit_s=U, least_tokens=1)
    assert plan(made).encode == ((1, 1),)


def test_a_prompt_without_a_page_has_its_audio_encoded() -> None:
    view = view_of(1, 40, num_encodes=1)
    made = builder(view, free_pages=0)
    assert made.take_share(view)
    assert plan(made).encode == ((1, 1),)
    assert plan(made).forward == ()


def test_a_clip_alone_ends_with_its_last_piece() -> None:
    made = builder(free_pages=0)
    assert made.admit(view_of(1, 1, num_encodes=1, encode_only=True))
    assert plan(made).forward == ()
    assert plan(made).encode == ((1, 1),)
    assert not builder().admit(view_of(1, 1, encode_only=True)), "nothing is left of it"


# -- audio ---------------------------------------------------------------------------------------
def test_a_row_brings_the_vocoding_that_its_frame_makes_due() -> None:
    made = builder()
    assert made.take_share(decode(1, frames=3, chunk=4))
    assert made.take_share(decode(2, frames=2, chunk=4))
    assert made.take_share(decode(3, frames=7, chunk=4))
    assert made.take_share(decode(4, frames=3, chunk=4), with_audio=False)
    assert plan(made).vocode == ((1, 4), (3, 4))
    # a pass and four rows, and one call of the codec for two chunks of one size
    assert made.seconds == (4 + 4 + 2 + 2 * 1) * U
    assert made.take_share(decode(5, frames=7, chunk=8))
    assert made.seconds == (8 + 4 + 1 + 2 + 2) * U


def test_vocoding_counts_towards_a_rows_limit() -> None:
    due = decode(1, frames=3, chunk=4)
    assert not builder().take_share(due, limit_s=7.5 * U)
    assert builder().take_share(due, limit_s=8 * U)
    assert builder().take_share(due, limit_s=5 * U, with_audio=False)


def test_a_stream_that_ended_gives_its_rest() -> None:
    made = builder()
    assert made.take_share(decode(1, frames=3, chunk=4, ended=True))
    assert made.take_share(decode(2, frames=9, chunk=4, ended=True))
    assert not made.take_share(decode(3, frames=0, chunk=4, ended=True))
    assert not made.take_share(decode(1, frames=3, chunk=4, ended=True)), "it has its part"
    assert plan(made).vocode == ((1, 3), (2, 4))
    assert made.seconds == (2 + 0.75 + 2 + 1) * U
    assert not builder().take_share(decode(1, frames=3, chunk=4, ended=True), limit_s=2.5 * U)
    assert builder().take_share(decode(1, frames=3, chunk=4, ended=True), limit_s=2.75 * U)


def test_a_sequence_that_may_not_emit_gives_the_chunk_that_it_has() -> None:
    made = builder()
    assert made.take_share(decode(1, frames=4, chunk=4, backpressured=True))
    assert not made.take_share(decode(2, frames=3, chunk=4, backpressured=True))
    assert made.take_vocoding(decode(3, frames=4, chunk=4))
    assert not made.take_vocoding(decode(3, frames=4, chunk=4))
    assert plan(made).vocode == ((1, 4), (3, 4))
    assert plan(made).forward == ()


def test_a_row_without_a_page_vocodes_the_frames_that_exist() -> None:
    made = builder(free_pages=0)
    assert made.take_share(decode(1, 33, 2, frames=4, chunk=4))
    assert not made.take_share(decode(2, 33, 2, frames=3, chunk=4))
    assert not made.take_share(decode(3, 33, 2, frames=4, chunk=4), with_audio=False)
    assert plan(made).vocode == ((1, 4),)
    assert plan(made).forward == ()


def test_a_prompt_that_ends_counts_its_first_frame() -> None:
    made = builder()
    assert made.admit(view_of(1, 16, chunk=1))
    assert made.admit(view_of(2, 16, chunk=2))
    assert made.admit(view_of(3, 16, chunk=1), with_audio=False)
    assert plan(made).vocode == ((1, 1),)


def test_the_codec_takes_the_first_streams_of_the_given_order() -> None:
    made = builder(vocodes=2)
    for key in (5, 1, 3):
        assert made.take_share(decode(key, frames=3, chunk=4))
    assert plan(made).vocode == ((1, 4), (3, 4))
    assert made.build_plan(vocode_order=lambda view: (-view.key,)).vocode == ((5, 4), (3, 4))
    made = builder(vocodes=3)
    for key in (5, 1, 3):
        assert made.take_share(decode(key, frames=3, chunk=4))
    assert plan(made).vocode == ((5, 4), (1, 4), (3, 4))


# -- fcfs and priority ---------------------------------------------------------------------------
FREE = Budgets(PAGE, 100, 1000, 10, 100, 10)


def test_idle_for_200_steps_goes_before_every_priority() -> None:
    assert AGED_STEPS == 200
    aged, important = view_of(9, 10, idle_steps=200, priority=-5), view_of(1, 10, priority=9)
    assert rank_priority(aged) < rank_priority(important)
    assert rank_priority(changed(aged, idle_steps=199)) > rank_priority(important)


@pytest.mark.parametrize("name", ["fcfs", "priority"])
def test_all_that_have_room_start_and_none_overtakes_one_that_has_not(name: str) -> None:
    make = POLICIES[name].plan
    waiting = [view_of(key, 30) for key in (3, 1, 2)]
    assert make([], waiting, FREE).admit == (1, 2, 3)
    large = [view_of(1, 30), view_of(2, 200), view_of(3, 30)]
    assert make([], large, FREE._replace(free_pages=6)).admit == (1,)
    later = [view_of(1, 30), view_of(2, 200, backpressured=True), view_of(3, 30)]
    assert make([], later, FREE._replace(free_pages=6)).admit == (1, 3)


def test_only_a_higher_priority_takes_the_pages_of_another() -> None:
    make, full = POLICIES["priority"].plan, FREE._replace(free_pages=0)
    running = [decode(1, 32, 2), decode(2, 32, 2, priority=-1), decode(3, 32, 2, priority=-1)]
    assert make(running, [view_of(9, 10, priority=-1)], full).preempt == ()
    needy = decode(1, 33, 2)  # it finds no page, but keeps those that it has
    assert make([needy], [view_of(9, 10)], full) == ((), (), (), (), ())
    assert make(running, [view_of(9, 10)], full).preempt == (3,)
    assert make(running, [view_of(9, 30)], full).preempt == (3,)
    assert make(running, [view_of(9, 100, priority=1)], full).admit == ()
    assert make(running, [view_of(9, 90, priority=1)], full).preempt == (3, 2, 1)


@pytest.mark.parametrize("name", ["fcfs", "priority"])
def test_of_those_that_cannot_run_the_latest_gives_its_pages_first(name: str) -> None:
    stuck = [decode(key, 32, 2, backpressured=True) for key in (1, 3, 2)]
    made = POLICIES[name].plan(stuck, [view_of(0, 10)], FREE._replace(free_pages=0))
    assert made.preempt == (3,)
    assert made.admit == (0,)


@pytest.mark.parametrize("name", ["fcfs", "priority"])
def test_decodes_go_before_prompts_and_those_before_new_ones(name: str) -> None:
    running = [view_of(1, 200, 16, 13), decode(2)]
    made = POLICIES[name].plan(running, [view_of(3, 10)], FREE._replace(tokens=66))
    assert made.forward == (Forward(2, 32, 33), Forward(1, 16, 81))


@pytest.mark.parametrize("name", ["fcfs", "priority"])
def test_new_ones_leave_the_pages_that_running_prompts_still_need(name: str) -> None:
    listens = view_of(1, 200, 16, 1, num_encodes=5)  # 12 pages to come, once its audio is encoded
    for free, starts in ((13, ()), (14, (9,))):
        budgets = FREE._replace(encodes=2, free_pages=free)
        assert POLICIES[name].plan([listens], [view_of(9, 30)], budgets).admit == starts
