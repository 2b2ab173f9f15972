"""Draw ids from logits in MLX, with the arithmetic and noise of `izwi.backends.torch.sampler`.

Values known on the host (penalties, grammars, stop ids) become one array for each kind of
adjustment, so that a step stays one graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from izwi.backends.mlx.adjust import DrawnAhead, adjusted
from izwi.model.protocol import Pick
from izwi.model.step_batch import Row
from izwi.model.tracks import Track
from izwi.request.request import SamplingParams
from izwi.sampling.draws import AskedLogprobs, Logprobs, StepNoise, is_greedy, params_of

_ALL = 1_000_000_000  # top-k of a row that keeps all: more than any vocabulary has


class MlxSampling:
    """Sampling of one model's entries. Implements `izwi.backends.protocol.Sampling`."""

    def __init__(self, tracks: Sequence[Track], precision: mx.Dtype):
        """Prepare the tracks.

        Args:
            tracks: The model's tracks.
            precision: Dtype of the sums that noise is compared with: float64, or float32 if the
                device has no float64.
        """
        self._tracks, self.precision = tracks, precision
        self._never: dict[tuple[int, tuple[int, ...], bool], npt.NDArray[np.bool_]] = {}

    def for_step(
        self,
        draws: Sequence[Row],
        track: int = 0,
        ahead: Sequence[DrawnAhead] = (),
    ) -> MlxSampler:
        """Prepare a step's draws on a track.

        Args:
            draws: One per row.
            track: The track.
            ahead: Entries of this track that the host does not know yet.
        """
        return MlxSampler(draws, self, track, ahead)

    def suppressed(self, track: int) -> npt.NDArray[np.bool_] | None:
        """Return the ids of codebook 0 that are never drawn, (vocabulary,)."""
        return self._tracks[track].suppressed

    def never(
        self, track: int, stop_ids: tuple[int, ...], *, may_stop: bool
    ) -> npt.NDArray[np.bool_] | None:
        """Return the ids that a row may not draw, (vocabulary,), or None if it may draw all.

        Args:
            track: Track of the entry.
            stop_ids: Ids that may be drawn even if the track suppresses them, or not at all.
            may_stop: Whether they may be drawn.
        """
        suppressed = self.suppressed(track)
        if suppressed is None and may_stop:
            return None
        key = track, stop_ids, may_stop
        if key not in self._never:
            made = np.zeros(self._tracks[track].vocabulary, dtype=bool)
            if suppressed is not None:
                made |= suppressed
            made[list(stop_ids)] = not may_stop
            self._never[key] = made
        return self._never[key]


class MlxSampler:
    """Draws for the emitting rows of one step. Implements `izwi.backends.protocol.StepSampler`."""

    def __init__(
        self,
        draws: Sequence[Row],
        sampling: MlxSampling,
        track: int,
        ahead: Sequence[DrawnAhead],
    ):
        self._draws, self._sampling, self._track = draws, sampling, track
        self._ahead = ahead
        self._params = params_of(draws, track)
        self._noise, self._asked = StepNoise(draws), AskedLogprobs(draws)
        self._logprobs: mx.array | None = None

    @property
    def pick(self) -> Pick:
        """Draw ids: logits (rows, vocabulary), codebook -> ids (rows,). Models call this."""
        return self._pick

    @property
    def reported(self) -> mx.array | None:
        """What `logprobs` copies to the host; None before the draw, or if no row requests it."""
        return self._logprobs

    def logprobs(self) -> dict[int, Logprobs]:
        """Return the log probability (natural) of the id drawn in codebook 0, by row."""
        if self._logprobs is None:
            return {}
        return self._asked.by_row(np.array(self._logprobs).tolist())

    def _pick(self, logits: mx.array, codebook: int) -> mx.array:
        logits = logits.astype(mx.float32)
        ids = self._ids(logits, codebook)
        if codebook == 0 and self._asked.rows:
            rows = mx.array(self._asked.rows)
            self._logprobs = _reported(logits[rows], ids[rows], self._asked.most)
        return ids

    def _ids(self, logits: mx.array, codebook: int) -> mx.array:
        if codebook == 0:
            logits = self.process(logits)
            params = tuple([params.sampling for params in self._params])
        else:
            params = tuple([params.codebook_sampling for params in self._params])
        precision = self._sampling.precision
        table = _table(params, precision)
        if table.all_greedy:
            return mx.argmax(logits, axis=-1).astype(mx.int64)
        noise = mx.array(self._noise.uniform(codebook), dtype=precision)
        return _draw(logits, table, noise)

    def process(self, logits: mx.array) -> mx.array:
        """Apply adjustments, repetition penalty, minimum length and suppression."""
        suppressed = self._sampling.suppressed(self._track)
        logits = adjusted(logits, self._draws, self._track, suppressed, self._ahead)
        masks = [
            self._sampling.never(
                self._track,
                params.stop_ids,
                may_stop=drawn.step >= params.min_entries,
            )
            for drawn, params in zip(self._draws, self._params, strict=True)
        ]
        if all(mask is None for mask in masks):
            return logits
        nothing = np.zeros(logits.shape[-1], dtype=bool)
        # mostly all rows have the same, which is one row
        alike = masks[:1] if all(mask is masks[0] for mask in masks) else masks
        never = mx.array(np.stack([nothing if mask is None else mask for mask in alike]))
        return mx.where(never, mx.array(-np.inf, dtype=mx.float32), logits)


