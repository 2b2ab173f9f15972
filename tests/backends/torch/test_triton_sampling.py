"""The kernels draw the same ids as the sampler on the host."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from izwi.backends.torch.sampler import Sampler, Suppressed
from izwi.backends.torch.triton import sampling as triton_sampling
from izwi.backends.torch.triton.sampling import MAX_STOP_IDS, RowSampling, SamplingColumns
from izwi.request.request import Request, SamplingParams
from izwi.request.sequence import Sequence
from izwi.sampling.draws import uniforms
from tests.ops.devices import DEVICE, normal
from tests.steps import draws

VOCABULARY = 90
CPU = torch.device("cpu")
BANNED = np.zeros(VOCABULARY, dtype=bool)
BANNED[70:88] = True
STOPS = (80, 89)  # one that is suppressed for others, and one that is not
PARAMS = [
    SamplingParams(temperature, top_k, top_p, penalty)
    for (temperature, top_k, top_p), penalty in product(
        [
            (0.0, 0, 1.0),
            (1.0, 64, 1.0),
            (0.7, 5, 1.0),
            (1.3, 50, 0.6),
            (0.9, 1, 0.5),
            (2.0, 9, 1.0),
        ],
        [1.0, 1.7],
    )
]
# Enough for what every row does alike. The interpreter takes half a second a row.
FEW = PARAMS[1::4]
UNLIMITED = [SamplingParams(1.1, 0, 1.0, 1.3), SamplingParams(0.8, 0, 0.7), SamplingParams(1.0, 80)]


class NoPrompt:
    num_positions = 1
    encode_inputs: tuple[Any, ...] = ()


def sequences_of(params: list[SamplingParams], vocabulary: int = VOCABULARY) -> list[Sequence]:
    """A row for each, with histories, seeds and minimum lengths that differ."""
    rng = np.random.default_rng(5)
    made = []
    for i, sampling in enumerate(params):
        request = Request(
            str(i),
            "m",
            NoPrompt(),
            sampling=sampling,
            codebook_sampling=params[-1 - i],
            seed=[3, -7, 1 << 62, -(1 << 63)][i % 4] + i,
            min_entries=[0, 4, 8][i % 3],
            stop_ids=STOPS[: 1 + i % 2],
        )
        sequence = Sequence(request, i)
        count = int(rng.integers(0, 7))
        sequence.emitted = [(int(token), 0) for token in rng.integers(0, vocabulary, count)]
        made.append(sequence)
    return made


def columns_of(params: list[SamplingParams]) -> SamplingColumns:
    return SamplingColumns(
        scale=torch.tensor([p.temperature for p in params], device=DEVICE),
        top_k=torch.tensor([p.top_k for p in params], dtype=torch.int32, device=DEVICE),
        top_p=torch.tensor([p.top_p for p in params], device=DEVICE),
        penalty=torch.tensor([p.repetition_penalty for p in params], device=DEVICE),
    )


def rows_of(
    sequences: list[Sequence], banned: np.ndarray[Any, Any] | None, vocabulary: int = VOCABULARY
) -> RowSampling:
    requests = [sequence.request for sequence in sequences]
    stop_ids = torch.full((len(requests), MAX_STOP_IDS), -1, dtype=torch.int32)
    seen = np.zeros((len(requests), -(-vocabulary // 32)), dtype=np.uint32)
    for row, sequence in enumerate(sequences):
        stops = sequence.request.stop_ids
        stop_ids[row, : len(stops)] = torch.tensor(stops)
        for entry in sequence.emitted:
            seen[row, entry[0] // 32] |= np.uint32(1 << entry[0] % 32)
    allowed = [len(s.emitted) >= s.request.min_entries for s in sequences]
    return RowSampling(
        seed=torch.tensor([request.seed for request in requests], device=DEVICE),
        step=torch.tensor([len(sequence.emitted) for sequence in sequences], device=DEVICE),
        first=columns_of([request.sampling for request in requests]),
        rest=columns_of([request.codebook_sampling for request in requests]),
        stop_ids=stop_ids.to(DEVICE),
        stop_allowed=torch.tensor(allowed, dtype=torch.int32, device=DEVICE),
        seen=torch.from_numpy(seen.view(np.int32)).to(DEVICE),
        suppressed=None if banned is None else torch.from_numpy(banned).to(DEVICE),
    )


def check(
    logits: Tensor,
    params: list[SamplingParams],
    codebook: int,
    few_candidates: bool,
    banned: np.ndarray[Any, Any] | None = BANNED,
) -> None:
    vocabulary = logits.shape[1]
    sequences = sequences_of(params, vocabulary)
    rows = rows_of(sequences, banned, vocabulary)
    sampler = Sampler(draws(sequences), Suppressed.on(CPU, banned))
    expected = sampler.pick(logits.cpu(), codebook)
    found = triton_sampling.draw(logits, rows, codebook, few_candidates)
    assert found.dtype == torch.int64
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("suppressed", [True, False])
def test_first_codebook(suppressed: bool) -> None:
    """Penalty, minimum length, stop ids and suppression, with every way to draw."""
    params = PARAMS if suppressed else FEW
    logits = normal(len(params), VOCABULARY, seed=1) * 3
    check(logits, params, 0, True, BANNED if suppressed else None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_other_codebooks(dtype: torch.dtype) -> None:
    # numbers that are apart in bfloat16, as equal ones have no order on the host
    params = PARAMS if dtype == torch.bfloat16 else FEW
    order = torch.stack([torch.randperm(VOCABULARY) for _ in params]) - VOCABULARY // 2
    check((order / 16).to(DEVICE, dtype), params, 7, True)


def test_rows_that_keep_more_than_64() -> None:
    logits = normal(4, VOCABULARY, seed=2) * 2
    check(logits, [*UNLIMITED, PARAMS[0]], 0, False)
    check(logits, [*UNLIMITED, PARAMS[0]], 3, False)


@pytest.mark.parametrize(("few_candidates", "merged"), [(True, 128), (True, 1024), (False, 128)])
def test_large_vocabularies(
    few_candidates: bool, merged: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Candidates of chunks are merged until one program can choose among them."""
    monkeypatch.setattr(triton_sampling, "MAX_VOCABULARY", 64)
    monkeypatch.setattr(triton_sampling, "_CHUNK", 64)
    monkeypatch.setattr(triton_sampling, "_MERGED", merged)
    params = PARAMS[3::5] if few_candidates else [*UNLIMITED, *PARAMS[::4]]
    vocabulary = VOCABULARY if merged > 128 else 3 * VOCABULARY  # merged twice
    banned = np.resize(BANNED, vocabulary)
    logits = normal(len(params), vocabulary, seed=3) * 3
    for codebook in (0, 2):
        check(logits, params, codebook, few_candidates, banned)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("few_candidates", [True, False])
