"""The playback clock rules: urgent streams first, the rest as far as the step's time goes."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from izwi.scheduler.cost import StepCost
from izwi.scheduler.deadline import (
    AHEAD_STRETCH,
    BACKGROUND_STEPS,
    FIRST_AUDIO_STRETCH,
    LEAST_CHUNK_TOKENS,
    PATIENCE_STEPS,
    PRIORITY_S,
    rank_deadline,
    text_slack_s,
)
from izwi.scheduler.plan import Urgency
from izwi.scheduler.playback import FAR_S, underrun_s
from izwi.scheduler.policy import POLICIES, Budgets, Forward, View
from tests.scheduler.toy import Timeline, Toy
from tests.scheduler.views import changed, view_of

COST = StepCost(base_s=0.010, decode_row_s=0.0005, prefill_token_s=0.0001, vocode_call_s=0.002)
SPEND = Budgets(16, 1000, tokens=2048, encodes=4, running=8, vocodes=8, step_s=0.02, cost=COST)
plan = POLICIES["deadline"].plan


def decode(key: int, slack_s: float = float("inf"), **rest: int) -> View:
    view = view_of(key, 33, 32, num_pages=3, slack_s=slack_s, started=True, frames=0, chunk=12)
    return changed(view, **rest)


def test_a_new_stream_has_audio_after_its_first_step() -> None:
    new = view_of(7, 40, num_encodes=2, slack_s=0.1, chunk=1)
    step = plan([decode(1, 0.01), decode(2)], [new], SPEND)
    assert step.admit == (7,)
    assert step.encode == ((7, 2),)
    assert Forward(7, 0, 40) in step.forward
    assert (7, 1) in step.vocode


def test_urgent_streams_run_whatever_the_time_and_others_as_far_as_it_goes() -> None:
    urgent = [decode(key, 0.05) for key in range(4)]
    ahead = [decode(key, 4.0 - key / 100) for key in range(10, 40)]
    background = [decode(key) for key in range(40, 44)]
    spend = SPEND._replace(step_s=0.0151 / AHEAD_STRETCH)
    step = plan([*background, *ahead, *urgent], [], spend)
    assert [row.key for row in step.forward] == [0, 1, 2, 3, *range(39, 33, -1)]
    assert COST.seconds(step.work) <= 0.0151
    assert {row.key for row in plan(urgent, [], SPEND._replace(step_s=0.0)).forward} == {0, 1, 2, 3}


def test_a_stream_is_urgent_when_its_next_chunk_would_come_late() -> None:
    slow = COST.__class__(base_s=0.05, decode_row_s=0.2)  # no time for who is not urgent
    spend = SPEND._replace(step_s=0.049, cost=slow)
    # 0.5 s in hand: 10 frames to make take 0.49 s, 3 frames 0.15 s
    near, far = decode(0, 0.5, frames=2), decode(1, 0.5, frames=9)
    step = plan([near, far], [], spend)
    assert [row.key for row in step.forward] == [0]


def test_a_step_with_first_audio_stays_short() -> None:
    new = view_of(7, 20, slack_s=0.1, chunk=1)
    ahead = [decode(key, 4.0, frames=11) for key in range(10, 20)]
    long_prompt = view_of(30, 1000)
    alone = COST.seconds(plan([], [new], SPEND).work)
    step = plan([*ahead, long_prompt], [new], SPEND._replace(step_s=1.0, running=20))
    assert COST.seconds(step.work) <= FIRST_AUDIO_STRETCH * alone
    assert len(plan([*ahead, long_prompt], [], SPEND._replace(step_s=1.0)).forward) == 11


def test_a_row_brings_its_vocoding_if_the_codec_overlaps() -> None:
    ahead = [decode(key, 4.0, frames=14) for key in range(10, 14)]
    budgets = SPEND._replace(step_s=1.0)
    apart = plan(ahead, [], budgets)
    assert apart.forward == ()
    assert len(apart.vocode) == 4
    step = plan(ahead, [], budgets._replace(codec_overlaps=True))
    assert [row.key for row in step.forward] == [key for key, _ in step.vocode] == [10, 11, 12, 13]
    one = [decode(10, 4.0, frames=11)]
    assert plan(one, [], budgets).vocode == ()
    assert plan(one, [], budgets._replace(codec_overlaps=True)).vocode == ((10, 12),)


def test_vocoding_that_can_wait_is_batched() -> None:
    overlapping = SPEND._replace(step_s=1.0, codec_overlaps=True)
    due = [decode(key, 4.0, frames=10 + key) for key in range(5)]  # 1 to 3 need no further frame
    assert [view.audio.chunk for view in due] == [12] * 5
    waiting = plan(due[:4], [], overlapping)
    assert len(waiting.forward) == 4
    assert waiting.vocode == ()
    together = plan(due, [], overlapping)  # the last has waited for three steps
    assert len(together.forward) == 5
    assert together.vocode == ((1, 12), (2, 12), (3, 12), (4, 12))
    # who is near a gap waits for nobody, nor does anybody wait for him
    near = plan([*due[:3], decode(7, 0.1, frames=11)], [], overlapping)
    assert near.vocode == ((7, 12),)
    # nor does who is backpressured wait: he may lack text
    backpressured = changed(decode(6, 4.0, frames=13), backpressured=True)
    assert plan([*due[:3], backpressured], [], overlapping).vocode == ((6, 12),)


def test_a_stream_without_a_page_for_its_row_still_vocodes() -> None:
    full = SPEND._replace(step_s=1.0, free_pages=0)
    stuck = view_of(1, 49, 48, num_pages=3, slack_s=4.0, started=True, frames=15, chunk=12)
    other = decode(0, 0.01)  # it keeps its pages, since it needs them sooner
    for overlapping in (False, True):
        for slack_s in (4.0, 0.05):
            budgets = full._replace(codec_overlaps=overlapping)
            step = plan([other, changed(stuck, slack_s=slack_s)], [], budgets)
            assert [row.key for row in step.forward] == [0]
            assert step.vocode == ((1, 12),)


def test_last_chunks_are_batched_but_briefly_while_slots_are_short() -> None:
    overlapping = SPEND._replace(step_s=1.0, codec_overlaps=True)
    rows = [decode(key, 4.0, frames=2) for key in range(2)]
    end = changed(decode(5, 4.0, frames=3), ended=True)
    new = [view_of(9, 20, slack_s=0.1, chunk=1)]
    assert plan([*rows, end], [], overlapping).vocode == ()
    assert plan([*rows, changed(end, idle_steps=3)], [], overlapping).vocode == ((5, 3),)
    assert plan([*rows, end], new, overlapping).vocode == ((9, 1),), "first audio never waits"
    full = overlapping._replace(running=3)
    assert plan([*rows, end], new, full).vocode == ()
    assert plan([*rows, changed(end, idle_steps=1)], new, full).vocode == ((5, 3),)
    assert plan([rows[0], end], [], overlapping).vocode == ((5, 3),), "there is no company"


def test_a_long_new_prompt_does_not_make_a_listener_wait() -> None:
    new = view_of(7, 1500, slack_s=0.1, chunk=1)
    comfortable = plan([decode(1, 0.18)], [new], SPEND)
    assert COST.seconds(comfortable.work) <= 0.18
    assert comfortable.forward[-1].stop > 1000
    poor = plan([decode(1, 0.03)], [new], SPEND)
    assert LEAST_CHUNK_TOKENS <= poor.forward[-1].stop <= 200
    assert plan([], [new], SPEND).forward == (Forward(7, 0, 1500),), "there is no other listener"


def test_a_new_stream_takes_the_place_of_the_latest_background() -> None:
    background = [decode(key) for key in range(4)]
    new = [view_of(7, 20, slack_s=0.1, chunk=1), view_of(8, 20, slack_s=0.2, chunk=1)]
    spend = SPEND._replace(running=4, step_s=1.0)
    step = plan(background, new, spend)
    assert (step.preempt, step.admit) == ((3, 2), (7, 8))
    # places are free: nobody has to go
    assert plan(background, new, spend._replace(running=6)).preempt == ()
    # and work that nobody listens to displaces nobody
    idle = plan(background, [view_of(9, 20)], spend)
    assert (idle.preempt, idle.admit) == ((), ())


def test_a_new_stream_takes_the_place_of_the_stream_furthest_ahead() -> None:
    far = [decode(1, 6.0), decode(2, 9.0), decode(3, 7.0), decode(4, 1.0)]
    spend = SPEND._replace(running=4, step_s=1.0)
    new = [view_of(7, 20, slack_s=0.1, chunk=1), view_of(8, 20, slack_s=0.15, chunk=1)]
    assert plan(far, new, spend).preempt == (2, 3)
    assert plan([decode(4, 1.0)] * 4, new, spend).preempt == (), "4 s in hand are not far ahead"


def test_late_background_starts_first_if_what_runs_of_it_has_ended_or_is_stuck() -> None:
    late = changed(view_of(9, 20), idle_steps=PATIENCE_STEPS)
    new = view_of(7, 20, slack_s=0.1, chunk=1)
    ended = decode(0, ended=True)
    stuck = decode(1, backpressured=True)
    spend = SPEND._replace(running=3, step_s=1.0)
    assert plan([ended, stuck], [new, late], spend).admit[:1] == (9,)
    assert plan([ended, decode(1)], [new, late], spend).admit[:1] == (7,)


def test_two_rows_run_whatever_is_predicted_where_nothing_else_runs() -> None:
    dear = SPEND._replace(step_s=0.001, cost=StepCost(base_s=0.05, decode_row_s=0.05))
    rows = [decode(key, 3.0) for key in range(4)]
    assert [row.key for row in plan(rows, [], dear).forward] == [0, 1]
    urgent = decode(9, 0.05)
    assert [row.key for row in plan([*rows, urgent], [], dear).forward] == [9]


def test_a_new_stream_takes_pages_of_background_only_if_that_is_enough() -> None:
    background = [decode(0), decode(1)]
    spend = SPEND._replace(free_pages=1, step_s=1.0)
    assert plan(background, [view_of(7, 20, slack_s=0.1)], spend).preempt == (1,)
    big = plan(background, [view_of(7, 500, slack_s=0.1)], spend)
    assert (big.preempt, big.admit) == ((), ())


def test_the_earliest_background_is_spared_while_streams_run() -> None:
    spend = SPEND._replace(running=2)
    new = view_of(7, 20, slack_s=0.1, chunk=1)
    assert plan([decode(0), decode(1, 0.1)], [new], spend).preempt == ()
    assert plan([decode(0)], [new], spend._replace(running=1)).preempt == (0,)
    both = [decode(0), decode(1), decode(2, 0.1)]
    assert plan(both, [new], spend._replace(running=3)).preempt == (1,), "the second is not spared"


def test_pages_are_taken_from_background_then_from_the_stream_furthest_ahead() -> None:
    urgent = changed(decode(0, 0.05), num_pages=2)
    crowd = [decode(1, 9.0), decode(2, 3.0), decode(3), decode(4), urgent]
    spend = SPEND._replace(free_pages=0)
    assert plan(crowd, [], spend).preempt == (4,)
    assert plan([v for v in crowd if v.urgency.slack_s < 10], [], spend).preempt == (1,)


def test_background_that_was_idle_for_long_runs_one_a_step() -> None:
    idle = [decode(key, idle_steps=BACKGROUND_STEPS + key, frames=11) for key in range(3)]
    urgent = [decode(key, 0.05, frames=11) for key in range(10, 14)]
    step = plan([*idle, *urgent], [], SPEND._replace(step_s=0.0, vocodes=2))
    assert [row.key for row in step.forward if row.key < 10] == [2]
    assert (2, 12) in step.vocode, "its audio would wait forever behind that of streams"


def test_background_that_waited_too_long_starts_before_new_streams() -> None:
    streams = [decode(key, 0.1) for key in range(2)]
    new = view_of(7, 20, slack_s=0.05, chunk=1)
    late = view_of(5, 20, idle_steps=PATIENCE_STEPS)
    spend = SPEND._replace(running=3)
    assert plan(streams, [new, late], spend).admit == (5,)
    assert plan(streams, [new, changed(late, idle_steps=1)], spend).admit == (7,)
    # one at a time: where background runs already, the others wait for its end
    assert plan([*streams[:1], decode(3)], [new, late], spend).admit == (7,)


def test_background_that_waited_too_long_comes_before_every_listener() -> None:
    late, early = view_of(5, 20, idle_steps=PATIENCE_STEPS), view_of(6, 20, idle_steps=1)
    listeners = [decode(1, -5.0), decode(2, 0.0), decode(3, 5.0)]
    ranked = sorted([early, *reversed(listeners), late], key=rank_deadline)
    assert [view.key for view in ranked] == [5, 1, 2, 3, 6]


def test_nothing_overtakes_a_new_stream_that_has_no_room_yet() -> None:
    spend = SPEND._replace(free_pages=4, step_s=1.0)
    large = view_of(7, 16 * 20, slack_s=0.05, chunk=1)
    small = view_of(8, 20, slack_s=0.2, chunk=1)
    away = view_of(9, 20, backpressured=True)
    assert plan([], [small, away], spend).admit == (8, 9)
    assert plan([], [large, small, away], spend).admit == ()


def test_streams_with_the_least_slack_are_vocoded_first() -> None:
    crowd = [decode(key, 0.01 * (9 - key), frames=11) for key in range(5)]
    step = plan(crowd, [], SPEND._replace(vocodes=2))
    assert step.vocode == ((4, 12), (3, 12))


def first_audio_after_s(policy: str, *, step_s: float) -> tuple[float, float]:
    """The latest first audio and the longest gap of streams beside much background work."""
    toy = Toy(POLICIES[policy], num_pages=2000, slots=8, tokens=512, vocodes=8, step_s=step_s)
    crowd = [Timeline(300, 150, streams=False) for _ in range(16)]
    streams = [Timeline(20, 50, arrives=20 + 40 * number) for number in range(8)]
    toy.run([*crowd, *streams], limit=5000)
    assert len(toy.done) == 24
    late = max(timeline.chunks[0][0] - timeline.submitted_s for timeline in streams)
    return late, max(underrun_s(timeline.chunks) for timeline in streams)


def test_streams_start_early_and_have_no_gaps_with_background_work() -> None:
    late_s, silence_s = first_audio_after_s("deadline", step_s=0.02)
    assert late_s < 0.03
    assert silence_s == 0.0
    assert first_audio_after_s("fcfs", step_s=0.02)[0] > 1.0


# -- limits of a step, worked out by hand --------------------------------------------------------
U = 1 / 1024  # a power of two, so that sums of prices are exact
EXACT = SPEND._replace(
    running=100,
    vocodes=100,
    step_s=8 * U,
    cost=StepCost(base_s=4 * U, decode_row_s=U, prefill_token_s=U / 32, vocode_call_s=U),
)


def rows(*views: View, **budgets: Any) -> list[int]:
    """Keys of the rows of a step."""
    return [row.key for row in plan(views, [], EXACT._replace(**budgets)).forward]


def many(slack_s: float = float("inf"), first: int = 10, **rest: int) -> list[View]:
    return [decode(key, slack_s, **rest) for key in range(first, first + 40)]


def test_background_work_alone_may_take_half_as_long_again() -> None:
    assert len(rows(*many())) == 8  # 4 + 8 = 1.5 * 8
    assert len(rows(*many(FAR_S))) == 8, "nor does a stream that is far ahead count"
    assert rows(decode(1, FAR_S), *many()) == [1, *range(10, 17)]
    assert rows(decode(1, FAR_S - 0.01), *many()) == [1, 10, 11, 12]  # 4 + 4 = 8
    urgent = decode(1, 0.01)
    assert rows(urgent, *many()) == [1, 10, 11, 12]


def test_a_waiting_stream_that_is_not_far_ahead_ends_the_longer_step() -> None:
    for slack_s, alone in ((FAR_S, True), (FAR_S - 0.01, False)):
        waiting = changed(decode(1, slack_s), num_computed=0, num_pages=0)
        step = plan(many(), [waiting], EXACT._replace(running=40))
        assert len(step.forward) == (8 if alone else 4)


def test_streams_that_are_not_far_ahead_may_take_four_times_as_long() -> None:
    assert len(rows(*many(FAR_S - 0.01))) == 28  # 4 + 28 = 4 * 8
    # but not beside first audio: a quarter of an hour's share of the time until it is late
    new = view_of(1, 33, 32, num_pages=3, slack_s=0.1, chunk=12)
    assert len(rows(new, *many(FAR_S - 0.01))) == 4
    late = changed(new, slack_s=0.0)
    assert rows(late, *many(FAR_S - 0.01)) == [1], "5 and a tenth"


def test_a_step_may_always_take_a_quarter_more_than_one_row() -> None:
    slow = StepCost(base_s=4 * U, decode_row_s=U / 4)
    # 1.25 * (4 + 1/4) = 4 + 5.25 / 4
    assert len(rows(*many(), step_s=0.0, cost=slow)) == 5
    assert len(rows(decode(1, 0.01), *many(), step_s=0.0, cost=slow)) == 1


def test_rows_go_before_prompts_where_there_are_fewer_pages_than_sequences() -> None:
    prompt = view_of(1, 600, num_pages=40)
    crowd = [prompt, decode(2), decode(3)]
    for pages, order in ((3, [1, 2, 3]), (2, [2, 3, 1])):
        assert rows(*crowd, free_pages=pages, step_s=100 * U) == order
    # there they leave a prompt that time which rows do not take, and elsewhere it leaves none
    assert rows(*crowd, free_pages=3) == [1]
    few = plan(crowd, [], EXACT._replace(free_pages=2))
    assert few.forward[-1] == Forward(1, 0, 192)  # 12 - 4 - 2, at a 32nd a position


def test_one_urgent_prompt_makes_progress_whatever_the_time_and_a_second_does_not() -> None:
    prompts = [view_of(key, 600, num_pages=40, slack_s=0.1, chunk=1) for key in (1, 2)]
    step = plan(prompts, [], EXACT._replace(step_s=0.0))
    assert step.forward == (Forward(1, 0, 600), Forward(2, 0, 600)), "nobody would hear a gap"
    listener = decode(3, 0.0)
    step = plan([*prompts, listener], [], EXACT._replace(step_s=0.0))
    assert step.forward == (Forward(3, 32, 33), Forward(1, 0, LEAST_CHUNK_TOKENS))
    new = [changed(prompt, num_pages=0) for prompt in prompts]
    step = plan([listener], new, EXACT._replace(step_s=0.0))
    assert step.admit == (1,)
    assert step.forward == (Forward(3, 32, 33), Forward(1, 0, LEAST_CHUNK_TOKENS))


def test_idle_background_work_is_vocoded_before_streams_if_the_codec_is_short() -> None:
    idle = decode(1, idle_steps=BACKGROUND_STEPS, frames=11)
    near = decode(2, 0.01, frames=11)
    assert plan([idle, near], [], EXACT._replace(vocodes=1)).vocode == ((1, 12),)
    fresh = changed(idle, idle_steps=BACKGROUND_STEPS - 1)
    assert plan([fresh, near], [], EXACT._replace(vocodes=1)).vocode == ((2, 12),)


def test_text_without_a_deadline_never_becomes_urgent() -> None:
    idle = Urgency(slack_s=float("inf"), started=True, idle_steps=BACKGROUND_STEPS)
    assert text_slack_s(idle) == float("inf")
    read = Urgency(slack_s=0.5, started=True, idle_steps=BACKGROUND_STEPS, priority=2)
    assert text_slack_s(read) == -BACKGROUND_STEPS
    assert text_slack_s(replace(read, idle_steps=BACKGROUND_STEPS - 1)) == 0.5 - 2 * PRIORITY_S
    assert text_slack_s(replace(read, started=False)) == 0.5 - 2 * PRIORITY_S


def test_priority_decides_between_texts_of_equal_slack_and_not_between_streams() -> None:
    texts = [view_of(key, 20, slack_s=0.1, priority=key) for key in range(3)]
    assert plan([], texts, SPEND._replace(running=1)).admit == (2,)
    streams = [changed(text, chunk=1) for text in texts]
    assert plan([], streams, SPEND._replace(running=1)).admit == (0,)


def test_the_listener_with_the_least_slack_limits_a_long_prompt() -> None:
    new = view_of(7, 1500, slack_s=0.1, chunk=1)
    for slacks in ((0.03, 0.18), (0.18, 0.03)):
        step = plan([decode(key, slack_s) for key, slack_s in enumerate(slacks)], [new], SPEND)
        assert step.forward[-1].stop <= 200
    # who may not emit cannot hear a gap sooner
    away = decode(1, 0.03, backpressured=True)
    assert plan([decode(0, 0.18), away], [new], SPEND).forward[-1].stop > 1000


def test_the_first_audio_of_a_stream_that_can_wait_is_left_to_the_next_step() -> None:
    patient = view_of(7, 20, slack_s=4.0, started=True, chunk=1)
    step = plan([], [patient], SPEND)
    assert (step.admit, step.forward, step.vocode) == ((7,), (Forward(7, 0, 20),), ())
    assert plan([], [changed(patient, slack_s=0.1)], SPEND).vocode == ((7, 1),)


def test_new_requests_leave_the_pages_that_prompts_in_flight_need() -> None:
    prompt = view_of(1, 100, num_encodes=8, slack_s=4.0, started=True)  # 7 pages to come
    new = view_of(9, 15, slack_s=4.0, started=True)
    for pages, admitted in ((7, ()), (8, (9,))):
        step = plan([prompt], [new], SPEND._replace(free_pages=pages, step_s=1.0))
        assert step.encode == ((1, 4),)
        assert step.admit == admitted


def test_vocoding_that_can_wait_gets_no_time_with_urgent_rows() -> None:
    due = decode(10, 4.0, frames=14)
    assert plan([due], [], EXACT._replace(step_s=0.0)).vocode == ((10, 12),), "a step has something"
    assert plan([due, decode(1, 0.01)], [], EXACT._replace(step_s=0.0)).vocode == ()
    assert plan([due, decode(1, 0.01)], [], EXACT).vocode == ((10, 12),)


def test_sequences_with_backpressure_are_preempted_first_the_furthest_ahead_before_others() -> None:
    stuck = [decode(1, 1.0, backpressured=True), decode(2, 6.0, backpressured=True)]
    for running in (stuck, stuck[::-1]):
        step = plan([*running, decode(3, 9.0)], [view_of(9, 20)], SPEND._replace(running=3))
        assert (step.preempt, step.admit) == ((2,), (9,))


def test_of_requests_that_can_wait_none_overtakes_one_that_has_no_room() -> None:
    small, smaller = view_of(7, 40), view_of(8, 20)
    assert plan([], [small, smaller], SPEND).admit == (7, 8)
    assert plan([], [small, smaller], SPEND._replace(free_pages=2)).admit == ()


def test_late_background_takes_no_stream_its_place() -> None:
    late = view_of(5, 20, idle_steps=PATIENCE_STEPS)
    far = [decode(1, 9.0), decode(2, 8.0)]
    assert plan(far, [late], SPEND._replace(running=2)).preempt == ()
    new = view_of(7, 20, slack_s=0.1, chunk=1)
    assert plan(far, [new], SPEND._replace(running=2)).preempt == (1,)
    away = changed(far[0], backpressured=True)
    step = plan([away, far[1]], [late], SPEND._replace(running=2))
    assert (step.preempt, step.admit) == ((1,), (5,))