class _Table(NamedTuple):
    """Parameters of the rows of a batch.

    Attributes:
        greedy: (rows, 1) bool.
        scale: (rows, 1) divides the logits.
        keep: (rows, 1) number of most likely ids that are kept.
        top_p: (rows, 1), or None if all rows have 1.
        most: The largest `keep`; above any vocabulary if a row keeps all.
    """

    greedy: mx.array
    scale: mx.array
    keep: mx.array
    top_p: mx.array | None
    most: int
    all_greedy: bool


@lru_cache(maxsize=1024)
def _table(params: tuple[SamplingParams, ...], precision: mx.Dtype) -> _Table:
    greedy = np.array([is_greedy(p) for p in params], dtype=bool)
    scale = [1.0 if g else p.temperature for g, p in zip(greedy, params, strict=True)]
    keep = np.array([p.top_k if p.top_k > 0 else _ALL for p in params], dtype=np.int64)
    limited = any(p.top_p < 1.0 for p in params)
    # as torch has it: a float32, whatever it is compared with
    top_p = np.array([p.top_p for p in params], dtype=np.float32)[:, None]
    return _Table(
        greedy=mx.array(greedy)[:, None],
        scale=mx.array(np.array(scale, dtype=np.float32))[:, None],
        keep=mx.array(keep)[:, None],
        top_p=mx.array(top_p, dtype=precision) if limited else None,
        most=int(keep.max()),
        all_greedy=bool(greedy.all()),
    )


def draw(
    logits: mx.array,
    params: Sequence[SamplingParams],
    noise: npt.NDArray[np.float64],
    precision: mx.Dtype = mx.float64,
) -> mx.array:
    """Draw one id for each row by inverting the distribution at `noise`.

    Args:
        logits: (rows, vocabulary) float32, processed.
        params: Parameters of each row; temperature 0, or nearly 0, takes the largest.
        noise: (rows,) in [0, 1).
        precision: Dtype of the sums that noise is compared with.

    Returns:
        (rows,) int64.
    """
    return _draw(logits, _table(tuple(params), precision), mx.array(noise, dtype=precision))


def _draw(logits: mx.array, table: _Table, noise: mx.array) -> mx.array:
    vocabulary = logits.shape[-1]
    values, ids = _largest(logits, min(table.most, vocabulary))
    rank = mx.arange(values.shape[-1])
    nothing = mx.array(-np.inf, dtype=mx.float32)
    values = mx.where(rank >= table.keep, nothing, values / table.scale)
    weights = mx.softmax(values, axis=-1, precise=True).astype(noise.dtype)
    if table.top_p is not None:
        before = mx.cumsum(weights, axis=-1) - weights
        beyond = (before >= table.top_p) & (rank > 0)
        weights = mx.where(beyond, mx.zeros_like(weights), weights)
    reached = mx.cumsum(weights, axis=-1)
    target = noise[:, None] * reached[:, -1:]
    place = mx.sum(reached <= target, axis=-1, keepdims=True).astype(mx.int64)
    last = mx.sum(weights > 0, axis=-1, keepdims=True).astype(mx.int64) - 1
    place = mx.where(table.greedy, mx.zeros_like(place), mx.minimum(place, last))
    return mx.take_along_axis(ids, place, axis=-1)[:, 0].astype(mx.int64)


def _largest(x: mx.array, count: int) -> tuple[mx.array, mx.array]:
    """Return the largest values of each row, descending, and their indices."""
    if count < x.shape[-1]:
        places = mx.argpartition(-x, kth=count - 1, axis=-1)[:, :count]
        kept = mx.take_along_axis(x, places, axis=-1)
        order = mx.argsort(-kept, axis=-1)
        return mx.take_along_axis(kept, order, axis=-1), mx.take_along_axis(places, order, axis=-1)
    order = mx.argsort(-x, axis=-1)
    return mx.take_along_axis(x, order, axis=-1), order


def _reported(logits: mx.array, ids: mx.array, most: int) -> mx.array:
    """Return log probabilities of drawn and of likely ids; see `reported_logprobs` in torch."""
    likely = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    own = mx.take_along_axis(likely, ids[:, None], axis=-1)
    if not most:
        return own[:, 0]
    values, best = _largest(likely, most)
    pairs = mx.stack([best.astype(mx.float32), values], axis=-1)
    return mx.concatenate([own, mx.flatten(pairs, 1)], axis=-1)
