"""Batches that may fail: only what is at fault does."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import TypeVar

Item = TypeVar("Item")
R = TypeVar("R")


def run_each(run: Callable[[Seq[Item]], list[R]], batch: Seq[Item]) -> list[R | BaseException]:
    """Run a batch; if it fails, run its items one by one, so that only the culprit fails.

    What a failed batch wrote to pages or state, the single runs write again.
    """
    if not batch:
        return []
    try:
        return list(run(batch))
    except Exception as error:  # the engine must outlive any one request
        if len(batch) == 1:
            return [error]
    return [result for item in batch for result in run_each(run, [item])]
