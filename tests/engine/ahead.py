"""A device on paper that is one step ahead of the host: what it drew is told a step later."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import PropertyMock, patch

from izwi.model import Row
from izwi.runner.runner import Drawn, Runner


@contextmanager
def one_step_ahead() -> Iterator[list[int]]:
    """Run rows when they are launched, and let the host know when it waits for them.

    Yields:
        Grows by the number of rows of each step whose last entry the host did not know.
    """
    drawn: dict[tuple[int, int], tuple[int, ...]] = {}  # what the device alone knows
    counts: list[int] = []

    def launch(
        self: Runner, rows: Sequence[Row]
    ) -> Callable[[], list[Drawn | BaseException]] | None:
        if not rows or any(row.sequence.marks for row in rows):
            return None
        unknown = [row.sequence for row in rows if row.sequence.coming.entries]
        counts.append(len(unknown))
        for sequence in unknown:
            assert sequence.coming.entries == 1
            sequence.emitted.append(drawn[id(self), sequence.arrival])
            sequence.coming.entries = 0
        results = self.forward(rows)
        for sequence in unknown:
            sequence.emitted.pop()
            sequence.coming.entries = 1
        for row, result in zip(rows, results, strict=True):
            if isinstance(result, Drawn) and result.entries:
                drawn[id(self), row.sequence.arrival] = result.entries[-1]
        return lambda: results

    with (
        patch.object(Runner, "launch", launch),
        patch.object(Runner, "works_beside", PropertyMock(return_value=True)),
    ):
        yield counts
