"""What sampling the next entry needs: the ids emitted so far and the sampling parameters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from izwi.model.step_batch import Row
from izwi.request.request import Request, SamplingParams, TrackParams

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