def test_of_equal_logits_the_smaller_id_comes_first(
    dtype: torch.dtype, few_candidates: bool
) -> None:
    """With equal weights the rank that is drawn is the noise times their number."""
    count, codebook = 6, 4
    logits = torch.full((count, VOCABULARY), -1.0, device=DEVICE, dtype=dtype)
    zeros = torch.arange(11, 55, 2)
    logits[:, zeros] = 0.0
    logits[:, zeros[::3]] = -0.0
    sequences = sequences_of([SamplingParams(1.0, len(zeros))] * (count - 1) + [SamplingParams()])
    sequences.reverse()  # `rest` is taken from the other end
    rows = rows_of(sequences, None)
    noise = uniforms(
        [s.request.seed for s in sequences], [len(s.emitted) for s in sequences], codebook
    )
    sampled = np.array([s.request.codebook_sampling.temperature > 0 for s in sequences])
    expected = zeros.numpy()[np.where(sampled, noise * len(zeros), 0).astype(int)]
    assert (
        triton_sampling.draw(logits, rows, codebook, few_candidates).tolist() == expected.tolist()
    )


def test_the_noise_is_that_of_the_host() -> None:
    seeds = [0, 1, -1, 1 << 62, -(1 << 63), (1 << 63) - 1, 123456789]
    steps = [0, 1, 5, 1 << 20, 7, 8, 9]
    found = triton_sampling._uniforms(torch.tensor(seeds), torch.tensor(steps), 13)
    assert found.tolist() == uniforms(seeds, steps, 13).tolist()


def test_entries_in_flight_become_inputs_of_their_rows() -> None:
    last = torch.arange(12, device=DEVICE).view(4, 3)
    source = torch.tensor([2, -1, 0], dtype=torch.int32, device=DEVICE)
    inputs = torch.full((3, 4), 50, device=DEVICE)
    triton_sampling.take_last(last, source, inputs)
    assert inputs.tolist() == [[6, 7, 8, 50], [50] * 4, [0, 1, 2, 50]]


@pytest.mark.parametrize("column", [0, 1])
def test_first_ids_in_flight_are_added_to_those_that_were_emitted(column: int) -> None:
    """One bit each, also the highest of a word; the ids may be a column among others."""
    last = torch.tensor([[31, 64], [5, 0], [40, 33]], device=DEVICE)
    drawn = torch.tensor([0, -1, 2, 0], dtype=torch.int32, device=DEVICE)
    seen = torch.tensor([[1, 0, 0]] * 4, dtype=torch.int32, device=DEVICE)
    triton_sampling.add_last(last[:, column], drawn, seen)
    bits = np.unpackbits(seen.cpu().numpy().view(np.uint8), axis=1, bitorder="little")
    ids = [np.flatnonzero(row).tolist() for row in bits]
    first, third = ((31, 40), (64, 33))[column]
    assert ids == [[0, first], [0], [0, third], [0, first]]
