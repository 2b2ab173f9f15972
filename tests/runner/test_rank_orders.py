"""Orders to other ranks: what is new of each sequence, from which they make the same batches."""

from __future__ import annotations

import dataclasses
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from msgspec.structs import replace

from izwi.model.step_batch import Row, StepBatch
from izwi.request.sequence import Sequence
from izwi.runner import rank_orders
from izwi.runner.batch import row_of
from izwi.runner.rank_orders import CopyPages, OrderDecoder, ReadPages, StepEncoder, WritePages
from izwi.runner.ranks import Followers, RankedPages, RankFailed
from izwi.runner.runner import Runner
from tests.backends.kinds import backend_of
from tests.engine.follower import CONFIG, KINDS, PAGE, run_requests, runner_of
from tests.engine.toy import ToyPrompt, toy_request


def rows_of(batch: StepBatch) -> list[tuple[Any, ...]]:
    """All that a row has, up to what it says is its own."""
    return [
        (
            *(row.request.request_id, row.num_prompt, row.start, row.stop, row.step, row.key),
            *(row.written, row.is_open, row.drawn, row.track, row.adjusts, row.before()),
            list(row.pages[: -(-row.stop // PAGE)]),
            [np.asarray(one).tolist() for one in row.encoded],
        )
        for row in batch.rows
    ]


@pytest.mark.parametrize("most_known", [rank_orders.MOST_KNOWN, 0])
@pytest.mark.parametrize("is_tight", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_a_rank_that_follows_orders_runs_the_same_batches(
    name: str, is_tight: bool, most_known: int
) -> None:
    kind, config = KINDS[name], CONFIG
    if is_tight:  # sequences are preempted, and begin again in other pages
        pages = 11 * runner_of(kind.model()).page_bytes
        config = dataclasses.replace(CONFIG, kv_bytes=pages, host_bytes=0)
    steps: list[tuple[list[bytes], list[tuple[Any, ...]], Any]] = []
    run, encoders = Runner.run, dict[Runner, StepEncoder]()

    def telling(self: Runner, batch: StepBatch) -> Any:
        vocabulary = self._model.tracks[0].vocabulary
        encoder = encoders.setdefault(self, StepEncoder(0, PAGE, vocabulary, self.to_host))
        frames = list(map(bytes, encoder.encode(batch, launched=False)))
        rows = rows_of(batch)
        steps.append((frames, rows, run(self, batch)))
        return steps[-1][2]

    with patch.object(rank_orders, "MOST_KNOWN", most_known):
        with patch.object(Runner, "run", telling):
            run_requests(kind.model(), kind.requests, config)
        follower = runner_of(kind.model(), config)
        decoder = OrderDecoder([kind.prompt], follower.backend.ops.array)
        with follower.backend.running():
            for frames, rows, drawn in steps:
                batch = decoder.batch(decoder.decode(frames))  # type: ignore[arg-type]
                assert rows_of(batch) == rows
                if not is_tight:  # then pages are copied, too, which are other orders
                    assert follower.run(batch) == drawn
    assert sum(len(entries) for _, _, (entries, _) in steps) > 40


def row_at(sequence: Sequence, stop: int) -> Row:
    return row_of(sequence, stop - 1, stop)


def test_an_order_has_only_what_is_new() -> None:
    sequence = Sequence(toy_request("a", 9, 0, 50), 0)
    sequence.kv.pages = list(range(40))
    encoder = StepEncoder(0, PAGE, 16, np.asarray)
    sizes, batches = [], []
    decoder = OrderDecoder([ToyPrompt], np.asarray)
    for step in range(20):
        batch = StepBatch((row_at(sequence, sequence.num_prompt + step),))
        frames = encoder.encode(batch, launched=True)
        sizes.append(sum(map(len, frames)))
        batches.append((batch, decoder.batch(decoder.decode(frames))))  # type: ignore[arg-type]
        sequence.emitted.append((step, 2, 3))
    assert max(sizes[1:]) < 80 < sizes[0]
    for batch, found in batches:  # also those of earlier steps, which may be in flight
        assert rows_of(found) == rows_of(batch)


def test_a_sequence_that_lost_its_pages_and_its_log_is_sent_again() -> None:
    sequence = Sequence(toy_request("a", 9, 0, 50), 0)
    sequence.kv.pages, sequence.emitted = [1, 2, 3], [(1, 1, 1), (2, 2, 2)]
    encoder, decoder = StepEncoder(0, PAGE, 16, np.asarray), OrderDecoder([ToyPrompt], np.asarray)

    def sent() -> tuple[StepBatch, StepBatch]:
        batch = StepBatch((row_at(sequence, sequence.num_positions),))
        order = decoder.decode(encoder.encode(batch, launched=True))
        return batch, decoder.batch(order)  # type: ignore[arg-type]

    first = sent()
    sequence.kv.pages = [7, 8, 9]
    second = sent()
    sequence.emitted = [(4, 4, 4), (5, 5, 5)]
    for batch, found in (first, second, sent()):
        assert rows_of(found) == rows_of(batch)


class Rank:
    """A process with pages of its own, which runs orders when they are sent."""

    def __init__(self, kv: Any):
        self.kv, self.orders = kv, OrderDecoder([ToyPrompt], np.asarray)
        self.seen: list[Any] = []
        self.read: list[list[bytes]] = []

    def send(self, frames: Any) -> None:
        order = self.orders.decode(list(map(bytes, frames)))
        self.seen.append(order)
        match order:
            case CopyPages():
                self.kv.copy(order.moves)
            case ReadPages():
                self.read.append([self.kv.read_pages(order.pages).tobytes()])
            case WritePages():
                self.kv.write_pages(order.pages, order.data[1])

    def replies(self) -> list[list[bytes]]:
        return [self.read.pop()]


def test_pages_of_all_ranks_move_together() -> None:
    backend = backend_of("torch")
    mine, theirs = (runner_of(KINDS["speech"].model()) for _ in range(2))
    chance = np.random.default_rng(1)
    size = mine.page_bytes
    written = chance.integers(0, 255, (3, 2 * size), dtype=np.uint8)
    rank = Rank(theirs.kv)
    followers = Followers(rank, 0, StepEncoder(0, PAGE, 16, backend.ops.numpy))  # type: ignore[arg-type]
    pages = RankedPages(mine.kv, followers, size)
    pages.write_pages([4, 5, 6], written)
    assert mine.kv.read_pages([5]).tolist() == written[1:2, :size].tolist()
    assert theirs.kv.read_pages([5]).tolist() == written[1:2, size:].tolist()
    pages.copy([(5, 9, PAGE)])
    pages.copy([])
    assert pages.read_pages([9, 6]).tolist() == written[[1, 2]].tolist()
    kinds = [type(order).__name__ for order in rank.seen]
    assert kinds == ["WritePages", "CopyPages", "ReadPages"], "nothing for no copies"


class Gone:
    """A process that has ended."""

    def send(self, frames: Any) -> None:
        raise BrokenPipeError

    def replies(self) -> Any:
        raise EOFError


def test_a_step_that_fails_on_one_rank_ends_the_engine() -> None:
    sequence = Sequence(toy_request("a", 9, 0, 50), 0)
    sequence.kv.pages = list(range(40))
    batch = StepBatch((row_at(sequence, 9),))
    gone = Followers(Gone(), 0, StepEncoder(0, PAGE, 16, np.asarray))  # type: ignore[arg-type]
    with pytest.raises(RankFailed), gone.running(batch, launched=False):
        pytest.fail("no rank runs it")
    with pytest.raises(RankFailed):
        gone.replies()
    rank = Rank(None)
    there = Followers(rank, 0, StepEncoder(0, PAGE, 16, np.asarray))  # type: ignore[arg-type]
    with pytest.raises(RankFailed, match="half"), there.running(batch, launched=False):
        raise RuntimeError("half")
    broken = StepBatch((replace(batch.rows[0], allowed=_Refused()),))
    with pytest.raises(TypeError), there.running(broken, launched=False):
        pytest.fail("no rank runs it")
    assert len(rank.seen) == 1, "what cannot be sent is no rank's step"


class _Refused:
    """A grammar that cannot be used."""
