"""The batch of a step: made of its sequences, run as one pass, or item by item if one fails.

No other module reads sequences for a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from typing import TypeVar

from izwi.model.protocol import Model, Pick
from izwi.model.step_batch import Row, Span, StepBatch, places_drawn
from izwi.ops.protocol import Array, Ops
from izwi.request.request import Entries
from izwi.request.sequence import Sequence
from izwi.request.track_log import ONE_TRACK
from izwi.scheduler.work import PlannedRow

Item = TypeVar("Item")
R = TypeVar("R")


def span_of(sequence: Sequence, start: int, stop: int) -> Span:
    """Return positions [start, stop) of a sequence's prompt and log, for its model to read."""
    emitted, source = sequence.emitted, sequence.input
    return Span(
        sequence.request,
        sequence.num_prompt,
        start,
        stop,
        emitted,
        len(emitted),
        source.written,
        source.is_open,
        tuple(sequence.encoded),
    )


def row_of(sequence: Sequence, start: int, stop: int, draft: Entries = ()) -> Row:
    """Return a sequence's row for positions [start, stop).

    Args:
        sequence: The sequence.
        start: First position.
        stop: One past the last.
        draft: Guesses of the entries at the last positions; its log has all before them.

    Raises:
        InvalidRequest: Its grammar cannot be compiled, or exceeds a limit.
    """
    emitted, source, drawing = sequence.emitted, sequence.input, sequence.drawing
    num_prompt, num_known, tracks = sequence.num_prompt, len(emitted), sequence.tracks
    num_entries = num_known + sequence.pending.entries
    drawn: tuple[int, ...] = ()
    if sequence.output_positions:
        drawn = sequence.drawn_before(stop)
    elif draft:
        drawn = tuple(range(stop - len(draft) - 1, stop))
        emitted, num_known = [*emitted, *draft], num_known + len(draft)
    elif stop == num_prompt + num_entries:
        drawn = (stop - 1,)
    # asked of a log with several tracks only, since this runs for every row of every step
    track = sequence.next_track if drawn and tracks is not ONE_TRACK else 0
    grammar = drawing.grammar
    # by position, for the same reason
    return Row(
        sequence.request,
        num_prompt,
        start,
        stop,
        emitted,
        num_known,
        source.written,
        source.is_open,
        tuple(sequence.encoded) if start < num_prompt else (),
        sequence.arrival,
        tracks.of_entries,
        sequence.kv.pages,
        num_entries,
        drawn,
        track,
        drawing.adjusts,
        grammar.follow(emitted) if grammar is not None and drawn and track == 0 else None,
        drawing.memo,
        sequence.adapter,
    )


def batch_of(rows: Iterable[PlannedRow]) -> StepBatch:
    """Return the batch of a step. Raises InvalidRequest as `row_of`."""
    return StepBatch(tuple([row_of(*row) for row in rows]))


def draw(
    model: Model, ops: Ops, batch: StepBatch, hidden: Array, num_drawn: int, pick: Pick
) -> Array:
    """Draw the entries of a batch that has run, which are all on the first track.

    Args:
        model: The model that ran it.
        ops: Its operations.
        batch: What ran.
        hidden: (positions, width) output of `Model.run` for it.
        num_drawn: Number of entries that it draws.
        pick: See `Model.draw`.

    Returns:
        (entries, codebooks) int64, in row order.
    """
    if num_drawn < hidden.shape[0]:  # otherwise all positions give an entry
        hidden = ops.take(hidden, ops.array(places_drawn(batch.rows)))
    return model.draw(hidden, pick)


def run_each(run: Callable[[Seq[Item]], list[R]], batch: Seq[Item]) -> list[R | BaseException]:
    """Run a batch; if it fails, run its items one by one, so that only the faulty one fails.

    The single runs overwrite what the failed batch wrote to pages or state.
    """
    if not batch:
        return []
    try:
        return list(run(batch))
    except Exception as error:  # no request may stop the engine
        if len(batch) == 1:
            return [error]
    return [result for item in batch for result in run_each(run, [item])]
