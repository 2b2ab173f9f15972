"""A step is a value: another process can run it, and draws the same entries."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest
from msgspec.structs import replace

from izwi.model.step_batch import Row, StepBatch
from izwi.request.request import Request
from izwi.request.sequence import Sequence
from izwi.runner.batch import row_of
from izwi.runner.runner import Runner
from tests.engine.follower import (
    KINDS,
    Drawn,
    Kind,
    follow,
    messages_of_steps,
    run_requests,
    runner_of,
)


@pytest.mark.parametrize("name", KINDS)
def test_a_follower_of_all_steps_draws_the_same_entries(name: str) -> None:
    kind = KINDS[name]
    with messages_of_steps() as steps:
        run_requests(kind.model(), kind.requests)
    follower = runner_of(kind.model())
    found = follow(follower, kind.prompt, [frames for frames, _ in steps])
    assert found == [drawn for _, drawn in steps]
    entries = [entry for drawn, _ in found for entry in drawn]
    assert len(entries) > 40
    assert any(logprobs for _, logprobs in found)


@pytest.mark.slow
def test_another_process_draws_the_same_entries() -> None:
    kind = KINDS["talk"]
    with messages_of_steps() as steps:
        run_requests(kind.model(), kind.requests)
    sent = msgspec.msgpack.encode([frames for frames, _ in steps])
    command = [sys.executable, "-m", "tests.engine.follower", "talk"]
    done = subprocess.run(command, input=sent, stdout=subprocess.PIPE, check=True)
    found = msgspec.msgpack.decode(done.stdout, type=Drawn)
    assert found == [drawn for _, (drawn, _) in steps]


def test_a_batch_keeps_what_it_was_built_from() -> None:
    """Logs, block tables and written text go on growing; the batch does not see it."""
    request = KINDS["speech"].requests[0]
    sequence = Sequence(request, 0)
    sequence.emitted, sequence.kv.pages = [(1, 2, 3)], [5]
    row = row_of(sequence, sequence.num_prompt, sequence.num_positions)
    sequence.emitted.append((4, 5, 6))
    sequence.kv.pages.append(6)
    sequence.input.written += (7,)
    assert row.logged() == [(1, 2, 3)]
    assert row.entry(1) is None
    assert (row.step, row.is_ahead, row.written) == (1, False, ())
    with pytest.raises(AttributeError):
        row.start = 0  # type: ignore[misc]


def logs(kind: Kind, requests: list[Request]) -> dict[int, list[list[int]]]:
    """Entries of requests by the number of their sequence, drawn one a step."""
    drawn: dict[int, list[list[int]]] = {}
    run = Runner.run

    def telling(self: Runner, batch: StepBatch) -> object:
        result = run(self, batch)
        for row, entry in zip(batch.draws, result[0], strict=True):
            drawn.setdefault(row.key, []).append(entry)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Runner, "run", telling)
        run_requests(kind.model(), requests)
    return drawn


def verifying(request: Request, guessed: list[list[int]], first: int = 0) -> Row:
    """A row that draws an entry at each guess, and at the position before the first one.

    Args:
        request: The request.
        guessed: Its log, as someone guesses it.
        first: Number of entries that are drawn already.
    """
    sequence = Sequence(request, 0)
    sequence.kv.pages = list(range(40))
    row = row_of(sequence, 0, sequence.num_prompt)
    entries = [tuple(entry) for entry in guessed]
    stop = row.num_prompt + len(entries)
    return replace(
        row,
        stop=stop,
        entries=entries,
        num_known=len(entries),
        step=first,
        drawn=tuple(range(row.num_prompt + first - 1, stop)),
    )


@pytest.mark.parametrize("name", ["speech", "text"])
def test_a_row_draws_several_entries_as_if_one_by_one(name: str) -> None:
    """With the noise, the penalties and the least number of entries of each one's own step."""
    kind = KINDS[name]
    requests = [replace(one, prompt=replace(one.prompt, audio=())) for one in kind.requests]
    for number, log in logs(kind, requests).items():
        request, runner = requests[number], runner_of(kind.model())
        with runner.backend.running():
            batch = StepBatch((verifying(request, log[:-1]),))
            assert runner.run(batch)[0] == log, "all at once"
            half = len(log) // 2
            batch = StepBatch((verifying(request, log[:-1], first=half),))
            assert runner.run(batch)[0] == log[half:]


def test_entries_after_a_wrong_guess_follow_the_guess() -> None:
    kind = KINDS["text"]
    request = replace(kind.requests[1], prompt=replace(kind.requests[1].prompt, audio=()))
    log = logs(kind, [request])[0]
    wrong = [*log[:3], [(log[3][0] + 1) % 30], *log[4:-1]]
    runner = runner_of(kind.model())
    with runner.backend.running():
        found, _ = runner.run(StepBatch((verifying(request, wrong),)))
    assert found[:4] == log[:4], "what was drawn before it is right"
    assert found[4:] != log[4:]
    assert len(found) == len(log)
