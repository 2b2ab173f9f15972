"""Draws follow the reference's processors, and the noise is where it should be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from izwi.backends.torch.sampler import Sampler, Suppressed, draw
from izwi.model.step_batch import Row
from izwi.request.request import SamplingParams
from izwi.request.sequence import Sequence
from tests.engine.toy import toy_request
from tests.steps import next_draw

VOCAB, STOP = 50, 49
_BANNED = np.zeros(VOCAB, dtype=bool)
_BANNED[40:49] = True
SUPPRESSED = Suppressed.on(torch.device("cpu"), _BANNED)


def transformers() -> Any:
    """Import it late: it takes a second, which the collection of all tests would wait for."""
    import transformers

    return transformers


def sequence(emitted: list[int], sampling: SamplingParams) -> Row:
    request = replace(toy_request("a", 3, seed=1, frames=99), sampling=sampling, stop_ids=(STOP,))
    made = Sequence(request, 0)
    made.emitted = [(token, 0) for token in emitted]
    return next_draw(made)


def reference(logits: torch.Tensor, emitted: list[int], sampling: SamplingParams) -> torch.Tensor:
    """The processed logits of one row by the reference's own classes."""
    processors = transformers().LogitsProcessorList(
        [transformers().RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)]
    )
    if len(emitted) < 2:
        processors.append(transformers().MinNewTokensLengthLogitsProcessor(0, 2, STOP))
    processors.append(transformers().SuppressTokensLogitsProcessor(list(range(40, 49))))
    ids = torch.tensor([emitted], dtype=torch.long)
    return processors(ids, logits[None].clone())[0]


@pytest.mark.parametrize("penalty", [0.7, 1.0, 1.3, 2.0])
def test_processed_logits_equal_the_reference(penalty: float) -> None:
    generator = torch.Generator().manual_seed(0)
    sampling = SamplingParams(0.9, 50, 1.0, penalty)
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
        warped = transformers().TemperatureLogitsWarper(params.temperature)(
            None, logits[None].clone()
        )
        if params.top_k:
            warped = transformers().TopKLogitsWarper(params.top_k)(None, warped)
        if params.top_p < 1:
            warped = transformers().TopPLogitsWarper(params.top_p)(None, warped)
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


def test_log_probabilities_are_of_raw_logits_and_only_on_request() -> None:
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(4, VOCAB, generator=generator) * 3
    logits[2, 45] = 99.0  # suppressed, and still a part of what the model thought
    sampling = SamplingParams(0.9, 5, 0.9, 1.3)
    rows = [sequence([3, 17], sampling) for _ in range(4)]
    for row in (1, 2):
        rows[row] = replace(rows[row], request=replace(rows[row].request, logprobs=True))
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


def adjusted(
    logits: torch.Tensor, histories: list[list[int]], params: list[SamplingParams]
) -> torch.Tensor:
    rows = [sequence(h, p) for h, p in zip(histories, params, strict=True)]
    return Sampler(rows, SUPPRESSED).process(logits.clone())


def test_adjusted_logits_follow_the_formulas() -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(1, VOCAB, generator=generator) * 3
    emitted = [3, 3, 17, 3, 20]
    bias = ((3, 2.5), (9, -100.0), (49, 1.0), (10**6, 5.0))
    params = SamplingParams(
        0.8, 0, 1.0, 1.3, presence_penalty=0.5, frequency_penalty=-0.25, logit_bias=bias
    )
    expected = logits[0].clone()
    for index, value in bias[:3]:
        expected[index] += value
    expected = transformers().RepetitionPenaltyLogitsProcessor(1.3)(
        torch.tensor([emitted]), expected[None]
    )[0]
    counts = torch.bincount(torch.tensor(emitted), minlength=VOCAB)
    expected -= 0.5 * (counts > 0) - 0.25 * counts
    expected[40:49] = -torch.inf
    found = adjusted(logits, [emitted], [params])[0]
    torch.testing.assert_close(found, expected)
    assert adjusted(logits, [[]], [params])[0, 3] == logits[0, 3] + 2.5


def test_min_p_leaves_what_is_likely_enough() -> None:
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(1, VOCAB, generator=generator) * 2
    logits[0, 45] = 50.0  # suppressed: nothing is measured by it
    params = SamplingParams(0.7, 0, 1.0, min_p=0.2)
    warped = logits.clone()
    warped[0, 40:49] = -torch.inf
    warped = transformers().TemperatureLogitsWarper(0.7)(None, warped)
    warped = transformers().MinPLogitsWarper(0.2)(None, warped)
    kept = adjusted(logits, [[1, 2]], [params])[0] > -torch.inf
    assert kept.tolist() == (warped[0] > -torch.inf).tolist()
    assert 1 < kept.sum() < VOCAB / 2


