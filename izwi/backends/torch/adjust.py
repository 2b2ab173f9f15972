"""Adjust the logits of rows that request it, without touching other rows.

Grammar, bias, repetition penalty, presence and frequency penalty, min_p. Order and formulas are
those of vLLM's `SamplingParams` and sampler; penalties count the emitted tokens of a row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from izwi.model.step_batch import Row
from izwi.sampling.draws import SamplerState, adjusted_rows, params_of
from izwi.sampling.grammars import begun_grammars, fill_masks


class Adjustments:
    """The logit adjustments that the rows of one step request.

    Attributes:
        rows: The rows that request any, in order.
    """

    def __init__(
        self,
        draws: Sequence[Row],
        suppressed: npt.NDArray[np.bool_] | None,
        track: int = 0,
    ):
        """Collect the adjustments.

        Args:
            draws: One per row, in row order.
            suppressed: (vocabulary,) bool: ids that are never sampled, which min_p ignores.
            track: Track of the entries to sample.
        """
        self._draws, self._suppressed, self._track = draws, suppressed, track
        self.rows = adjusted_rows(draws, track)
        self._params = [params.sampling for params in params_of(draws, track)] if self.rows else []

    def __bool__(self) -> bool:
        return bool(self.rows)

    def apply(self, logits: Tensor) -> Tensor:
        """Return logits, (rows, vocabulary) float32; rows without adjustments are unchanged.

        Args:
            logits: (rows or more, vocabulary) float32 of codebook 0; not changed.
        """
        places = torch.tensor(self.rows, device=logits.device)
        changed = logits[places]  # (adjusted rows, vocabulary)
        for place, row in enumerate(self.rows):
            self._shift(changed[place], row)
        if self._track == 0:
            self._constrain(changed)
        self._cut(changed)
        return logits.index_copy(0, places, changed)

    def _shift(self, logits: Tensor, row: int) -> None:
        """Add bias and penalties to one row, (vocabulary,), in place."""
        drawn, params = self._draws[row], self._params[row]
        state = SamplerState.for_draw(drawn, self._track)
        vocabulary, device = logits.shape[0], logits.device
        known = [(index, bias) for index, bias in params.logit_bias if index < vocabulary]
        if known:
            ids, biases = zip(*known, strict=True)
            logits[torch.tensor(ids, device=device)] += torch.tensor(biases, device=device)
        if params.repetition_penalty == 1.0 and not params.counts:
            return
        counts = state.counts(drawn)
        if not counts:
            return
        ids_seen = torch.tensor(list(counts), device=device)
        values, penalty = logits[ids_seen], params.repetition_penalty
        if penalty != 1.0:
            values = torch.where(values > 0, values / penalty, values * penalty)
        often = torch.tensor(list(counts.values()), device=device)
        values = values - (params.presence_penalty + params.frequency_penalty * often)
        logits[ids_seen] = values

    def _constrain(self, logits: Tensor) -> None:
        """Mask, in place, ids that grammars do not allow."""
        begun = begun_grammars([self._draws[row] for row in self.rows])
        if not begun:
            return
        filled = fill_masks(list(begun.values()), logits.shape[1])
        masks = torch.from_numpy(filled).to(logits.device)
        bits = torch.arange(32, dtype=torch.int32, device=logits.device)
        allowed = ((masks[:, :, None] >> bits) & 1).flatten(1)[:, : logits.shape[1]] == 1
        rows = torch.tensor(list(begun), device=logits.device)
        logits[rows] = logits[rows].masked_fill(~allowed, -torch.inf)

    def _cut(self, logits: Tensor) -> None:
        """Mask, in place, ids below min_p.

        p >= min_p * p_max, for probabilities at a temperature, is equivalent to
        logit >= logit_max + temperature * log(min_p).
        """
        params = [self._params[row] for row in self.rows]
        if not any(p.min_p > 0.0 for p in params):
            return
        below = [p.temperature * math.log(p.min_p) if p.min_p > 0.0 else -math.inf for p in params]
        allowed = logits
        if self._suppressed is not None:
            mask = torch.from_numpy(self._suppressed).to(logits.device)
            allowed = logits.masked_fill(mask, -torch.inf)
        least = allowed.amax(-1, keepdim=True)
        least = least + torch.tensor(below, device=logits.device)[:, None]
        logits.masked_fill_(logits < least, -torch.inf)


def reported_logprobs(logits: Tensor, ids: Tensor, most: int) -> Tensor:
    """Return log probabilities of the sampled ids, and the top ids with theirs.

    Args:
        logits: (rows, vocabulary), the raw logits.
        ids: (rows,) int64, the sampled ids.
        most: Number of top ids; 0 for none.

    Returns:
        (rows,) float32 where `most` is 0; else (rows, 1 + 2 most) float32 as `Chunk.logprobs`.
    """
    likely = torch.log_softmax(logits.float(), dim=-1)
    own = likely.gather(-1, ids[:, None])
    if not most:
        return own[:, 0]
    values, best = likely.topk(most, dim=-1)
    pairs = torch.stack([best.float(), values], dim=-1).flatten(1)
    return torch.cat([own, pairs], dim=-1)
