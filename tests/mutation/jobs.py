"""Several processes, each with a copy of the tree, that take one piece of work after the other."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.mutation.trials import Copy


def in_copies(
    pieces: Sequence[Any], work: Callable[[Copy, Any], Any], *, num_jobs: int, until: float
) -> Iterator[tuple[Any, Any]]:
    """Yield each piece with what its work returned, in the order in which they end.

    Pieces are begun in order, for as long as there is time. The copies are there before.
    """
    if not pieces:
        return
    context = multiprocessing.get_context("fork")
    next_piece = context.Value("i", 0)
    done = context.SimpleQueue()

    def run_pieces(number: int) -> None:
        copy = Copy(number)
        try:
            while time.monotonic() < until:
                with next_piece.get_lock():
                    index = next_piece.value
                    next_piece.value += 1
                if index >= len(pieces):
                    break
                done.put((index, work(copy, pieces[index])))
        finally:
            done.put(None)

    jobs = [
        context.Process(target=run_pieces, args=(n,)) for n in range(min(num_jobs, len(pieces)))
    ]
    for job in jobs:
        job.start()
    running = len(jobs)
    while running:
        found = done.get()
        if found is None:
            running -= 1
        else:
            yield pieces[found[0]], found[1]
    for job in jobs:
        job.join()
