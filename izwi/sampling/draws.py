"""The draws of one step: their parameters, noise and earlier entries, and asked log probabilities.

Noise is a function of (seed, step, codebook), equal on all backends; all else is read from rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from izwi.model.step_batch import Row
from izwi.request.request import Request, SamplingParams, TrackParams

# Numbers for this many codebooks are computed at once.
_BLOCK = 16
_MASK = (1 << 64) - 1


class StepNoise:
    """Random numbers for the rows of one step.

    Args:
        draws: One per row.
    """

    def __init__(self, draws: Sequence[Row]):
        self._draws = draws
        self._blocks: dict[int, npt.NDArray[np.float64]] = {}

    def uniform(self, codebook: int) -> npt.NDArray[np.float64]:
        """Return uniform numbers in [0, 1), (rows,)."""
        first = codebook - codebook % _BLOCK
        if first not in self._blocks:
            seeds = [draw.request.seed for draw in self._draws]
            steps = [draw.step for draw in self._draws]
            block = np.arange(first, first + _BLOCK)
            self._blocks[first] = np.ascontiguousarray(uniforms(seeds, steps, block).T)
        noise: npt.NDArray[np.float64] = self._blocks[first][codebook - first]
        return noise


def uniforms(
    seeds: Sequence[int], steps: Sequence[int], codebook: int | npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Return uniform numbers in [0, 1): (rows,), or (rows, codebooks) for an array of codebooks.

    A counter-based generator: two rounds of the SplitMix64 finaliser (Steele, Lea and Flood,
    2014) over the seed and over the counter (step, codebook).
    """
    seed = np.array([s & _MASK for s in seeds], dtype=np.uint64)
    counter = np.array(steps, dtype=np.uint64) * np.uint64(64)
    if isinstance(codebook, np.ndarray):
        seed, counter = seed[:, None], counter[:, None] + codebook.astype(np.uint64)
    else:
        counter = counter + np.uint64(codebook)
    bits = _mix(_mix(seed + np.uint64(0x9E3779B97F4A7C15)) ^ counter)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


# Dividing logits by a smaller temperature overflows float32.
_GREEDY_BELOW = 1e-5


class SamplerState:
    """What a sampler derived from one log: a cache, which is rebuilt from the log if it is lost."""

    __slots__ = ("_counts", "_num_counted", "_num_seen", "_seen", "_track")

    def __init__(self, track: int = 0) -> None:
        self._track = track
        self._num_seen = self._num_counted = 0
        self._seen: npt.NDArray[np.bool_] | None = None
        self._counts: dict[int, int] = {}

    @staticmethod
    def for_draw(draw: Row, track: int = 0) -> SamplerState:
        """Return the state of a draw's log for one track; create it if needed."""
        state: SamplerState | None = draw.memo.get(track)
        if state is None:
            state = draw.memo[track] = SamplerState(track)
        return state

    def _since(self, draw: Row, first: int) -> list[tuple[int, ...]]:
        """Return the track's known entries from index `first` of the log on."""
        entries, tracks = draw.entries[first : draw.num_known], draw.tracks
        if tracks is None:
            return entries
        pairs = zip(entries, tracks[first : draw.num_known], strict=True)
        return [entry for entry, track in pairs if track == self._track]

    def seen(self, draw: Row, vocabulary: int) -> npt.NDArray[np.bool_]:
        """Return (vocabulary,) bool: ids emitted in codebook 0. Updated incrementally."""
        if self._seen is None:
            self._seen = np.zeros(vocabulary, dtype=bool)
        for entry in self._since(draw, self._num_seen):
            self._seen[entry[0]] = True
        self._num_seen = draw.num_known
        return self._seen

    def counts(self, draw: Row) -> dict[int, int]:
        """Return how often each id was emitted in codebook 0. Updated incrementally."""
        for entry in self._since(draw, self._num_counted):
            self._counts[entry[0]] = self._counts.get(entry[0], 0) + 1
        self._num_counted = draw.num_known
        return self._counts


def params_of(draws: Sequence[Row], track: int) -> Sequence[Request | TrackParams]:
    """Return each draw's sampling parameters on a track."""
    if track == 0:  # the common case, without a call per row
        return [draw.request for draw in draws]
    return [draw.request.params(track) for draw in draws]


def adjusted_rows(draws: Sequence[Row], track: int) -> list[int]:
    """Return, in order, the rows whose logits are adjusted before a track is sampled."""
    return [n for n, draw in enumerate(draws) if draw.adjusts and draw.request.adjusts(track)]


def seen_ids(draw: Row, vocabulary: int, track: int = 0) -> npt.NDArray[np.bool_]:
    """Return (vocabulary,) bool: ids that a request has emitted in codebook 0."""
    return SamplerState.for_draw(draw, track).seen(draw, vocabulary)


def is_greedy(params: SamplingParams) -> bool:
    """Whether sampling is greedy: the most likely id is taken."""
    return params.temperature < _GREEDY_BELOW


Logprobs = float | tuple[float, ...]


class AskedLogprobs:
    """The rows of one step that request log probabilities, and how many top ids they request.

    Attributes:
        rows: Rows that request log probabilities.
        most: Maximum number of top ids that any row requests; 0 for none.
    """

    def __init__(self, draws: Sequence[Row]):
        self._draws = draws
        self.rows = [n for n, draw in enumerate(draws) if draw.request.logprobs]
        self.most = max((draws[n].request.top_logprobs for n in self.rows), default=0)

    def by_row(self, reported: Iterable[float | list[float]]) -> dict[int, Logprobs]:
        """Return log probabilities by row, from those reported for `rows` in order."""
        pairs = zip(self.rows, reported, strict=True)
        return {row: logprobs_of(self._draws[row].request, values) for row, values in pairs}


def logprobs_of(request: Request, reported: float | list[float]) -> Logprobs:
    """Convert one row of `reported_logprobs`; keep only as many top ids as the request wants."""
    most = request.top_logprobs
    if isinstance(reported, float):
        return reported
    return tuple(reported[: 1 + 2 * most]) if most else reported[0]
