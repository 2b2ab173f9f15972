"""Draws follow the reference's processors, and the noise is where it should be."""

from __future__ import annotations

import numpy as np
import torch
from msgspec.structs import replace
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from izwi.request import SamplingParams
from izwi.runner.sampler import Sampler, Suppressed, draw
from izwi.sequence import Sequence
from tests.engine.toy import toy_request

VOCAB, STOP = 50, 49
_BANNED = np.zeros(VOCAB, dtype=bool)
_BANNED[40:49] = True
SUPPRESSED = Suppressed.on(torch.device("cpu"), _BANNED)


def sequence(emitted: list[int], sampling: SamplingParams) -> Sequence:
    request = replace(toy_request("a", 3, seed=1, frames=99), sampling=sampling, stop_ids=(STOP,))
    made = Sequence(request, 0)
    made.emitted = [(token, 0) for token in emitted]
    return made


def reference(logits: torch.Tensor, emitted: list[int], sampling: SamplingParams) -> torch.Tensor:
    """The processed logits of one row by the reference's own classes."""
    processors = LogitsProcessorList(
        [RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)]
    )
    if len(emitted) < 2:
        processors.append(MinNewTokensLengthLogitsProcessor(0, 2, STOP))
    processors.append(SuppressTokensLogitsProcessor(list(range(40, 49))))
    ids = torch.tensor([emitted], dtype=torch.long)
    return processors(ids, logits[None].clone())[0]


def test_processed_logits_equal_the_reference() -> None:
    generator = torch.Generator().manual_seed(0)
    sampling = SamplingParams(0.9, 50, 1.0, 1.3)
    histories = [[], [3], [3, 3, 17], list(range(30))]
    logits = torch.randn(4, VOCAB, generator=generator) * 3
    processed = Sampler([sequence(h, sampling) for h in histories], SUPPRESSED).process(
        logits.clone()
    )
    for row, history in enumerate(histories):
        torch.testing.assert_close(processed[row], reference(logits[row], history, sampling))


def test_draws_follow_temperature_top_k_and_top_p() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(VOCAB, generator=generator) * 2
    for params in (
        SamplingParams(1.0, 0, 1.0),
        SamplingParams(0.7, 10, 1.0),
        SamplingParams(1.3, 0, 0.8),
        SamplingParams(0.9, 20, 0.6),
    ):
        warped = TemperatureLogitsWarper(params.temperature)(None, logits[None].clone())
        if params.top_k:
            warped = TopKLogitsWarper(params.top_k)(None, warped)
        if params.top_p < 1:
            warped = TopPLogitsWarper(params.top_p)(None, warped)
        expected = warped.softmax(-1)[0].double()
        n = 200_000
        noise = (torch.arange(n).double() + 0.5) / n  # every quantile once: no chance involved
        rows = [params] * n
        drawn = draw(logits.expand(n, VOCAB), rows, noise)
        found = torch.bincount(drawn, minlength=VOCAB) / n
        assert (found - expected).abs().max() < 1e-4


def test_rows_of_different_parameters_do_not_mix() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0]]).expand(3, 4)
    params = [SamplingParams(), SamplingParams(1.0, 1), SamplingParams(1.0, 0, 1.0)]
    noise = torch.tensor([0.99, 0.99, 0.9999], dtype=torch.float64)
    assert draw(logits, params, noise).tolist() == [3, 3, 0]


def test_next_to_no_temperature_is_greedy() -> None:
    logits = torch.tensor([[0.0, 3.0, -2.0, 1.0]]).expand(4, 4)
    params = [SamplingParams(t) for t in (1e-300, 1e-40, 1e-9, 1e-5)]
    for noise in (0.0, 0.999):
        noises = torch.full((4,), noise, dtype=torch.float64)
        assert draw(logits, params, noises).tolist() == [1, 1, 1, 1]


def test_greedy_takes_the_largest_after_the_penalty() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, 7], logits[0, 8], logits[0, 45], logits[0, STOP] = 2.0, 1.9, 9.0, 8.0
    sampling = SamplingParams(repetition_penalty=1.2)
    assert Sampler([sequence([], sampling)], SUPPRESSED).pick(logits, 0).tolist() == [7]
    assert Sampler([sequence([7], sampling)], SUPPRESSED).pick(logits, 0).tolist() == [8]
    assert Sampler([sequence([7, 7], sampling)], SUPPRESSED).pick(logits, 0).tolist() == [STOP]


def test_log_probabilities_are_of_the_raw_logits_and_for_those_who_ask() -> None:
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(4, VOCAB, generator=generator) * 3
    logits[2, 45] = 99.0  # suppressed, and still a part of what the model thought
    sampling = SamplingParams(0.9, 5, 0.9, 1.3)
    rows = [sequence([3, 17], sampling) for _ in range(4)]
    for row in (1, 2):
        rows[row].request = replace(rows[row].request, logprobs=True)
    sampler = Sampler(rows, SUPPRESSED)
    assert sampler.logprobs() == {}
    ids = sampler.pick(logits, 0)
    sampler.pick(logits.flip(0), 1)  # another codebook's are not told
    expected = torch.log_softmax(logits, -1)
    assert sampler.logprobs() == {row: expected[row, ids[row]].item() for row in (1, 2)}
    assert sampler.logprobs()[2] < -50
    silent = [sequence([3, 17], sampling) for _ in range(4)]
    plain = Sampler(silent, SUPPRESSED)
    assert plain.pick(logits, 0).tolist() == ids.tolist()
    assert plain.logprobs() == {}
