"""Limits of pure decisions: values on both sides of each limit, worked out by hand."""

from __future__ import annotations

from math import inf

import pytest

from izwi.request.sequence import Sequence
from izwi.scheduler.batching_delay import should_delay_requests, should_delay_vocoding
from izwi.scheduler.cost import OnlineCost, StepCost, StepWork, _weights, fit
from izwi.scheduler.plan import Budgets, View
from izwi.scheduler.playback import (
    FAR_S,
    chunk_frames,
    find_gaps,
    frames_to_vocode,
    full_chunks,
    short_chunk_frames,
)
from izwi.scheduler.scheduler import next_chunk
from tests.engine.toy import toy_request
from tests.scheduler.views import changed, view_of

# Powers of two, so that a border can be met exactly. A step of decodes takes 4/1024 s, prompts in
# a step cost 8/1024 s beside their length.
UNIT_S = 1 / 1024
COST = StepCost(base_s=4 * UNIT_S, prefill_call_s=8 * UNIT_S)
SPEND = Budgets(16, 1000, 2048, 16, 64, 64, 1.0, COST, new_requests=1.0, since_start=0)
HEARD, SILENT = view_of(99, 16, slack_s=10.0), view_of(99, 16)


def waits(new: View = HEARD, num_rows: int = 100, limit_s: float = 1.0, **budget: object) -> bool:
    return should_delay_requests([new], num_rows, SPEND._replace(**budget), limit_s)


# -- the cost of a step --------------------------------------------------------------------------
def test_step_work_counts_rows_positions_pieces_and_frames() -> None:
    assert StepWork.from_rows([1, 5, 1], 2, [4, 4, 8]) == StepWork(2, 5, 2, 2, 16)
    assert StepWork.from_rows([], 0, []) == StepWork(0, 0, 0, 0, 0)


