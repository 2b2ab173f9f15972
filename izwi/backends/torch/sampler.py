"""Sample ids from logits. The noise is a pure function of (seed, step, codebook).

So a request gets the same ids alone, in any batch, after a preemption, or in a replay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from izwi.backends.torch.adjust import Adjustments, reported_logprobs
from izwi.model.protocol import Pick
from izwi.model.step_batch import Row
from izwi.model.tracks import Track
from izwi.request.request import SamplingParams
from izwi.sampling.draws import (
    AskedLogprobs,
    Logprobs,
    StepNoise,
    adjusted_rows,
    is_greedy,
    params_of,
    seen_ids,
)

_ALL = 1_000_000_000  # top-k of a row that keeps all: more than any vocabulary has


@dataclass(frozen=True, slots=True, eq=False)
class Suppressed:
    """Ids of codebook 0 that are never sampled.

    Attributes:
        ids: (vocabulary,) bool on the host.
        mask: The same on the device.
    """

    ids: npt.NDArray[np.bool_]
    mask: Tensor

    @staticmethod
    def on(device: torch.device, ids: npt.NDArray[np.bool_] | None) -> Suppressed | None:
        """Copy a model's mask to its device, once."""
        return None if ids is None else Suppressed(ids, torch.from_numpy(ids).to(device))


class TorchSampling:
    """The sampling of one model.

    Attributes:
        suppressed: Suppressed ids of each track.
    """

    def __init__(self, tracks: Sequence[Track], device: torch.device):
        self.suppressed = [Suppressed.on(device, track.suppressed) for track in tracks]

    def for_step(self, draws: Sequence[Row], track: int = 0) -> Sampler:
        """Create the sampler of one step and track."""
        return Sampler(draws, self.suppressed[track], track)


class Sampler:
    """Samples ids for the emitting rows of one step."""

    def __init__(
        self,
        draws: Sequence[Row],
        suppressed: Suppressed | None,
        track: int = 0,
    ):
        """Prepare a step.

        Args:
            draws: One per row, in row order.
            suppressed: Ids that are never sampled, except a row's stop ids once it has its minimum
                number of entries.
            track: Track of the entries to sample.
        """
        self._draws, self._track = draws, track
        self._params = params_of(draws, track)
        self._suppressed = suppressed
        self._noise, self._asked = StepNoise(draws), AskedLogprobs(draws)
        self._adjusted = adjusted_rows(draws, track)
        self._logprobs: Tensor | None = None

    @property
    def pick(self) -> Pick:
        """The function that models call: logits (rows, vocabulary), codebook -> ids (rows,)."""
        return self._pick

    def logprobs(self) -> dict[int, Logprobs]:
        """Return natural log probabilities of the ids sampled in codebook 0, by row.

        They are from the softmax of the raw logits in float32, before penalties, suppression,
        temperature, top-k and top-p. Only rows whose requests want them are included; none before
        `pick` was called. With `top_logprobs`, a value is a row of `Chunk.logprobs`.
        """
        if self._logprobs is None:
            return {}
        return self._asked.by_row(self._logprobs.tolist())

    def _pick(self, logits: Tensor, codebook: int) -> Tensor:
        logits = logits.float()
        ids = self._ids(logits, codebook)
        if codebook == 0 and self._asked.rows:
            rows = torch.tensor(self._asked.rows, device=logits.device)
            self._logprobs = reported_logprobs(logits[rows], ids[rows], self._asked.most)
        return ids

    def _ids(self, logits: Tensor, codebook: int) -> Tensor:
        if codebook == 0:
            logits = self.process(logits)
            params = tuple([params.sampling for params in self._params])
        else:
            params = tuple([params.codebook_sampling for params in self._params])
        table = _table(params, logits.device)
        if table.all_greedy:
            return logits.argmax(-1)
        # Metal has no float64
        precision = torch.float32 if logits.device.type == "mps" else torch.float64
        noise = torch.from_numpy(self._noise.uniform(codebook)).to(precision).to(logits.device)
        return _draw(logits, table, noise)

    def process(self, logits: Tensor) -> Tensor:
        """Apply adjustments, repetition penalty, minimum length and suppression."""
        raw, suppressed = logits, self._suppressed
        if self._adjusted:
            ids = None if suppressed is None else suppressed.ids
            logits = Adjustments(self._draws, ids, self._track).apply(logits)
        penalised = logits = self._penalise(logits)
        if suppressed is not None:
            logits = logits.masked_fill(suppressed.mask, -torch.inf)
        pairs = zip(self._draws, self._params, strict=True)
        for row, (drawn, request) in enumerate(pairs):
            if drawn.step < request.min_entries:
                logits = logits.clone() if logits is raw else logits
                logits[row, list(request.stop_ids)] = -torch.inf
            elif suppressed is not None:
                for stop in request.stop_ids:
                    if suppressed.ids[stop]:
                        logits[row, stop] = penalised[row, stop]
        return logits

    def _penalise(self, logits: Tensor) -> Tensor:
        """Apply the repetition penalty in codebook 0 to rows that request it.

        Skips rows with `Adjustments`, which include the penalty.
        """
        adjusted = set(self._adjusted)
        penalties = np.array(
            [
                1.0 if row in adjusted else params.sampling.repetition_penalty
                for row, params in enumerate(self._params)
            ],
            dtype=np.float32,
        )
        if not (penalties != 1.0).any():
            return logits
        vocabulary = logits.shape[-1]
        nothing = np.zeros(vocabulary, dtype=bool)
        seen = torch.from_numpy(
            np.stack(
                [
                    nothing if penalty == 1.0 else seen_ids(drawn, vocabulary, self._track)
                    for drawn, penalty in zip(self._draws, penalties, strict=True)
                ]
            )
        ).to(logits.device)
        penalty = torch.from_numpy(penalties).to(logits.device)[:, None]
        penalised = torch.where(logits > 0, logits / penalty, logits * penalty)
        return torch.where(seen, penalised, logits)


