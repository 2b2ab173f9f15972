"""What a step in flight is predicted to do, and what remains of that once its results are known."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.simulation.device import SimulatedPrompt
from izwi.engine.model_worker import Launched
from izwi.request.request import Request
from izwi.request.sequence import Pending, Sequence
from izwi.request.track_log import TrackLog, TrackProgress
from izwi.runner.runner import Drawn
from izwi.scheduler.cost import StepWork
from izwi.scheduler.work import PlannedRow, Work


def sequence_of(num_emitted: int = 0, arrival: int = 0) -> Sequence:
    """A prompt of four positions, and entries."""
    made = Sequence(Request(f"{arrival}", "m", SimulatedPrompt(4, 0, arrival)), arrival)
    made.emitted += [(0,)] * num_emitted
    return made


def launched(*rows: PlannedRow, vocode: Any = (), forward: Any = None) -> Launched:
    return Launched(Work(forward=rows, vocode=vocode), {}, rows, forward, 0.0, 0)


def predicted(
    *rows: PlannedRow, limit: int = 99, following: Any = None, vocode: Any = ()
) -> Launched:
    step = launched(*rows, vocode=vocode)
    step.predict(lambda _: limit, following or (lambda _, progress, __: progress))
    return step


def test_a_row_to_the_last_position_adds_an_entry() -> None:
    sequence, prompt = sequence_of(2), sequence_of(arrival=1)
    predicted(PlannedRow(sequence, 5, 6), PlannedRow(prompt, 0, 3))
    assert (sequence.pending, sequence.kv.num_computed) == (Pending(entries=1), 6)
    assert (prompt.pending, prompt.kv.num_computed) == (Pending(), 3)
    predicted(PlannedRow(sequence, 6, 7), PlannedRow(prompt, 3, 4))
    assert sequence.pending.entries == 2
    assert prompt.pending.entries == 1


@pytest.mark.parametrize(("limit", "ends"), [(2, True), (3, True), (4, False)])
def test_the_entry_that_reaches_the_limit_is_the_last(limit: int, ends: bool) -> None:
    sequence = sequence_of(2)
    predicted(PlannedRow(sequence, 5, 6), limit=limit)
    assert sequence.pending.ends is ends


def test_the_last_entry_of_the_tracks_is_the_last() -> None:
    for after, ends in ((None, True), (TrackProgress(0), False)):
        sequence = sequence_of()
        sequence.tracks = TrackLog(TrackProgress(0), 0)
        predicted(PlannedRow(sequence, 0, 4), following=lambda *_, after=after: after)
        assert sequence.pending.ends is ends
        assert sequence.pending.tracks == [0]


def test_audio_is_predicted_if_its_frames_will_exist() -> None:
    whole, short, ended = (sequence_of(3, arrival) for arrival in range(3))
    ended.status.ended = True
    for sequence in (whole, short, ended):
        sequence.audio.num_vocoded = 1
    step = predicted(PlannedRow(whole, 6, 7), vocode=((whole, 3), (short, 3), (ended, 3)))
    assert (whole.pending.frames, whole.pending.chunks) == (3, 1)
    assert (short.pending.frames, short.pending.chunks) == (0, 0)
    assert (ended.pending.frames, ended.pending.chunks) == (2, 1)
    step.reconcile([PlannedRow(whole, 6, 7)], [Drawn(((0,),))])
    for sequence in (whole, short, ended):
        assert sequence.pending == Pending()


def test_frames_that_are_in_flight_are_not_vocoded_twice() -> None:
    sequence = sequence_of(5)
    sequence.pending.frames = 3
    predicted(vocode=((sequence, 3),))
    assert (sequence.pending.frames, sequence.pending.chunks) == (3, 0)
    predicted(vocode=((sequence, 2),))
    assert (sequence.pending.frames, sequence.pending.chunks) == (5, 1)


def test_results_take_the_place_of_what_was_predicted() -> None:
    drew, failed, read = (sequence_of(1, arrival) for arrival in range(3))
    rows = [PlannedRow(drew, 4, 5), PlannedRow(failed, 4, 5), PlannedRow(read, 0, 3)]
    step = predicted(*rows, limit=2)
    for sequence in (drew, failed):
        assert sequence.pending == Pending(entries=1, ends=True)
    step.reconcile(rows, [Drawn(((0,),)), RuntimeError(), Drawn(())])
    for sequence in (drew, failed, read):
        assert sequence.pending == Pending()


def test_a_step_behind_still_ends_the_sequence() -> None:
    sequence = sequence_of(1)
    first = predicted(PlannedRow(sequence, 4, 5), limit=3)
    predicted(PlannedRow(sequence, 5, 6), limit=3)
    assert sequence.pending == Pending(entries=2, ends=True)
    first.reconcile([PlannedRow(sequence, 4, 5)], [Drawn(((0,),))])
    assert sequence.pending == Pending(entries=1, ends=True)


def test_preempted_sequence_is_not_reconciled() -> None:
    kept, lost = sequence_of(3, 0), sequence_of(3, 1)
    step = predicted(PlannedRow(kept, 6, 7), PlannedRow(lost, 6, 7), vocode=((lost, 3),))
    lost.pending = Pending(frames=4, chunks=2, epoch=1)
    assert step.fresh() == [True, False]
    step.reconcile([], [])
    assert lost.pending == Pending(frames=4, chunks=2, epoch=1)


def test_a_step_knows_what_it_runs_and_whether_it_is_done() -> None:
    sequence = sequence_of(1)
    work = Work(encode=((sequence, 0),), vocode=((sequence, 1),))
    rows = [PlannedRow(sequence, 4, 5), PlannedRow(sequence_of(), 0, 3)]
    step = Launched(work, {}, rows, None, 0.0, 0)
    assert step.size == StepWork(decode_rows=1, prefill_tokens=3, encodes=1)
    assert not step.is_done, "it was not launched"
    assert not step.reads_log
    for done in (True, False):
        assert launched(forward=SimpleNamespace(is_done=done)).is_done is done
    sequence.drawing.reads_log = True
    assert launched(*rows).reads_log
