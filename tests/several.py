"""Rows that draw several entries, as a verifier of drafts asks for them, on any backend."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from msgspec.structs import replace

from izwi.model.step_batch import Row, StepBatch
from izwi.request.request import Request
from izwi.request.sequence import Sequence
from izwi.request.track_log import Entry
from izwi.runner.batch import row_of
from izwi.runner.runner import Runner


def row_after(request: Request, number: int, log: Seq[Entry], known: int, first: int) -> Row:
    """A row that draws what follows `known` entries, and before it what follows `first` to that.

    Args:
        request: The request.
        number: Number of its sequence, whose pages are its own.
        log: The entries.
        known: How many of them it has.
        first: The first entry that is drawn.
    """
    sequence = Sequence(request, number)
    sequence.kv.pages = list(range(8 * number, 8 * number + 8))
    row = row_of(sequence, 0, sequence.num_prompt)
    stop = row.num_prompt + known
    return replace(
        row,
        stop=stop,
        entries=list(log[:known]),
        num_known=known,
        step=first,
        drawn=tuple(range(row.num_prompt + first - 1, stop)),
    )


def check_mixed_batch(runner: Runner, requests: Seq[Request], logs: Seq[Seq[Entry]]) -> None:
    """Launch rows that draw several entries beside a decode and a prompt, and rows behind them.

    Args:
        runner: Launches steps.
        requests: Four, of at most 16 positions of prompt, whose sequences no runner knows yet.
        logs: Eight entries of each, as drawn one by one.
    """
    graphs = runner._graphs
    assert graphs is not None
    decode = row_after(requests[2], 2, logs[2], 4, 4)
    runner.run(StepBatch((replace(decode, drawn=(), stop=decode.stop - 1),)))
    batch = StepBatch(
        (
            row_after(requests[0], 0, logs[0], 1, 0),
            replace(decode, start=decode.stop - 1),
            row_after(requests[1], 1, logs[1], 0, 0),
            row_after(requests[3], 3, logs[3], 5, 2),
        )
    )
    assert graphs.takes(batch)
    launched = graphs.launch(batch)
    # before their results are known
    ahead = [
        replace(row, start=row.stop, stop=row.stop + 1, drawn=(row.stop,), step=row.num_known + 1)
        for row in batch.rows
    ]
    following = graphs.launch(StepBatch(tuple(ahead)))
    entries, _ = launched()
    assert list(map(tuple, entries)) == [*logs[0][:2], logs[2][4], logs[1][0], *logs[3][2:6]]
    entries, _ = following()
    assert list(map(tuple, entries)) == [logs[0][2], logs[2][5], logs[1][1], logs[3][6]]
