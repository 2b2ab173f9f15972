"""Change the logits of the rows that ask for it, and leave all others as they are.

Grammar, bias, repetition penalty, presence and frequency penalty, min_p. Order and formulas: vLLM's
`SamplingParams` and its sampler, where the penalties of a row look at what it emitted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from izwi.request import Request, TrackParams
from izwi.runner.grammars import fill_masks
from izwi.sequence import Sequence as RequestSequence


class SamplerState:
    """What the sampler keeps of one sequence's log; rebuilt from it where it is missing."""

    __slots__ = ("_counts", "_num_counted", "_num_seen", "_seen", "_track")

    def __init__(self, track: int = 0) -> None:
        self._track = track
        self._num_seen = self._num_counted = 0
        self._seen: npt.NDArray[np.bool_] | None = None
        self._counts: dict[int, int] = {}

    @staticmethod
    def of(sequence: RequestSequence, track: int = 0) -> SamplerState:
        """Return what is kept of a sequence, of its entries of one track."""
        if sequence.drawing.seen is None:
            sequence.drawing.seen = {}
        states: dict[int, SamplerState] = sequence.drawing.seen
        if track not in states:
            states[track] = SamplerState(track)
        return states[track]

    def _since(self, sequence: RequestSequence, first: int) -> list[tuple[int, ...]]:
        """Entries of the track from place `first` of the log on."""
        if sequence.tracks is None:
            return sequence.emitted[first:]
        pairs = zip(sequence.emitted[first:], sequence.tracks.of[first:], strict=True)
        return [entry for entry, track in pairs if track == self._track]

    def seen(self, sequence: RequestSequence, vocabulary: int) -> npt.NDArray[np.bool_]:
        """(vocabulary,) ids that were emitted in codebook 0; grown a step at a time."""
        if self._seen is None:
            self._seen = np.zeros(vocabulary, dtype=bool)
        for entry in self._since(sequence, self._num_seen):
            self._seen[entry[0]] = True
        self._num_seen = len(sequence.emitted)
        return self._seen

    def counts(self, sequence: RequestSequence) -> dict[int, int]:
        """How often each id was emitted in codebook 0; grown a step at a time."""
        for entry in self._since(sequence, self._num_counted):
            self._counts[entry[0]] = self._counts.get(entry[0], 0) + 1
        self._num_counted = len(sequence.emitted)
        return self._counts


def params_of(sequences: Sequence[RequestSequence], track: int) -> Sequence[Request | TrackParams]:
    """How an entry of a track is drawn for each sequence."""
    if track == 0:  # what most are: no call for each
        return [sequence.request for sequence in sequences]
    return [sequence.request.params(track) for sequence in sequences]


class Adjustments:
    """What the rows of one step ask for."""

    def __init__(
        self,
        sequences: Sequence[RequestSequence],
        suppressed: npt.NDArray[np.bool_] | None,
        track: int = 0,
    ):
        """Collect it.

        Args:
            sequences: One a row, in row order.
            suppressed: (vocabulary,) ids that are never drawn, so that min_p does not look at them.
            track: Of the entries that are drawn.
        """
        self._sequences, self._suppressed, self._track = sequences, suppressed, track
        self._rows = [
            n for n, s in enumerate(sequences) if s.drawing.adjusts and s.request.adjusts(track)
        ]
        self._params = (
            [params.sampling for params in params_of(sequences, track)] if self._rows else []
        )

    def __bool__(self) -> bool:
        return bool(self._rows)

    def apply(self, logits: Tensor) -> Tensor:
        """Return logits, (rows, vocabulary) float32; the rows of others have the same bits.

        Args:
            logits: (rows or more, vocabulary) float32 of codebook 0; not changed.
        """
        places = torch.tensor(self._rows, device=logits.device)
        changed = logits[places]  # (adjusted rows, vocabulary)
        for place, row in enumerate(self._rows):
            self._shift(changed[place], row)
        if self._track == 0:
            self._constrain(changed)
        self._cut(changed)
        return logits.index_copy(0, places, changed)

    def _shift(self, logits: Tensor, row: int) -> None:
        """Add bias and penalties to one row, (vocabulary,), in place."""
        sequence, params = self._sequences[row], self._params[row]
        state = SamplerState.of(sequence, self._track)
        vocabulary, device = logits.shape[0], logits.device
        known = [(index, bias) for index, bias in params.logit_bias if index < vocabulary]
        if known:
            ids, biases = zip(*known, strict=True)
            logits[torch.tensor(ids, device=device)] += torch.tensor(biases, device=device)
        if params.repetition_penalty == 1.0 and not params.counts:
            return
        counts = state.counts(sequence)
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
        """Leave out, in place, what grammars do not allow."""
        known = [self._sequences[row] for row in self._rows]
        states = [(place, s) for place, s in enumerate(known) if s.drawing.grammar is not None]
        followed = [(place, s.drawing.grammar.follow(s.emitted)) for place, s in states]
        begun = [(place, matcher) for place, matcher in followed if matcher is not None]
        if not begun:
            return
        places, matchers = zip(*begun, strict=True)
        masks = torch.from_numpy(fill_masks(matchers, logits.shape[1])).to(logits.device)
        bits = torch.arange(32, dtype=torch.int32, device=logits.device)
        allowed = ((masks[:, :, None] >> bits) & 1).flatten(1)[:, : logits.shape[1]] == 1
        rows = torch.tensor(places, device=logits.device)
        logits[rows] = logits[rows].masked_fill(~allowed, -torch.inf)

    def _cut(self, logits: Tensor) -> None:
        """Leave out, in place, what is too unlikely beside the likeliest.

        p >= min_p * p_max, of probabilities at a temperature, is
        logit >= logit_max + temperature * log(min_p).
        """
        params = [self._params[row] for row in self._rows]
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


Logprobs = float | tuple[float, ...]


def reported_logprobs(logits: Tensor, ids: Tensor, most: int) -> Tensor:
    """Log probabilities of drawn ids, and the likeliest ids with theirs.

    Args:
        logits: (rows, vocabulary), as they were before any draw.
        ids: (rows,) int64 that were drawn.
        most: How many of the likeliest; 0 for none.

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


def logprobs_of(sequence: RequestSequence, reported: float | list[float]) -> Logprobs:
    """What one row of `reported_logprobs` says for a request, which may have asked for less."""
    most = sequence.request.top_logprobs
    if isinstance(reported, float):
        return reported
    return tuple(reported[: 1 + 2 * most]) if most else reported[0]
