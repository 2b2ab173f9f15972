"""Drafts change how many steps an answer takes, and nothing else."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from izwi.cache.pages import pages_for
from izwi.request.log import Log as SavedLog
from izwi.request.request import Entries, Reason, Request, SamplingParams
from izwi.scheduler.scheduler import Scheduler
from izwi.scheduler.speculation import Speculation
from izwi.scheduler.work import PlannedRow
from tests.backends.kinds import needs_mlx
from tests.engine.ahead import ahead_of
from tests.engine.toy import STOP, VOCAB, toy_request
from tests.engine.world import PAGE, World, alone
from tests.examples import examples

SAMPLINGS = (
    SamplingParams(),
    SamplingParams(0.9, 20, 0.95, 1.1),
    SamplingParams(1.2, presence_penalty=0.4, frequency_penalty=0.3, logit_bias=((7, 2.0),)),
    SamplingParams(0.7, min_p=0.05, repetition_penalty=1.3),
)
LONGEST = 20 + 2 + 40


def requests_of(count: int, seed: int) -> list[Request]:
    """Texts of all kinds of draws, some with log probabilities, some without a stop id."""
    rng = random.Random(seed)
    made = []
    for n in range(count):
        length, kind = rng.randint(1, 20), SAMPLINGS[n % len(SAMPLINGS)]
        request = toy_request(str(n), length, seed + n, frames=40, audio=n % 3 // 2, model="text")
        stops = rng.choice([(), (STOP,), (STOP, rng.randrange(30))])
        more: dict[str, Any] = {"sampling": kind, "stop_ids": stops, "logprobs": n % 2 == 0}
        made.append(replace(request, **more))
    return made


@contextmanager
def guesses(truth: dict[str, list[list[int]]], seed: int, share: float) -> Iterator[None]:
    """Draft what each request is known to say, of which a share is replaced by something else."""
    rng = random.Random(seed)

    def draft(self: Speculation, row: PlannedRow, most: int, rate: object) -> Entries:
        limit, known = row.sequence.drawing.limit, len(row.sequence.emitted)
        if self._drafting(row) is None or limit is None:
            return ()
        said = truth[row.sequence.request.request_id][known:]
        said = [*said, [STOP], *[[rng.randrange(VOCAB)] for _ in range(6)]]
        count = max(0, min(most, limit - known - 1, rng.randint(0, 9)))
        guessed = [(ids[0],) for ids in said[:count]]
        return tuple((rng.randrange(VOCAB),) if rng.random() < share else g for g in guessed)

    with mock.patch.object(Speculation, "_draft", draft):
        yield


@pytest.mark.slow
@examples(6)
@given(
    seed=st.integers(0, 1000),
    share=st.sampled_from([0.0, 0.2, 1.0]),
    spare_pages=st.sampled_from([0, 3, 24, 90]),
    max_running=st.sampled_from([1, 4, 8]),
    policy=st.sampled_from(["fcfs", "priority", "deadline"]),
    ahead=st.booleans(),
)
def test_whatever_is_guessed_the_answers_are_the_same(
    seed: int, share: float, ahead: bool, spare_pages: int, **settings: Any
) -> None:
    check_answers("torch", seed, share, ahead, spare_pages, **settings)


@pytest.mark.slow
@needs_mlx
@examples(2)
@given(seed=st.integers(0, 1000), share=st.sampled_from([0.0, 0.2]), ahead=st.booleans())
def test_on_mlx_too_the_answers_are_the_same(seed: int, share: float, ahead: bool) -> None:
    check_answers("mlx", seed, share, ahead, 24)


def check_answers(
    backend: str, seed: int, share: float, ahead: bool, spare_pages: int, **settings: Any
) -> None:
    """Run texts with guesses, pauses and aborts, and compare with each alone without guesses."""
    requests, rng = requests_of(6, seed), random.Random(seed)
    single = {one.request_id: alone(one, backend=backend) for one in requests}
    truth = {name: log.entries for name, log in single.items()}
    pages = pages_for(LONGEST + 1, PAGE) + spare_pages
    with (
        guesses(truth, seed, share),
        ahead_of(backend) if ahead else nullcontext(backend) as kind,
    ):
        world = World(pages, kind, speculate="ngram", max_wait_s=1e6, **settings)
        for request in requests:
            world.submit(request)
        for _ in range(40):
            name = rng.choice(list(truth))
            action = rng.choice(["step", "step", "pause", "resume"])
            if action == "step":
                world.step()
            elif name in world.logs and world.logs[name].reason is None:
                getattr(world.engine, action)(name)
        aborted = rng.choice(list(truth))
        if world.logs[aborted].reason is None:
            world.deliver(world.engine.abort(aborted))
        for name in truth:
            if world.logs[name].reason is None:
                world.engine.resume(name)
        world.run()
    world.check_nothing_is_lost()
    for name, log in world.logs.items():
        expected = single[name]
        assert log.error is None
        if log.reason is Reason.ABORTED:
            assert log.entries == expected.entries[: len(log.entries)]
            continue
        assert (log.entries, log.reason) == (expected.entries, expected.reason)
        # as between any two batches: products of other sizes round otherwise
        atol = 1e-5 if backend == "torch" else 1e-4
        np.testing.assert_allclose(log.logprobs, expected.logprobs, rtol=1e-5, atol=atol)


def repeating(**more: Any) -> Request:
    """A text that goes in circles."""
    request = toy_request("r", 9, seed=3, frames=60, model="text")
    return replace(request, stop_ids=(), **more)


def test_a_text_that_repeats_takes_fewer_steps() -> None:
    usual, world = World(), World(speculate="ngram")
    for one in (usual, world):
        one.submit(repeating())
        one.run()
    assert world.logs["r"].entries == usual.logs["r"].entries
    load, steps = world.engine.load["text"], usual.engine.load["text"]["steps"]
    assert load["accepted"] > 20
    assert load["accepted"] <= load["drafted"] < 2 * load["accepted"]
    assert load["steps"] == steps - load["accepted"]
    assert usual.engine.load["text"]["drafted"] == 0


def test_wrong_guesses_leave_no_pages_behind() -> None:
    """Positions that were guessed wrong are given back in the same step, and never published."""
    request = repeating()
    truth = {"r": alone(request).entries}
    published: list[list[int]] = []
    publish = Scheduler._give_back

    def give_back(self: Scheduler, sequence: Any) -> None:
        publish(self, sequence)
        published.append(list(sequence.kv.keys))

    with (
        guesses(truth, 1, 1.0),
        mock.patch.object(Scheduler, "_give_back", give_back),
    ):
        world = World(speculate="ngram")
        world.submit(request)
        for _ in range(30):
            world.step()
            (worker,) = [w for m, w in world.engine._workers.items() if m == "text"]
            (sequence,) = worker.scheduler._running.values()
            assert len(sequence.kv.pages) == pages_for(sequence.kv.num_computed, PAGE)
            assert sequence.kv.num_computed == sequence.num_positions - 1 or not sequence.emitted
        world.engine.pause("r")
        world.engine.resume("r")
        world.run()
    assert world.engine.load["text"]["drafted"] > 20
    assert world.logs["r"].entries == truth["r"]
    keys = ToyKeys(request, truth["r"])
    assert published
    assert all(keys.begin_with(one) for one in published)


class ToyKeys:
    """The content keys of a request and its whole log."""

    def __init__(self, request: Request, entries: list[list[int]]):
        world = World()
        world.submit(request)
        world.run()
        self._request, self._entries = request, entries

    def begin_with(self, keys: list[int]) -> bool:
        from izwi.model.step_batch import Span
        from tests.engine.world import TEXT

        log = [tuple(ids) for ids in self._entries]
        num_prompt = self._request.prompt.num_positions
        stop = num_prompt + len(log)
        span = Span(self._request, num_prompt, 0, stop, log, len(log), (), False, ())
        return TEXT.content_keys(span)[: len(keys)] == keys


def test_an_answer_goes_on_from_its_log() -> None:
    request = repeating(logprobs=True)
    expected = alone(request)
    world = World(speculate="ngram")
    world.submit(request)
    while len(world.logs["r"].entries) < 25:
        world.step()
    begun = world.logs["r"]
    assert world.engine.load["text"]["accepted"] > 0
    saved = SavedLog(
        np.array(begun.entries, np.int64), logprobs=np.array(begun.logprobs, np.float32)
    )
    other = World(speculate="ngram")
    other.logs["r"] = begun
    other.engine.submit(request, saved)
    other.run()
    assert begun.entries == expected.entries
    np.testing.assert_allclose(begun.logprobs, expected.logprobs, atol=1e-5)
    assert other.engine.load["text"]["accepted"] > 0


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 20])
def test_the_limit_of_entries_holds(limit: int) -> None:
    request = repeating(max_entries=limit)
    truth = {"r": alone(repeating()).entries}
    with guesses(truth, 2, 0.0):
        world = World(speculate="ngram")
        world.submit(request)
        world.run()
    assert world.logs["r"].entries == truth["r"][:limit]
    assert world.logs["r"].reason is Reason.LENGTH