def test_a_step_pays_for_each_of_its_parts() -> None:
    cost = StepCost(1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
    assert cost.seconds(StepWork(3, 5, 7, 11, 13)) == 1 + 6 + 20 + 56 + 176 + 416 + 64 + 128
    assert cost.seconds(StepWork(decode_rows=3)) == 1 + 6
    assert cost.seconds(StepWork(prefill_tokens=5)) == 1 + 20 + 64
    assert cost.seconds(StepWork(encodes=7)) == 56 + 128
    assert cost.seconds(StepWork(vocode_calls=11, vocode_frames=13)) == 176 + 416


def test_no_price_is_negative() -> None:
    cost = fit([(StepWork(decode_rows=rows), 1.0 - 0.1 * rows) for rows in range(1, 8)])
    assert cost.decode_row_s == 0.0
    assert cost.base_s == pytest.approx(0.6)


def test_prices_are_learnt_soon_at_first_and_then_every_64_steps() -> None:
    online, learnt = OnlineCost(), []
    for step in range(1, 200):
        before = online.cost
        online.add(StepWork(decode_rows=step % 7 + 1), 0.01)
        online.add(StepWork(), 5.0)  # a step without work is none
        if online.cost is not before:
            learnt.append(step)
    assert learnt == [8, 16, 32, 64, 128, 192]


def test_three_steps_in_a_row_that_agree_change_the_prices_and_two_do_not() -> None:
    online, work = OnlineCost(StepCost(base_s=0.25, decode_row_s=0.25)), StepWork(decode_rows=1)
    for _ in range(2):
        online.add(work, 2.0)
        assert online.cost.seconds(work) == 0.5
    online.add(work, 2.0)
    assert online.cost.seconds(work) == pytest.approx(2.0)


def test_a_row_far_off_pulls_no_harder_than_one_at_three_deviations() -> None:
    from izwi.scheduler.cost import _Row

    errors = [0.0, 0.1, 0.1, 0.1, 1.0]
    rows = [_Row(((0, 1.0),), 1.0 + error) for error in errors]
    limit = 3.0 * 1.4826 * 0.1
    assert _weights(rows, [1.0]) == pytest.approx([1.0, 1.0, 1.0, 1.0, limit])
    # where all is explained, what a clock cannot tell apart is not called far off
    exact = [_Row(((0, 1.0),), 1.0)] * 4 + [_Row(((0, 1.0),), 1.0 + 0.0025)]
    assert _weights(exact, [1.0]) == [1.0] * 5


# -- new requests that wait for others -----------------------------------------------------------
def test_new_requests_wait_three_steps_and_seven_where_there_is_no_listener() -> None:
    assert waits(since_start=2)
    assert not waits(since_start=3)
    assert waits(SILENT, since_start=6)
    assert not waits(SILENT, since_start=7)


def test_batching_delay_needs_a_minimum_arrival_rate() -> None:
    # 4 steps of 0.375 new requests are 1.5 of them
    assert waits(new_requests=0.375)
    assert not waits(new_requests=0.374)


def test_a_request_that_is_needed_sooner_waits_for_none_that_is_far_ahead() -> None:
    assert waits(changed(HEARD, slack_s=FAR_S), far_new_requests=1.0)
    assert not waits(changed(HEARD, slack_s=FAR_S - UNIT_S), far_new_requests=1.0)
    assert waits(changed(HEARD, slack_s=FAR_S - UNIT_S), far_new_requests=0.5)


def test_batching_delay_ends_at_its_optimum() -> None:
    # sqrt(2 * 8 * 9 / (4 * 4)) = 3 steps
    assert waits(num_rows=9, new_requests=4.0, since_start=1)
    assert not waits(num_rows=9, new_requests=4.0, since_start=2)
    # sqrt(2 * 16 * 9 / (4.5 * 4)) = 4 steps where pieces of audio cost as much again
    spoken = changed(HEARD, num_encodes=1)
    dear = StepCost(base_s=4 * UNIT_S, prefill_call_s=8 * UNIT_S, encode_call_s=8 * UNIT_S)
    assert waits(spoken, num_rows=9, new_requests=4.5, since_start=2, cost=dear)
    assert not waits(num_rows=9, new_requests=4.5, since_start=2, cost=dear)


def test_they_wait_only_where_more_would_fit() -> None:
    begun = changed(HEARD, num_computed=6)  # 10 positions are left
    assert not waits(begun, tokens=110)
    assert waits(begun, tokens=111)
    spoken = changed(HEARD, num_encodes=2)
    assert not waits(spoken, encodes=2)
    assert waits(spoken, encodes=3)


def test_a_listener_waits_only_with_twice_the_time_of_two_steps_left() -> None:
    cost = StepCost(4 * UNIT_S, prefill_token_s=UNIT_S, encode_s=UNIT_S, prefill_call_s=8 * UNIT_S)
    # 2 * (2 * 4 + 8 for the call + 16 positions + 1 piece of audio)
    least_s = 2 * (2 * 4 + 8 + 16 + 1) * UNIT_S
    spoken = changed(HEARD, num_encodes=1)
    assert not waits(changed(spoken, slack_s=least_s), cost=cost)
    assert waits(changed(spoken, slack_s=least_s + UNIT_S), cost=cost)
    # without a listener one step of all of it must stay below the limit
    silent = changed(SILENT, num_encodes=1)
    step_s = (4 + 8 + 16 + 1) * UNIT_S
    assert not waits(silent, cost=cost, limit_s=step_s)
    assert waits(silent, cost=cost, limit_s=step_s + UNIT_S)


def test_without_new_requests_nothing_waits() -> None:
    assert not should_delay_requests([], 100, SPEND, 1.0)
    assert not waits(num_rows=0)


# -- audio that waits for others -----------------------------------------------------------------
def row(frames: int, chunk: int = 4) -> View:
    return view_of(1, 10, 9, slack_s=inf, frames=frames, chunk=chunk)


def test_vocoding_is_delayed_two_steps_with_another_row() -> None:
    # two frames more than its chunk, with the next
    assert should_delay_vocoding([row(5), row(0)], [], False)
    assert not should_delay_vocoding([row(6), row(0)], [], False)
    assert not should_delay_vocoding([row(5)], [], False)
    assert should_delay_vocoding([row(0), row(9, chunk=0)], [], False), "the second makes no audio"


def test_an_ended_stream_waits_one_step_if_a_request_waits_for_its_place_and_else_three() -> None:
    rows = [row(0), row(0)]

    def ended(idle: int) -> list[View]:
        return [changed(row(2), ended=True, idle_steps=idle), changed(row(2), ended=True)]

    assert should_delay_vocoding(rows, ended(2), False)
    assert not should_delay_vocoding(rows, ended(3), False)
    assert should_delay_vocoding(rows, ended(0), True)
    assert not should_delay_vocoding(rows, ended(1), True)


# -- playback ------------------------------------------------------------------------------------
def test_audio_that_arrives_as_the_last_ends_leaves_no_gap() -> None:
    assert find_gaps([(1.0, 0.5), (1.5, 0.5)]) == []


def test_the_last_chunk_of_the_ramp_repeats_and_a_chunk_is_due_when_it_is_whole() -> None:
    ramp = (1, 2, 4)
    assert [chunk_frames(count, ramp) for count in range(5)] == [1, 2, 4, 4, 4]

    def due(frames: int, ended: bool = False) -> int:
        return frames_to_vocode(frames - 3, chunk_frames(2, ramp), ended=ended)

    assert [due(frames) for frames in (3, 6, 7, 8)] == [0, 0, 4, 4]
    assert [due(frames, True) for frames in (3, 6, 7, 8)] == [0, 3, 4, 4]


def test_a_short_chunk_is_the_largest_of_the_ramp_that_is_whole() -> None:
    assert [short_chunk_frames(count, (2, 4)) for count in range(6)] == [0, 1, 2, 2, 4, 4]
    assert [short_chunk_frames(count, (8,)) for count in (1, 7, 8)] == [1, 1, 8]


@pytest.mark.parametrize(
    ("chunks", "count"),
    [((), 0), ((1,), 1), ((1, 1, 1), 1), ((1, 1, 2), 2), ((1, 2, 3, 4), 3), ((1, 2, 4, 8, 8), 3)],
)
def test_a_chunk_that_is_short_for_lack_of_text_does_not_lengthen_the_next(chunks, count) -> None:
    ramp = (1, 2, 4, 8)
    assert full_chunks(chunks, ramp) == count
    sequence = Sequence(toy_request("a", 5, seed=1, frames=60), 0, 0.0)
    sequence.audio.chunks = list(chunks)
    assert next_chunk(sequence, ramp) == chunk_frames(count, ramp)
    sequence.audio.chunks = list(chunks[:-1])  # the last one is in flight
    sequence.pending.chunks, sequence.pending.frames = len(chunks[-1:]), sum(chunks[-1:])
    assert next_chunk(sequence, ramp) == chunk_frames(count, ramp)
