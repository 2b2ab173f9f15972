"""What sampling the next entry needs: the ids emitted so far and the sampling parameters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from izwi.request.request import Request, SamplingParams, TrackParams
from izwi.request.sequence import Sequence as RequestSequence

# Dividing logits by a smaller temperature overflows float32.
_GREEDY_BELOW = 1e-5


class SamplerState:
    """The sampler's state for one sequence: a cache, which can be rebuilt from the log."""

    __slots__ = ("_counts", "_num_counted", "_num_seen", "_seen", "_track")

    def __init__(self, track: int = 0) -> None:
        self._track = track
        self._num_seen = self._num_counted = 0
        self._seen: npt.NDArray[np.bool_] | None = None
        self._counts: dict[int, int] = {}

    @staticmethod
    def of(sequence: RequestSequence, track: int = 0) -> SamplerState:
        """Return a sequence's state for one track; create it if needed."""
        if sequence.drawing.seen is None:
            sequence.drawing.seen = {}
        states: dict[int, SamplerState] = sequence.drawing.seen
        if track not in states:
            states[track] = SamplerState(track)
        return states[track]

    def _since(self, sequence: RequestSequence, first: int) -> list[tuple[int, ...]]:
        """Return the track's entries from index `first` of the log on."""
        if sequence.tracks is None:
            return sequence.emitted[first:]
        pairs = zip(sequence.emitted[first:], sequence.tracks.of[first:], strict=True)
        return [entry for entry, track in pairs if track == self._track]

    def seen(self, sequence: RequestSequence, vocabulary: int) -> npt.NDArray[np.bool_]:
        """Return (vocabulary,) bool: ids emitted in codebook 0. Updated incrementally."""
        if self._seen is None:
            self._seen = np.zeros(vocabulary, dtype=bool)
        for entry in self._since(sequence, self._num_seen):
            self._seen[entry[0]] = True
        self._num_seen = len(sequence.emitted)
        return self._seen

    def counts(self, sequence: RequestSequence) -> dict[int, int]:
        """Return how often each id was emitted in codebook 0. Updated incrementally."""
        for entry in self._since(sequence, self._num_counted):
            self._counts[entry[0]] = self._counts.get(entry[0], 0) + 1
        self._num_counted = len(sequence.emitted)
        return self._counts


def params_of(sequences: Sequence[RequestSequence], track: int) -> Sequence[Request | TrackParams]:
    """Return each sequence's sampling parameters for a track."""
    if track == 0:  # the common case, without a call per sequence
        return [sequence.request for sequence in sequences]
    return [sequence.request.params(track) for sequence in sequences]


def adjusted_rows(sequences: Sequence[RequestSequence], track: int) -> list[int]:
    """Return, in order, the rows whose logits are adjusted before a track is sampled."""
    return [
        row for row, s in enumerate(sequences) if s.drawing.adjusts and s.request.adjusts(track)
    ]


def seen_ids(sequence: RequestSequence, vocabulary: int, track: int = 0) -> npt.NDArray[np.bool_]:
    """Return (vocabulary,) bool: ids that a sequence has emitted in codebook 0."""
    return SamplerState.of(sequence, track).seen(sequence, vocabulary)


def is_greedy(params: SamplingParams) -> bool:
    """Whether sampling is greedy: the most likely id is taken."""
    return params.temperature < _GREEDY_BELOW
