"""Adjust the logits of rows that request it, by the formulas of `izwi.backends.torch.adjust`.

Each adjustment is an array over all rows that is neutral for the others: x / 1 and x - 0 have the
bits of x.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from izwi.model.step_batch import Row
from izwi.request.request import SamplingParams
from izwi.sampling.draws import SamplerState, adjusted_rows, params_of, seen_ids
from izwi.sampling.grammars import begun_grammars, fill_masks

Float32 = npt.NDArray[np.float32]


class DrawnAhead(NamedTuple):
    """Entries of a step in flight, whose ids only the device has.

    Attributes:
        rows: Rows whose last entries they are.
        ids: (rows,) int64, their ids in codebook 0.
    """

    rows: list[int]
    ids: mx.array


def adjusted(
    logits: mx.array,
    draws: Sequence[Row],
    track: int,
    suppressed: npt.NDArray[np.bool_] | None,
    ahead: Sequence[DrawnAhead] = (),
) -> mx.array:
    """Apply bias, penalties, grammars and min_p to logits of codebook 0.

    Args:
        logits: (rows, vocabulary) float32.
        draws: One per row.
        track: Track of the entries.
        suppressed: (vocabulary,) ids that are never drawn, so that min_p ignores them.
        ahead: Entries of the track that are not emitted yet. Only the repetition penalty counts
            them; rows with others are not launched before (`Request.reads_log`).
    """
    params = [params.sampling for params in params_of(draws, track)]
    asking = adjusted_rows(draws, track)
    shape = len(draws), logits.shape[-1]
    if asking:
        logits = _biased(logits, params, asking)
    penalty = _penalties(draws, params, track, shape)
    if penalty is not None:
        by = mx.array(penalty)
        for rows, ids in ahead:
            own = np.array([params[row].repetition_penalty for row in rows], dtype=np.float32)
            by[mx.array(rows), ids] = mx.array(own)
        logits = mx.where(logits > 0, logits / by, logits * by)
    if not asking:
        return logits
    counts = _counted(draws, params, track, asking, shape)
    if counts is not None:
        logits = logits - mx.array(counts)
    forbidden = _forbidden(draws, asking, shape) if track == 0 else None
    if forbidden is not None:
        logits = mx.where(mx.array(forbidden), mx.array(-np.inf, dtype=mx.float32), logits)
    return _cut(logits, params, asking, suppressed)


def _biased(logits: mx.array, params: Sequence[SamplingParams], asking: Sequence[int]) -> mx.array:
    vocabulary = logits.shape[-1]
    known = [
        (row, index, value)
        for row in asking
        for index, value in params[row].logit_bias
        if index < vocabulary
    ]
    if not known:
        return logits
    bias: Float32 = np.zeros(logits.shape, dtype=np.float32)
    for row, index, value in known:
        bias[row, index] = value
    return logits + mx.array(bias)


def _penalties(
    draws: Sequence[Row],
    params: Sequence[SamplingParams],
    track: int,
    shape: tuple[int, int],
) -> Float32 | None:
    """Return divisors of the logits of emitted ids, (rows, vocabulary); None if no row has any."""
    if all(p.repetition_penalty == 1.0 for p in params):
        return None
    penalties: Float32 = np.ones(shape, dtype=np.float32)
    for row, (drawn, p) in enumerate(zip(draws, params, strict=True)):
        if p.repetition_penalty != 1.0:
            penalties[row, seen_ids(drawn, shape[1], track)] = p.repetition_penalty
    return penalties


def _counted(
    draws: Sequence[Row],
    params: Sequence[SamplingParams],
    track: int,
    asking: Sequence[int],
    shape: tuple[int, int],
) -> Float32 | None:
    """Return presence and frequency penalties to subtract; None if no row has any."""
    rows = [row for row in asking if params[row].counts]
    if not rows:
        return None
    taken: Float32 = np.zeros(shape, dtype=np.float32)
    for row in rows:
        p, counts = params[row], SamplerState.for_draw(draws[row], track).counts(draws[row])
        often = np.array(list(counts.values()), dtype=np.float32)
        taken[row, list(counts)] = p.presence_penalty + p.frequency_penalty * often
    return taken


def _forbidden(
    draws: Sequence[Row], asking: Sequence[int], shape: tuple[int, int]
) -> npt.NDArray[np.bool_] | None:
    """Return the ids that grammars forbid; None if no grammar has begun."""
    begun = begun_grammars([draws[row] for row in asking])
    if not begun:
        return None
    words = np.ascontiguousarray(fill_masks(list(begun.values()), shape[1]))
    allowed = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")[:, : shape[1]]
    forbidden = np.zeros(shape, dtype=bool)
    forbidden[[asking[place] for place in begun]] = allowed == 0
    return forbidden


def _cut(
    logits: mx.array,
    params: Sequence[SamplingParams],
    asking: Sequence[int],
    suppressed: npt.NDArray[np.bool_] | None,
) -> mx.array:
    """Remove ids that are too unlikely relative to the most likely one."""
    if not any(params[row].min_p > 0.0 for row in asking):
        return logits
    below: Float32 = np.full((len(params), 1), -np.inf, dtype=np.float32)
    for row in asking:
        if params[row].min_p > 0.0:
            below[row] = params[row].temperature * math.log(params[row].min_p)
    nothing = mx.array(-np.inf, dtype=mx.float32)
    looked_at = logits if suppressed is None else mx.where(mx.array(suppressed), nothing, logits)
    least = mx.max(looked_at, axis=-1, keepdims=True) + mx.array(below)
    return mx.where(logits < least, nothing, logits)
