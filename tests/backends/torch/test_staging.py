"""Staged inputs of captured steps equal the rows and logs, however batches change."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from msgspec.structs import replace

pytest.importorskip("triton")  # the kernels that read it are there on CUDA

from izwi.backends.torch.captured.staging import StagedDraws, StagedPositions, StagedRows
from izwi.model.protocol import UNKNOWN
from izwi.request.request import Request, SamplingParams, TrackParams
from izwi.request.sequence import Sequence
from izwi.runner.batch import row_of
from tests.engine.toy import ToyPrompt
from tests.steps import draws

VOCABULARY = 100
CPU = torch.device("cpu")


def sequence(number: int, penalty: float, min_entries: int) -> Sequence:
    sampling = SamplingParams(0.9, 50, repetition_penalty=penalty)
    request = Request(
        f"{number}",
        "m",
        ToyPrompt((1, 2, 3)),
        sampling,
        seed=number,
        min_entries=min_entries,
        stop_ids=(7, 8),
    )
    return Sequence(request, number)


@pytest.mark.parametrize("seed", range(5))
def test_tables_that_are_there_are_those_of_the_rows(seed: int) -> None:
    """Pages are added, let go of and taken again, in the same lists; rows come, go and move."""
    rng = random.Random(seed)
    staged = StagedPositions(8, num_inputs=1, max_pages=40, device=CPU)
    owners = [[rng.randint(0, 99)] for _ in range(12)]
    for _ in range(60):
        for pages in owners:
            if rng.random() < 0.4:
                pages.append(rng.randint(0, 99))
            if rng.random() < 0.1 or len(pages) > 30:
                pages[:] = [rng.randint(0, 99) for _ in range(rng.randint(1, len(pages)))]
        batch = rng.sample(owners, rng.randint(1, 8)) if rng.random() < 0.5 else owners[:5]
        starts = [rng.randint(0, 99) for _ in batch]
        alone = rng.random() < 0.8
        lengths = [1 if alone or rng.random() < 0.7 else 2 for _ in batch[:4]] + [1] * len(
            batch[4:]
        )
        lengths = [1] * len(batch) if sum(lengths) > 8 else lengths
        runs = zip(starts, lengths, batch, strict=True)
        staged.stage_runs([(start, start + length, pages) for start, length, pages in runs])
        staged.send()
        width, place = int(staged.table_width), 0
        for start, length, pages in zip(starts, lengths, batch, strict=True):
            for position in range(start, start + length):
                assert int(staged.positions[place]) == position
                row = staged.tables[place * width : place * width + len(pages)]
                assert row.tolist() == pages
                place += 1
        assert (staged.positions[place:] == -1).all()


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_runs_are_rows_with_their_positions_and_pages(seed: int, together: bool) -> None:
    rng = random.Random(seed)
    max_runs = 8 if together else None
    staged = StagedPositions(64, num_inputs=1, max_pages=6, device=CPU, max_runs=max_runs)
    assert len(staged.tables) == 6 * (8 if together else 64), "one table for each sequence"
    for _ in range(6):  # what an earlier batch left there does not show
        runs = []
        for _ in range(rng.randint(1, 8)):
            start = rng.randint(0, 30)
            pages = [rng.randint(0, 99) for _ in range(rng.randint(1, 6))]
            runs.append((start, start + rng.choice([1, 1, 1, 4, 7]), pages))
        staged.stage_runs(runs)
        staged.send()
        expected = [position for start, stop, _ in runs for position in range(start, stop)]
        positions = staged.positions.tolist()
        assert positions == expected + [-1] * (64 - len(expected))
        width = int(staged.table_width)
        kept = staged.tables[: len(staged.tables) // width * width].view(-1, width)
        of_rows = staged.runs[: len(expected)].long() if together else range(len(expected))
        tables = kept[of_rows].tolist()
        owners = [pages for start, stop, pages in runs for _ in range(start, stop)]
        assert [row[: len(pages)] for row, pages in zip(tables, owners, strict=True)] == owners
        assert max(map(len, owners)) <= width <= 6


@pytest.mark.parametrize("seed", range(5))
def test_sampling_follows_the_logs_as_they_grow_and_as_batches_change(seed: int) -> None:
    rng = random.Random(seed)
    staged = StagedDraws.apart(8, {0: VOCABULARY}, CPU)
    crowd = [sequence(number, rng.choice([1.0, 1.1]), rng.randint(0, 25)) for number in range(10)]
    batch = crowd[:5]
    for _ in range(40):
        if rng.random() < 0.2:
            batch = rng.sample(crowd, rng.randint(1, 8))
        for one in batch:
            one.emitted += [(rng.randrange(VOCABULARY), 0)] * rng.choice([0, 1, 1, 1, 2])
            one.pending.entries = rng.randint(0, 1)  # drawn by a step in flight
        staged.stage_sampling(draws(batch))
        staged.send()
        sampling, count = staged.sampling(None), len(batch)
        steps = [one.num_entries for one in batch]
        assert sampling.step[:count].tolist() == steps
        least = [one.request.min_entries for one in batch]
        allowed = [step >= few for step, few in zip(steps, least, strict=True)]
        assert sampling.stop_allowed[:count].tolist() == allowed
        assert sampling.seed[:count].tolist() == [one.request.seed for one in batch]
        bits = np.unpackbits(sampling.seen.numpy().view(np.uint8), axis=1, bitorder="little")
        for place, one in enumerate(batch):
            if one.request.sampling.repetition_penalty != 1.0:
                seen = set(np.flatnonzero(bits[place]).tolist())
                assert seen == {entry[0] for entry in one.emitted}


def test_places_without_a_row_have_ids_that_can_be_looked_up() -> None:
    staged = StagedPositions(4, num_inputs=2, max_pages=1, device=CPU)
    one = sequence(0, 1.0, 0)
    one.kv.pages = [0]
    unknown = np.full((2, 2), UNKNOWN)
    staged.stage_rows(unknown, [row_of(one, 0, 2)])
    staged.stage_rows(unknown[:1], [row_of(one, 0, 1)])
    staged.send()
    assert staged.inputs.tolist() == [[UNKNOWN, UNKNOWN], [0, 0], [0, 0], [0, 0]]


def test_inputs_come_from_elsewhere_where_rows_are_embedded() -> None:
    staged = StagedPositions(4, num_inputs=1, max_pages=1, device=CPU)
    one = sequence(0, 1.0, 0)
    one.kv.pages = [0]
    for inputs in (None, np.array([[5]]), None):
        staged.stage_rows(inputs, [row_of(one, 0, 1)])
        staged.send()
        assert staged.embedded.tolist() == [inputs is None]


def test_places_without_a_request_are_drawn_for_without_harm() -> None:
    """A captured step draws for all its places: a penalty of 0 would make infinities of logits."""
    vocabularies = {0: VOCABULARY}
    staged = StagedRows(3, num_inputs=1, max_pages=1, vocabularies=vocabularies, device=CPU)
    assert staged.source.tolist() == [-1, -1, -1]
    assert staged.draws is not None
    sampling = staged.draws.sampling(None)
    assert sampling.first.penalty.tolist() == [1.0] * 3
    assert sampling.rest.penalty.tolist() == [1.0] * 3
    assert staged.draws.place.tolist() == [0, 0, 0]
    assert staged.draws.drawn.tolist() == [-1, -1, -1]
    staged.stage_sources(np.array([2, 0], np.int32))
    staged.draws.stage_places(5, np.array([2, -1], np.int32))
    staged.send()
    assert staged.source.tolist() == [2, 0, -1]
    assert staged.draws.place.tolist() == [5, 6, 0]
    assert staged.draws.drawn.tolist() == [2, -1, -1]
    staged.stage_sources(np.zeros(0, np.int32))
    staged.send()
    assert staged.source.tolist() == [-1, -1, -1]


def test_a_place_has_what_its_request_asks_for_and_nothing_of_the_one_before() -> None:
    def asks(number: int, sampling: SamplingParams, stop_ids: tuple[int, ...]) -> Sequence:
        prompt, seed = ToyPrompt((1,)), -1 - number
        return Sequence(
            Request(f"{number}", "m", prompt, sampling, seed=seed, stop_ids=stop_ids), number
        )

    staged = StagedDraws.apart(2, {0: VOCABULARY}, CPU)
    crowd = [
        asks(0, SamplingParams(0.5, 65, 0.9, 1.5), (7, 8, 9)),
        asks(1, SamplingParams(0.0, 50, 1.0, 1.0), (4,)),
        asks(2, SamplingParams(1.25, 1, 0.5, 1.25, presence_penalty=0.5), ()),
    ]
    for batch in ([0, 1], [2], [1, 0], [2, 1], [0]):
        drawn = [crowd[number] for number in batch]
        staged.stage_sampling(draws(drawn))
        staged.send()
        sampling = staged.sampling(None)
        stop_ids = [[found for found in row if found != -1] for row in sampling.stop_ids.tolist()]
        asked = [one.request for one in drawn]
        count = len(batch)
        assert stop_ids[:count] == [list(one.stop_ids) for one in asked]
        assert sampling.seed.tolist()[:count] == [one.seed for one in asked]
        params = [one.sampling for one in asked]
        first = sampling.first
        scales = [0.0 if one.temperature == 0.0 else one.temperature for one in params]
        assert first.scale.tolist()[:count] == scales
        assert first.top_k.tolist()[:count] == [one.top_k for one in params]
        assert first.top_p.tolist()[:count] == pytest.approx([one.top_p for one in params])
        # where logits are adjusted before, the penalty is among that
        penalties = [1.0 if one.adjusts(0) else one.sampling.repetition_penalty for one in asked]
        assert first.penalty.tolist()[:count] == penalties
        assert staged.few_candidates is (crowd[0] not in drawn)  # of the 65 that it asks for


@pytest.mark.parametrize("seed", range(5))
def test_rows_keep_the_places_that_they_had(seed: int) -> None:
    rng = random.Random(seed)
    staged = StagedDraws.apart(8, {0: VOCABULARY}, CPU)
    crowd = [sequence(number, 1.0, 0) for number in range(12)]
    before: list[Sequence] = []
    for _ in range(40):
        batch = rng.sample(crowd, rng.randint(1, 8))
        rows = [row_of(one, 3, 4) for one in batch]
        placed = [crowd[row.key] for row in staged.in_place(rows)]
        assert sorted(one.arrival for one in placed) == sorted(one.arrival for one in batch)
        for place, one in enumerate(before[: len(batch)]):
            if any(one is other for other in batch):
                assert placed[place] is one
        staged.stage_sampling(draws(placed))
        before = placed


@pytest.mark.parametrize("track", [0, 1])
def test_emitted_ids_are_those_of_the_track_that_is_drawn(track: int) -> None:
    """Whether the log grew by one entry since, or by several."""
    one = sequence(0, 1.5, 0)
    one.emitted = [(1,), (2,), (3, 0), (4, 0), (5,)]
    tracks = [0, 0, 1, 1, 0]
    params = TrackParams(one.request.sampling, one.request.sampling)
    request = replace(one.request, other_tracks=(params,))
    (row,) = draws([one])
    row = replace(row, request=request, tracks=tracks, track=track)
    for lengths in ((0, 1, 2, 3, 4, 5), (0, 2, 5)):
        staged = StagedDraws.apart(1, {0: VOCABULARY, 1: VOCABULARY}, CPU)
        for known in lengths:
            staged.stage_sampling([replace(row, num_known=known, step=known, memo={})])
            staged.send()
            seen = staged.sampling(None).seen.numpy().view(np.uint8)
            bits = np.unpackbits(seen, axis=1, bitorder="little")
            pairs = zip(one.emitted[:known], tracks, strict=False)
            expected = sorted(ids[0] for ids, on in pairs if on == track)
            assert np.flatnonzero(bits[0]).tolist() == expected


def test_a_place_of_another_track_has_what_the_request_asks_for_there() -> None:
    one = sequence(0, 1.0, 0)
    params = TrackParams(SamplingParams(0.5, 7), SamplingParams(0.25, 3), stop_ids=(9,))
    request = replace(one.request, other_tracks=(params,))
    (row,) = draws([one])
    staged = StagedDraws.apart(1, {0: VOCABULARY, 1: VOCABULARY}, CPU)
    for track, top_k, stop_ids in ((0, 50, [7, 8]), (1, 7, [9]), (0, 50, [7, 8])):
        staged.stage_sampling([replace(row, request=request, track=track)])
        staged.send()
        sampling = staged.sampling(None)
        assert sampling.first.top_k.tolist() == [top_k]
        assert [found for found in sampling.stop_ids[0].tolist() if found != -1] == stop_ids