def test_rows_that_ask_for_nothing_keep_their_bits() -> None:
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(3, VOCAB, generator=generator) * 3
    logits[0, 0] = -0.0
    plain = SamplingParams(0.9, 20, 0.9, 1.2)
    history = [[3, 4, 5]] * 3
    alone = adjusted(logits, history, [plain] * 3)
    odd = replace(plain, presence_penalty=1.0, min_p=0.1, logit_bias=((0, 1.0),))
    beside = adjusted(logits, history, [plain, odd, plain])
    for row in (0, 2):
        assert alone[row].view(torch.int32).tolist() == beside[row].view(torch.int32).tolist()
    assert not torch.equal(alone[1], beside[1])


def test_top_logprobs_are_returned_with_the_drawn_entry() -> None:
    generator = torch.Generator().manual_seed(6)
    logits = torch.randn(3, VOCAB, generator=generator) * 3
    rows = [sequence([], SamplingParams()) for _ in range(3)]
    for row, most in ((0, 2), (2, 0)):
        request = replace(rows[row].request, logprobs=True, top_logprobs=most)
        rows[row] = replace(rows[row], request=request)
    sampler = Sampler(rows, None)
    ids = sampler.pick(logits, 0)
    likely = torch.log_softmax(logits, -1)
    values, best = likely[0].topk(2)
    reported = sampler.logprobs()
    expected = (likely[0, ids[0]].item(), *torch.stack([best.float(), values], 1).ravel().tolist())
    assert reported == {0: expected, 2: likely[2, ids[2]].item()}


def inverted(logits: np.ndarray, params: SamplingParams, noise: float) -> int:
    """Draw by the definition, in float64."""
    order = np.argsort(-logits, kind="stable")
    if params.temperature == 0.0:
        return int(order[0])
    kept = order[: params.top_k] if params.top_k else order
    weights = np.exp((logits[kept] - logits[kept[0]]).astype(np.float64) / params.temperature)
    weights /= weights.sum()
    before = weights.cumsum() - weights
    nucleus = max(1, int((before < params.top_p).sum()))
    reached = weights[:nucleus].cumsum()
    return int(kept[np.searchsorted(reached, noise * reached[-1], side="right")])


def test_one_batch_draws_each_row_as_its_own_parameters_say() -> None:
    generator = torch.Generator().manual_seed(3)
    every = [
        SamplingParams(temperature, top_k, top_p)
        for temperature in (0.0, 0.5, 1.0, 2.5)
        for top_k in (0, 1, 2, 7)
        for top_p in (0.0, 0.3, 0.9, 1.0)
    ]
    logits = torch.randn(len(every), VOCAB, generator=generator) * 2
    for noise in (0.0, 0.21, 0.5, 0.83, 1.0 - 1e-12):
        drawn = draw(logits, every, torch.full((len(every),), noise, dtype=torch.float64)).tolist()
        expected = [inverted(row.numpy(), p, noise) for row, p in zip(logits, every, strict=True)]
        assert drawn == expected, noise


def test_processing_leaves_the_raw_logits_as_they_are() -> None:
    raw = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(4))
    before = raw.clone()
    processed = Sampler([sequence([], SamplingParams())], None).process(raw)
    assert processed[0, STOP] == -torch.inf, "its minimum of entries is not there"
    assert torch.equal(raw, before)


class _Quantiles:
    """Noise that a test chooses, in the place of `StepNoise`."""

    def __init__(self, noise: list[float]):
        self._noise = np.array(noise)

    def uniform(self, codebook: int) -> np.ndarray:
        return self._noise


def test_noise_is_compared_in_float64_where_the_device_has_it() -> None:
    sampler = Sampler([sequence([1, 2], SamplingParams(1.0)) for _ in range(2)], None)
    sampler._noise = _Quantiles([0.5 - 2.0**-50, 0.5])  # the same float32
    assert sampler.pick(torch.zeros(2, 2), 1).tolist() == [0, 1]


def test_noise_that_rounds_to_one_draws_the_last_id_that_is_left() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0]]).expand(3, 4)
    params = [SamplingParams(1.0), SamplingParams(1.0, 2), SamplingParams(1.0, 0, 0.9)]
    noise = torch.full((3,), 1.0 - 1e-12, dtype=torch.float64).float()  # a device without float64
    assert draw(logits, params, noise).tolist() == [0, 2, 1]


def test_a_suppressed_stop_id_can_be_drawn_once_there_are_enough_entries() -> None:
    sampling = SamplingParams(repetition_penalty=1.3)
    rows = [sequence(emitted, sampling) for emitted in ([1], [1, 45])]
    rows = [replace(row, request=replace(row.request, stop_ids=(45, STOP))) for row in rows]
    logits = torch.ones(2, VOCAB)
    processed = Sampler(rows, SUPPRESSED).process(logits)
    assert processed[0, [45, STOP, 44]].tolist() == [-torch.inf] * 3
    assert processed[1, [STOP, 44]].tolist() == [1.0, -torch.inf]
    assert processed[1, 45].item() == pytest.approx(1 / 1.3), "it was emitted before"