@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """Parameters of the rows of a batch, on the device.

    Attributes:
        greedy: (rows, 1) bool.
        scale: (rows, 1) divides the logits.
        keep: (rows, 1) top-k: how many of the likeliest ids to keep.
        top_p: (rows, 1), or None if it is 1 for all rows.
        most: The largest `keep`; above any vocabulary if a row keeps all.
    """

    greedy: Tensor
    scale: Tensor
    keep: Tensor
    top_p: Tensor | None
    most: int
    all_greedy: bool


@lru_cache(maxsize=1024)
def _table(params: tuple[SamplingParams, ...], device: torch.device) -> _Table:
    greedy = [is_greedy(p) for p in params]
    scale = [1.0 if g else p.temperature for g, p in zip(greedy, params, strict=True)]
    keep = [p.top_k if p.top_k > 0 else _ALL for p in params]
    limited = any(p.top_p < 1.0 for p in params)
    top_p = torch.tensor([p.top_p for p in params])[:, None].to(device) if limited else None
    return _Table(
        greedy=torch.tensor(greedy)[:, None].to(device),
        scale=torch.tensor(scale)[:, None].to(device),
        keep=torch.tensor(keep)[:, None].to(device),
        top_p=top_p,
        most=max(keep),
        all_greedy=all(greedy),
    )


def draw(logits: Tensor, params: Sequence[SamplingParams], noise: Tensor) -> Tensor:
    """Sample one id per row by inverting the cumulative distribution at `noise`.

    Args:
        logits: (rows, vocabulary) float32, processed.
        params: One per row; a temperature of 0 or close to it takes the largest.
        noise: (rows,) float64 in [0, 1); float32 where the device has no float64.

    Returns:
        (rows,) int64.
    """
    return _draw(logits, _table(tuple(params), logits.device), noise)


def _draw(logits: Tensor, table: _Table, noise: Tensor) -> Tensor:
    vocabulary = logits.shape[-1]
    values, ids = logits.topk(min(table.most, vocabulary), dim=-1)  # descending
    rank = torch.arange(values.shape[-1], device=logits.device)
    values = (values / table.scale).masked_fill(rank >= table.keep, -torch.inf)
    weights = torch.softmax(values, dim=-1).to(noise.dtype)
    if table.top_p is not None:
        before = weights.cumsum(-1) - weights
        weights = weights.masked_fill((before >= table.top_p) & (rank > 0), 0.0)
    reached = weights.cumsum(-1)
    target = noise[:, None] * reached[:, -1:]
    place = (reached <= target).sum(-1, keepdim=True)
    last = (weights > 0).sum(-1, keepdim=True) - 1
    place = torch.minimum(place, last).masked_fill(table.greedy, 0)
    return ids.gather(-1, place)[:, 0]
