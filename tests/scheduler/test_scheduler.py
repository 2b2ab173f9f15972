"""What the scheduler does with plans: its queues, pages, codec rows and counts, without a model."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.simulation.device import SimulatedPages, SimulatedPrompt, SimulatedRows
from izwi.cache.memory import PagedMemory
from izwi.config import EngineConfig
from izwi.errors import InvalidRequest, Overloaded
from izwi.request.request import Reason, Request
from izwi.request.sequence import PauseReason, Pending, Phase, Sequence
from izwi.request.track_log import TrackLog, TrackProgress
from izwi.scheduler.plan import Order, Plan, Policy, View
from izwi.scheduler.policy import POLICIES
from izwi.scheduler.scheduler import Scheduler
from izwi.scheduler.work import Work
from tests.cache.test_memory import Below, known

PAGE = 4


class Facts:
    """A model that speaks, or writes text, whose prompts are `SimulatedPrompt`s."""

    codec_overlaps = False

    def __init__(self, frame_s: float | None):
        self.frame_s = frame_s

    def content_keys(self, sequence: Sequence, start: int, stop: int) -> list[int]:
        prompt: Any = sequence.request.prompt
        keys: list[int] = prompt.keys(start, stop)
        return keys

    def positions_ready(self, sequence: Sequence) -> int:
        return sequence.num_prompt + len(sequence.input.written)


def scheduler_of(
    num_pages: int = 64, frame_s: float | None = None, mover: Any = None, **settings: Any
) -> Scheduler:
    defaults: dict[str, Any] = {"max_running": 8, "max_step_tokens": 64, "policy": "fcfs"}
    config = EngineConfig(page_size=PAGE, **(defaults | settings))
    memory = PagedMemory(num_pages, PAGE, mover or SimulatedPages())
    rows: Any = SimulatedRows(config.max_running)
    return Scheduler(config, memory, rows, Facts(frame_s))


def sequence_of(
    arrival: int, num_positions: int = 3, num_shared: int = 0, at_s: float = 0.0, **fields: Any
) -> Sequence:
    inputs = fields.pop("inputs", ())
    prompt = SimulatedPrompt(num_positions, num_shared, arrival, inputs)
    return Sequence(Request(f"{arrival}", "m", prompt, **fields), arrival, at_s)


def added(scheduler: Scheduler, *sequences: Sequence) -> None:
    for sequence in sequences:
        scheduler.add(sequence)


def step(scheduler: Scheduler, now_s: float = 0.0) -> Work:
    """Plan a step and run it: sequences that emit draw entry 0."""
    work = scheduler.schedule(now_s)
    for sequence, index in work.encode:
        sequence.encoded[index] = ()
    for row in work.forward:
        emits = row.emits
        scheduler.computed(row.sequence, row.stop)
        if emits:
            row.sequence.emitted.append((0,))
    return work


def rows_of(work: Work) -> list[tuple[int, int, int]]:
    return [(row.sequence.arrival, row.start, row.stop) for row in work.forward]


# -- the queue -----------------------------------------------------------------------------------
def test_a_prompt_needs_room_for_itself_and_one_position_more() -> None:
    scheduler = scheduler_of(num_pages=4)
    scheduler.add(sequence_of(0, 15))
    with pytest.raises(InvalidRequest, match="takes 16 positions, the model has memory for 15"):
        scheduler.add(sequence_of(1, 16))


def test_a_full_queue_refuses_new_callers_only() -> None:
    scheduler = scheduler_of(max_waiting=2)
    added(scheduler, sequence_of(0), sequence_of(1))
    with pytest.raises(Overloaded, match="2 requests"):
        scheduler.add(sequence_of(2))
    scheduler.add(sequence_of(3, continues=True))
    assert scheduler.num_waiting == 3
    lacks_text = scheduler_of(max_waiting=2)
    starved, other = sequence_of(0, open_input=True), sequence_of(1)
    starved.emitted.append((0,))
    added(lacks_text, starved, other)
    lacks_text.add(sequence_of(2))  # one of the two cannot run
    behind = scheduler_of(max_waiting=1)
    slow = sequence_of(0)
    slow.status.backpressured = True
    added(behind, slow, sequence_of(1))


def test_a_request_that_has_waited_just_the_longest_time_may_still_start() -> None:
    scheduler = scheduler_of(max_wait_s=2.0)
    early, late = sequence_of(0, at_s=1.0), sequence_of(1, at_s=2.0)
    goes_on = sequence_of(2, at_s=0.0, continues=True)
    added(scheduler, early, late, goes_on)
    assert scheduler.overdue(3.0) == []
    ((refused, error),) = scheduler.overdue(3.5)
    assert refused is early
    assert isinstance(error, Overloaded)


def test_without_a_place_a_policy_is_shown_four_that_wait() -> None:
    scheduler = scheduler_of(frame_s=0.1, max_running=1)
    first = sequence_of(100)
    scheduler.add(first)
    step(scheduler)
    scheduler.end(first, Reason.STOP)  # its audio is still to be made
    scheduler.pause(first, 0.0)
    scheduler.add(sequence_of(101))
    scheduler._rows._states._free.append(1)  # type: ignore[attr-defined]
    step(scheduler)
    scheduler.resume(first, 0.0)
    assert scheduler.num_running == 2, "one more than there are places"
    added(scheduler, *(sequence_of(arrival) for arrival in range(8)))
    shown: list[int] = []

    def plan(running: Any, waiting: Any, budgets: Any) -> Plan:
        shown.extend(view.key for view in waiting)
        assert budgets.running == 1
        return Plan()

    scheduler.policy = Policy("spy", POLICIES["fcfs"].rank, plan, Order.ARRIVAL)
    scheduler.schedule(0.0)
    assert shown == [0, 1, 2, 3]


# -- what is known of a sequence -----------------------------------------------------------------
def test_steps_are_counted_and_a_sequence_is_idle_from_its_last_one() -> None:
    scheduler = scheduler_of(frame_s=0.1)
    assert scheduler.counts.steps == 0
    for number in range(1, 4):
        scheduler.schedule(0.0)
        assert scheduler.counts.steps == number
    sequence = sequence_of(0)
    scheduler.add(sequence)
    assert sequence.status.last_step == 3
    step(scheduler)
    assert sequence.status.last_step == 4


def test_entries_and_audio_each_end_idleness() -> None:
    scheduler = scheduler_of(max_step_encodes=1)
    written = sequence_of(0, inputs=(object(), object()))
    scheduler.add(written)
    for number, rows in ((1, 0), (2, 1), (3, 1)):
        assert len(step(scheduler).forward) == rows
        assert written.status.last_step == number
    speaks = scheduler_of(frame_s=0.1)
    spoken = sequence_of(0)
    speaks.add(spoken)
    step(speaks)
    speaks.end(spoken, Reason.STOP)
    work = step(speaks)
    assert (rows_of(work), len(work.vocode)) == ([], 1)
    assert spoken.status.last_step == 2


def test_a_start_that_is_just_far_ahead_counts_as_one_that_can_wait() -> None:
    for frames, far in ((10, True), (9, False)):
        scheduler = scheduler_of(frame_s=0.5, policy="deadline")
        first, second = (sequence_of(arrival, listener="ann") for arrival in range(2))
        scheduler.add(first)
        step(scheduler)
        scheduler.delivered(first, frames, now_s=0.0)
        scheduler.finish_request(first, Reason.STOP)
        before = scheduler._starts.far_per_step
        scheduler.add(second)
        assert rows_of(step(scheduler)) == [(1, 0, 3)]
        assert (scheduler._starts.far_per_step > before) is far


def test_a_sequence_is_planned_as_if_the_steps_in_flight_had_ended() -> None:
    scheduler = scheduler_of(frame_s=0.1, chunk_ramp=(1, 2, 4))
    sequence = sequence_of(0, 5)
    scheduler.add(sequence)
    step(scheduler)
    sequence.emitted += [(0,)] * 3
    sequence.audio.num_vocoded, sequence.audio.chunks = 1, [1]
    view = scheduler._view(sequence, 0.0)
    assert (view.progress.num_positions, view.progress.num_computed) == (9, 5)
    assert (view.audio.frames, view.audio.chunk, view.progress.ended) == (3, 2, False)
    sequence.pending = Pending(entries=1, frames=2, chunks=1, ends=True)
    view = scheduler._view(sequence, 0.0)
    assert view.progress.num_positions == 10
    assert (view.audio.frames, view.audio.chunk, view.progress.ended) == (2, 4, True)
    assert view.num_pages == 2


def test_entries_of_output_positions_take_no_positions() -> None:
    scheduler = scheduler_of()
    sequence = sequence_of(0, 6, output_positions=(3, 5))
    scheduler.add(sequence)
    scheduler.schedule(0.0)
    sequence.emitted.append((0,))
    assert scheduler._view(sequence, 0.0).progress.num_positions == 6


def test_a_stream_runs_as_far_as_its_text_is_written() -> None:
    scheduler = scheduler_of(frame_s=0.1)
    sequence = sequence_of(0, open_input=True)
    scheduler.add(sequence)
    assert rows_of(step(scheduler)) == [(0, 0, 3)]
    assert rows_of(step(scheduler)) == [], "its second entry needs text"
    assert sequence.status.paused is PauseReason.INPUT
    sequence.input.written += (7,)
    assert rows_of(step(scheduler)) == [(0, 3, 4)]
    assert sequence.status.paused is None
    assert rows_of(step(scheduler)) == []


def test_a_prompt_waits_for_all_of_its_audio() -> None:
    scheduler = scheduler_of(max_step_encodes=1)
    sequence = sequence_of(0, inputs=(object(), object()))
    scheduler.add(sequence)
    first, second = step(scheduler), step(scheduler)
    assert [index for _, index in (*first.encode, *second.encode)] == [0, 1]
    assert rows_of(first) == []
    assert rows_of(second) == [(0, 0, 3)]


def test_what_only_encodes_has_no_pages_no_row_of_the_codec_and_no_prefix() -> None:
    scheduler = scheduler_of(frame_s=0.1)
    sequence = sequence_of(0, 9, inputs=(object(),), encode_only=True)
    scheduler.add(sequence)
    work = step(scheduler)
    assert [index for _, index in work.encode] == [0]
    assert rows_of(work) == []
    assert sequence.kv.pages == sequence.kv.keys == []
    assert sequence.audio.state_row is None
    assert scheduler.memory.positions_asked == 0


# -- prefixes ------------------------------------------------------------------------------------
def test_a_request_whose_prompt_is_in_flight_waits_and_later_ones_do_not() -> None:
    scheduler = scheduler_of(max_step_tokens=8)
    scheduler.add(sequence_of(0, 12, num_shared=12))
    assert rows_of(step(scheduler)) == [(0, 0, 8)]
    added(scheduler, sequence_of(1, 14, num_shared=12), sequence_of(2))
    assert rows_of(step(scheduler)) == [(0, 8, 12), (2, 0, 3)]
    assert rows_of(step(scheduler))[-1] == (1, 12, 14)


def test_second_request_with_the_same_prefix_waits_a_step() -> None:
    scheduler = scheduler_of()
    added(scheduler, *(sequence_of(arrival, 10, num_shared=8) for arrival in range(2)))
    scheduler.add(sequence_of(2, 10))
    assert rows_of(step(scheduler)) == [(0, 0, 10), (2, 0, 10)]
    assert rows_of(step(scheduler))[-1] == (1, 8, 10)


def test_the_same_prompt_starts_as_soon_as_its_last_page_is_computed() -> None:
    scheduler = scheduler_of()
    added(scheduler, *(sequence_of(arrival, 8, num_shared=8) for arrival in range(2)))
    assert rows_of(step(scheduler)) == [(0, 0, 8)]
    assert rows_of(step(scheduler)) == [(0, 8, 9), (1, 7, 8)]


def test_the_last_position_runs_even_if_all_of_the_prompt_is_known() -> None:
    scheduler = scheduler_of()
    first = sequence_of(0, 8, num_shared=8)
    scheduler.add(first)
    step(scheduler)
    scheduler.finish_request(first, Reason.STOP)
    again = sequence_of(1, 8, num_shared=8)
    scheduler.add(again)
    assert rows_of(step(scheduler)) == [(1, 7, 8)]
    assert again.kv.num_reused == 7


def test_whole_pages_of_a_prompt_can_be_found_as_soon_as_they_are_computed() -> None:
    scheduler = scheduler_of(max_step_tokens=8, max_running=4)
    sequence = sequence_of(0, 11)
    keys = sequence.request.prompt.keys(0, 11)  # type: ignore[attr-defined]
    scheduler.add(sequence)
    step(scheduler)
    assert scheduler.memory.find(keys).num_positions == 8
    step(scheduler)
    assert scheduler.memory.find(keys).num_positions == 8, "the third page is not whole"
    assert sequence.kv.num_published == 2
    secret = sequence_of(1, 8, cacheable=False)
    scheduler.add(secret)
    step(scheduler)
    step(scheduler)
    assert secret.kv.num_computed == 8
    assert scheduler.memory.find(secret.kv.keys).num_positions == 0


def test_a_row_begins_earlier_where_a_lower_tier_has_lost_its_prefix() -> None:
    below = Below()
    scheduler = scheduler_of(num_pages=8, mover=below)
    sequence = sequence_of(0, 14)
    keys = sequence.request.prompt.keys(0, 12)  # type: ignore[attr-defined]
    memory = scheduler.memory
    memory.release(known(memory, keys))
    memory.release(memory.allocate(8))  # everything goes below
    assert len(below.kept) == 3
    scheduler.add(sequence)
    below.lost = {*below.kept}
    ((row, start, stop),) = rows_of(scheduler.schedule(0.0))
    assert (row, start, stop) == (0, 0, 2), "as many positions as were planned: 2"
    assert len(sequence.kv.pages) == 1


# -- pauses and ends -----------------------------------------------------------------------------
def test_a_pause_counts_once_and_not_after_the_end() -> None:
    scheduler = scheduler_of()
    sequence = sequence_of(0)
    scheduler.add(sequence)
    step(scheduler)
    scheduler.resume(sequence, 0.0)
    for _ in range(2):
        scheduler.pause(sequence, 0.0)
    assert (scheduler.num_running, scheduler.num_waiting, scheduler.num_paused) == (0, 0, 1)
    assert (sequence.status.phase, sequence.status.paused) == (Phase.PAUSED, PauseReason.TURN)
    assert sequence.kv.pages == []
    scheduler.resume(sequence, 1.0)
    assert (scheduler.num_waiting, scheduler.num_paused) == (1, 0)
    scheduler.finish_request(sequence, Reason.ABORTED)
    scheduler.pause(sequence, 1.0)
    assert (scheduler.counts.paused, scheduler.counts.resumed) == (1, 1)
    assert sequence.status.phase is Phase.FINISHED
    assert not scheduler.has_work


def test_a_pause_counts_neither_as_late_nor_as_idle() -> None:
    scheduler = scheduler_of(frame_s=0.5, policy="deadline")
    sequence = sequence_of(0)
    scheduler.add(sequence)
    step(scheduler)
    scheduler.delivered(sequence, 4, now_s=1.0)
    scheduler.pause(sequence, 2.0)
    for _ in range(5):
        scheduler.schedule(3.0)
    scheduler.resume(sequence, 12.0)
    assert sequence.status.last_step == 6
    view = scheduler._view(sequence, 12.0)
    assert view.urgency.slack_s == pytest.approx(1.0)
    assert (view.urgency.started, view.urgency.idle_steps) == (True, 0)


def test_a_stream_that_has_ended_keeps_its_codec_row_until_it_is_finished() -> None:
    scheduler = scheduler_of(frame_s=0.1, max_running=1)
    first, second = sequence_of(0), sequence_of(1)
    added(scheduler, first, second)
    step(scheduler)
    scheduler.end(first, Reason.STOP)
    scheduler.pause(first, 0.0)
    assert rows_of(step(scheduler)) == [], "its row is not to be had"
    scheduler.resume(first, 0.0)
    assert scheduler.runs(first), "it waits for no place"
    scheduler.finish_request(first, Reason.STOP)
    assert rows_of(step(scheduler)) == [(1, 0, 3)]


def test_the_end_of_entries_gives_frames_their_end_and_frees_the_pages() -> None:
    scheduler = scheduler_of(frame_s=0.1)
    sequence = sequence_of(0)
    sequence.tracks = TrackLog(TrackProgress(0), 0, end_frame=(9,), known_frames=[(1,)])
    sequence.pending.tracks.append(0)
    scheduler.add(sequence)
    scheduler.schedule(0.0)
    assert len(sequence.kv.pages) == 1
    epoch = sequence.pending.epoch
    scheduler.end(sequence, Reason.STOP)
    assert sequence.frames == [(1,), (9,)]
    assert sequence.pending.tracks == []
    assert sequence.pending.epoch == epoch + 1, "what is in flight for it is dropped"
    assert (sequence.status.ended, sequence.status.reason) == (True, Reason.STOP)
    assert scheduler.memory.num_free == 64
    assert scheduler.runs(sequence), "its audio is still to be made"


def test_a_redraw_runs_the_last_position_again() -> None:
    scheduler = scheduler_of()
    sequence = sequence_of(0)
    sequence.tracks = TrackLog(TrackProgress(0), None)
    scheduler.add(sequence)
    step(scheduler)
    sequence.kv.num_computed, sequence.pending.entries = 4, 1
    sequence.pending.tracks.append(0)
    scheduler.redraw(sequence)
    assert (sequence.kv.num_computed, sequence.pending.entries) == (3, 0)
    assert sequence.pending.epoch == 1
    assert sequence.pending.tracks == []
    sequence.kv.num_computed = 1
    scheduler.redraw(sequence)
    assert sequence.kv.num_computed == 1, "nothing is computed that was not"


@pytest.mark.parametrize(
    ("frame_s", "ended", "cacheable", "kept"),
    [
        (None, False, True, 8),
        (None, False, False, 8),
        (None, True, True, 8),
        (None, True, False, 0),
        (0.1, False, True, 8),
        (0.1, True, True, 4),
    ],
)
def test_pages_of_a_log_are_kept_if_they_may_be_asked_for_again(
    frame_s: float | None, ended: bool, cacheable: bool, kept: int
) -> None:
    """A prompt of a page, and four entries that fill another."""
    scheduler = scheduler_of(frame_s=frame_s)
    sequence = sequence_of(0, 4, cacheable=cacheable)
    scheduler.add(sequence)
    for _ in range(5):
        step(scheduler)
    assert sequence.kv.num_computed == 8
    keys = [*scheduler._content.keys(sequence, 8)]
    if ended:
        scheduler.end(sequence, Reason.STOP)
    else:
        scheduler.pause(sequence, 0.0)
    assert scheduler.memory.find(keys).num_positions == kept
    assert sequence.kv.pages == []
    assert scheduler.memory.num_available == 64


def test_a_step_ahead_of_the_log_publishes_only_what_is_known() -> None:
    scheduler = scheduler_of()
    sequence = sequence_of(0, 4)
    scheduler.add(sequence)
    for _ in range(4):
        step(scheduler)
    assert len(sequence.emitted) == 4
    scheduler.schedule(0.0)
    sequence.kv.num_computed = 9  # as steps in flight predict it
    sequence.kv.pages += scheduler.memory.allocate(1)
    sequence.emitted.pop()
    scheduler.pause(sequence, 0.0)
    assert scheduler.memory.find(scheduler._content.keys(sequence, 8)).num_positions == 4


def views_of(scheduler: Scheduler) -> list[View]:
    """The running sequences as a policy is shown them."""
    shown: list[View] = []

    def plan(running: Any, waiting: Any, budgets: Any) -> Plan:
        shown.extend(running)
        return Plan()

    before = scheduler.policy
    scheduler.policy = Policy("spy", before.rank, plan, Order.ARRIVAL)
    scheduler.schedule(0.0)
    scheduler.policy = before
    return shown


def test_shared_pages_are_counted_where_pages_are_short() -> None:
    scheduler = scheduler_of()
    for arrival in range(2):
        scheduler.add(sequence_of(arrival, 9, num_shared=8))
        step(scheduler)
    free = scheduler.memory.num_free
    for left, shared in ((8, 0), (7, 2)):  # two for each that runs, and four
        taken = scheduler.memory.allocate(free - left)
        assert [view.num_shared for view in views_of(scheduler)] == [shared, shared]
        scheduler.memory.release(taken)


def test_a_stream_without_text_plays_what_it_has_before_its_listener_hears_a_gap() -> None:
    scheduler = scheduler_of(frame_s=0.5, chunk_ramp=(2, 4))
    sequence = sequence_of(0, open_input=True)
    scheduler.add(sequence)
    step(scheduler)
    sequence.emitted += [(0,)] * 4
    sequence.audio.num_vocoded, sequence.audio.chunks = 2, [2]
    scheduler.delivered(sequence, 2, now_s=1.0)  # a second of audio
    assert scheduler._view(sequence, 1.7).audio.chunk == 4
    assert scheduler._view(sequence, 1.9).audio.chunk == 2
    sequence.input.is_open = False
    assert scheduler._view(sequence, 1.9).audio.chunk == 4, "its next frame comes soon"
