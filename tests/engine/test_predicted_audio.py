"""What a step in flight is predicted to add to a sequence, and what of that its results take."""

from __future__ import annotations

import numpy as np
import pytest

from izwi.engine.model_worker import Launched
from izwi.request.sequence import Sequence
from izwi.runner.runner import Drawn
from izwi.scheduler.scheduler import next_chunk
from izwi.scheduler.work import PlannedRow, Work
from tests.engine.toy import toy_request

RAMP = (2, 4)
LIMIT = 9


def sequence_of(num_emitted: int, *chunks: int) -> Sequence:
    """A stream of which so many frames were drawn, all of them computed but the last."""
    sequence = Sequence(toy_request("a", 5, seed=1, frames=LIMIT), 0, 0.0)
    for _ in range(num_emitted):
        sequence.emitted.append(np.zeros(2, np.int64))
    sequence.kv.num_computed = max(0, sequence.num_prompt + num_emitted - 1)
    sequence.audio.num_vocoded, sequence.audio.chunks = sum(chunks), list(chunks)
    return sequence


def launched(sequence: Sequence, *, row: bool = True) -> Launched:
    """A step that draws a frame and vocodes the audio that is then due."""
    stop = sequence.num_prompt + len(sequence.emitted) + sequence.pending.entries
    rows = (PlannedRow(sequence, stop - 1, stop),) if row else ()
    chunk = next_chunk(sequence, RAMP)
    step = Launched(Work(forward=rows, vocode=((sequence, chunk),)), {}, rows, None, 0.0, 0)
    step.predict(lambda _: LIMIT, lambda _, progress, __: progress)  # one track
    return step


@pytest.mark.parametrize(
    ("num_emitted", "chunks", "frames"),
    [
        (0, (), 0),  # one frame, and the first chunk has two
        (1, (), 2),
        (4, (2,), 0),  # the second chunk has four
        (5, (2,), 4),
        (LIMIT - 1, (2, 4), 3),  # a rest that is shorter, since no frame follows
    ],
)
def test_audio_that_will_be_due_is_predicted(num_emitted, chunks, frames):
    sequence = sequence_of(num_emitted, *chunks)
    step = launched(sequence)
    pending = sequence.pending
    assert (pending.entries, pending.frames, pending.chunks) == (1, frames, int(frames > 0))
    assert pending.ends == (num_emitted + 1 == LIMIT)
    step.reconcile(step.rows, [Drawn([np.zeros(2, np.int64)])])
    assert (pending.entries, pending.frames, pending.chunks) == (0, 0, 0)


def test_two_steps_in_flight_add_up():
    sequence = sequence_of(1)
    first = launched(sequence)
    second = launched(sequence)
    # the second chunk has four frames, of which one is there
    assert (sequence.pending.frames, sequence.pending.chunks) == (2, 1)
    launched(sequence)
    launched(sequence)
    last = launched(sequence)
    assert (sequence.pending.frames, sequence.pending.chunks) == (6, 2)
    for step in (first, second):
        step.reconcile((), ())
    assert (sequence.pending.frames, sequence.pending.chunks) == (4, 1)
    sequence.pending.epoch += 1  # its pages went, and what was in flight with them
    sequence.pending.frames = 0
    last.reconcile((), ())
    assert sequence.pending.frames == 0
    assert last.fresh() == [False]


def test_an_ended_stream_gets_its_remaining_audio():
    sequence = sequence_of(5, 4)
    launched(sequence, row=False)
    assert sequence.pending.frames == 0
    sequence.status.ended = True
    launched(sequence, row=False)
    assert (sequence.pending.frames, sequence.pending.chunks) == (1, 1)
