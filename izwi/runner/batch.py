"""Run batches so that an error affects only the item that caused it."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import TypeVar

Item = TypeVar("Item")
R = TypeVar("R")


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
