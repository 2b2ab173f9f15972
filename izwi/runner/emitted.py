"""What drawing the next entry needs to know of a log: what was emitted, and how to draw."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from izwi.request import Request, SamplingParams, TrackParams
from izwi.sequence import Sequence as RequestSequence

# Logits divided by less than this leave float32.
_GREEDY_BELOW = 1e-5


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


def adjusted_rows(sequences: Sequence[RequestSequence], track: int) -> list[int]:
    """Rows whose logits are changed before an entry of a track is drawn, in order."""
    return [
        row for row, s in enumerate(sequences) if s.drawing.adjusts and s.request.adjusts(track)
    ]


def seen_ids(sequence: RequestSequence, vocabulary: int, track: int = 0) -> npt.NDArray[np.bool_]:
    """Ids that a sequence has emitted in codebook 0; kept with it and grown a step at a time."""
    return SamplerState.of(sequence, track).seen(sequence, vocabulary)


def is_greedy(params: SamplingParams) -> bool:
    """Whether the most likely id is taken."""
    return params.temperature < _GREEDY_BELOW
