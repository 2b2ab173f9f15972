"""Draw ids from logits. The noise of a pick is a pure function of (seed, step, codebook).

So a request draws the same ids alone, in any batch, after a pause or in a replay.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from izwi.model import Pick
from izwi.request import SamplingParams
from izwi.request import Sequence as RequestSequence

_MASK = (1 << 64) - 1
# Logits divided by less than this leave float32.
_GREEDY_BELOW = 1e-5


def uniforms(seeds: Sequence[int], steps: Sequence[int], codebook: int) -> npt.NDArray[np.float64]:
    """Uniform numbers in [0, 1), one a row.

    A counter-based generator: two rounds of the SplitMix64 finaliser (Steele, Lea and Flood,
    2014) over the seed and over the counter (step, codebook).
    """
    seed = np.array([s & _MASK for s in seeds], dtype=np.uint64)
    counter = np.array(steps, dtype=np.uint64) * np.uint64(64) + np.uint64(codebook)
    bits = _mix(_mix(seed + np.uint64(0x9E3779B97F4A7C15)) ^ counter)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class Sampler:
    """Draws for the emitting rows of one step of one model."""

    def __init__(
        self, sequences: Sequence[RequestSequence], suppressed: npt.NDArray[np.bool_] | None
    ):
        """Prepare a step.

        Args:
            sequences: One a row, in row order.
            suppressed: (vocabulary,) ids of codebook 0 that are never drawn, or None. A row's
                stop ids are drawn all the same, once it has its minimum of entries.
        """
        self._sequences = sequences
        self._suppressed = suppressed
        self._seeds = [sequence.request.seed for sequence in sequences]
        self._steps = [len(sequence.emitted) for sequence in sequences]

    @property
    def pick(self) -> Pick:
        """The function that models call: logits (rows, vocabulary), codebook -> ids (rows,)."""
        return self._pick

    def _pick(self, logits: Tensor, codebook: int) -> Tensor:
        logits = logits.float()
        if codebook == 0:
            logits = self.process(logits)
            params = [sequence.request.sampling for sequence in self._sequences]
        else:
            params = [sequence.request.codebook_sampling for sequence in self._sequences]
        if all(_is_greedy(p) for p in params):
            return logits.argmax(-1)
        noise = torch.from_numpy(uniforms(self._seeds, self._steps, codebook))
        # Metal has no float64
        precision = torch.float32 if logits.device.type == "mps" else torch.float64
        return draw(logits, params, noise.to(precision).to(logits.device))

    def process(self, logits: Tensor) -> Tensor:
        """Apply repetition penalty, minimum length and suppression, in the reference's order."""
        vocabulary = logits.shape[-1]
        banned = np.zeros((len(self._sequences), vocabulary), dtype=bool)
        if self._suppressed is not None:
            banned |= self._suppressed
        seen = np.zeros_like(banned)
        penalties = np.ones((len(self._sequences), 1), dtype=np.float32)
        for row, sequence in enumerate(self._sequences):
            request = sequence.request
            stops = list(request.stop_ids)
            banned[row, stops] = len(sequence.emitted) < request.min_entries
            if request.sampling.repetition_penalty != 1.0 and sequence.emitted:
                penalties[row] = request.sampling.repetition_penalty
                seen[row, [entry[0] for entry in sequence.emitted]] = True
        if seen.any():
            penalty = torch.from_numpy(penalties).to(logits.device)
            penalised = torch.where(logits > 0, logits / penalty, logits * penalty)
            logits = torch.where(torch.from_numpy(seen).to(logits.device), penalised, logits)
        if banned.any():
            logits = logits.masked_fill(torch.from_numpy(banned).to(logits.device), -torch.inf)
        return logits


def draw(logits: Tensor, params: Sequence[SamplingParams], noise: Tensor) -> Tensor:
    """Draw one id a row by inverting the distribution at `noise`.

    Args:
        logits: (rows, vocabulary) float32, processed.
        params: One a row; temperature 0, or next to it, takes the largest.
        noise: (rows,) float64 in [0, 1); float32 where the device has no float64.

    Returns:
        (rows,) int64.
    """
    vocabulary = logits.shape[-1]
    keep = [min(p.top_k, vocabulary) if p.top_k > 0 else vocabulary for p in params]
    values, ids = logits.topk(max(keep), dim=-1)  # descending
    greedy = [_is_greedy(p) for p in params]
    device = logits.device
    scale = torch.tensor([1.0 if g else p.temperature for g, p in zip(greedy, params, strict=True)])
    rank = torch.arange(values.shape[-1], device=device)
    values = values / scale.to(device)[:, None]
    values = values.masked_fill(rank >= torch.tensor(keep, device=device)[:, None], -torch.inf)
    weights = torch.softmax(values, dim=-1).to(noise.dtype)
    if any(p.top_p < 1.0 for p in params):
        top_p = torch.tensor([p.top_p for p in params], device=device)[:, None]
        before = weights.cumsum(-1) - weights
        weights = weights.masked_fill((before >= top_p) & (rank > 0), 0.0)
    reached = weights.cumsum(-1)
    target = noise[:, None] * reached[:, -1:]
    place = (reached <= target).sum(-1, keepdim=True)
    last = (weights > 0).sum(-1, keepdim=True) - 1
    place = torch.minimum(place, last)
    place = place.masked_fill(torch.tensor(greedy, device=device)[:, None], 0)
    return ids.gather(-1, place)[:, 0]


def _is_greedy(params: SamplingParams) -> bool:
    return params.temperature < _GREEDY_BELOW
