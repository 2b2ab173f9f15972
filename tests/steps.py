"""Rows and batches of sequences, without an engine."""

from __future__ import annotations

from collections.abc import Iterable

from izwi.model.protocol import Model, Pick
from izwi.model.step_batch import Row, Span, StepBatch
from izwi.ops.protocol import Array, AttentionContext, Ops
from izwi.request.sequence import Sequence
from izwi.runner.batch import draw, row_of, span_of


def batch(*rows: Row) -> StepBatch:
    return StepBatch(rows)


def next_draw(sequence: Sequence) -> Row:
    """The row of the last position, from which the next entry is drawn."""
    return row_of(sequence, sequence.num_positions - 1, sequence.num_positions)


def draws(sequences: Iterable[Sequence]) -> list[Row]:
    return [next_draw(sequence) for sequence in sequences]


def whole_span(sequence: Sequence) -> Span:
    """All positions of prompt and log."""
    return span_of(sequence, 0, sequence.num_positions)


def step(model: Model, ops: Ops, batch: StepBatch, context: AttentionContext, pick: Pick) -> Array:
    """Run a batch as one pass and draw its entries, all on the first track."""
    hidden = model.run(model.embed(batch.rows), context)
    return draw(model, ops, batch, hidden, sum(batch.counts), pick)
