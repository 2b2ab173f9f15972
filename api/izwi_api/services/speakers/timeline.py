"""From speaker vectors of windows to turns: who speaks when. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from izwi.arrays import Float32, Int64
from izwi_api.services.speakers.clusters import Float64, centroids, cluster, unit
from izwi_api.services.speakers.mixtures import explained, without_mixtures

SAMPLE_RATE = 16_000
WINDOW_S, HOP_S = 1.5, 0.5
# Shorter windows have no reliable vector, so they are extended into the audio around them.
_LEAST_WINDOW_S = 1.0
# Turns are decided for slots of this length.
SLOT_S = 0.1
# A voice with less speech in the whole recording is taken for a piece of another voice.
_LEAST_SPEAKER_S = 1.0
# A stretch of one voice shorter than this inside a region belongs to its neighbour.
_LEAST_STRETCH_S = 0.5


@dataclass(frozen=True, slots=True)
class Turn:
    """A stretch of one speaker. Turns of several speakers may overlap.

    Attributes:
        start: First sample at 16 kHz.
        stop: Sample after the last.
        speaker: Label from 0, in the order in which speakers are first heard.
    """

    start: int
    stop: int
    speaker: int


@dataclass(frozen=True, slots=True)
class Window:
    """A window of speech that a speaker vector is computed of.

    Attributes:
        start: First sample at 16 kHz.
        stop: Sample after the last.
        region: Place of its region of speech.
    """

    start: int
    stop: int
    region: int


def speech_windows(regions: Sequence[tuple[int, int]], num_samples: int) -> list[Window]:
    """Cut regions of speech into windows of 1.5 s every 0.5 s.

    Args:
        regions: Ranges [start, stop) of samples.
        num_samples: Length of the recording.
    """
    size, hop = int(WINDOW_S * SAMPLE_RATE), int(HOP_S * SAMPLE_RATE)
    windows = []
    for number, (start, stop) in enumerate(regions):
        if stop - start <= size:
            windows.append(_extended(start, stop, number, num_samples))
            continue
        starts = list(range(start, stop - size, hop))
        if stop - size - starts[-1] > hop // 2:
            starts.append(stop - size)
        windows += [Window(place, place + size, number) for place in starts]
    return windows


def _extended(start: int, stop: int, region: int, num_samples: int) -> Window:
    missing = max(0, int(_LEAST_WINDOW_S * SAMPLE_RATE) - (stop - start))
    start = max(0, start - missing // 2)
    stop = min(num_samples, stop + missing // 2)
    return Window(start, stop, region)


def label_turns(
    regions: Sequence[tuple[int, int]],
    windows: Sequence[Window],
    vectors: Float32,
    threshold: float,
) -> tuple[list[Turn], Float64]:
    """Decide who speaks when.

    Args:
        regions: Ranges [start, stop) of samples with speech.
        windows: From `speech_windows`.
        vectors: (windows, size), a speaker vector of each.
        threshold: See `cluster`.

    Returns:
        The turns by start, and the vector of each speaker, (speakers, size) of length 1.
    """
    if not windows:
        return [], np.zeros((0, 0))
    labels = window_labels(windows, vectors, threshold)
    found = centroids(vectors, labels)
    return _renumbered(turns_of(regions, windows, vectors, found), found)


def window_labels(windows: Sequence[Window], vectors: Float32, threshold: float) -> Int64:
    """Return the speaker of each window, (windows,) labels from 0.

    Args:
        windows: From `speech_windows`, at least one.
        vectors: (windows, size), a speaker vector of each.
        threshold: See `cluster`.
    """
    labels = _without_rare(vectors, cluster(vectors, threshold), windows)
    return without_mixtures(vectors, labels)


def turns_of(
    regions: Sequence[tuple[int, int]],
    windows: Sequence[Window],
    vectors: Float32,
    found: Float64,
) -> list[Turn]:
    """Return the turns of known speakers by start.

    Args:
        regions: Ranges [start, stop) of samples with speech.
        windows: From `speech_windows`.
        vectors: (windows, size), a speaker vector of each.
        found: (speakers, size) of length 1, the vector of each speaker.
    """
    scores = unit(vectors) @ found.T  # (windows, speakers)
    shared = _shared(unit(vectors), found)
    turns: list[Turn] = []
    for number, region in enumerate(regions):
        inside = [n for n, window in enumerate(windows) if window.region == number]
        taken = [windows[n] for n in inside]
        turns += _region_turns(region, taken, scores[inside], [shared[n] for n in inside])
    return sorted(turns, key=lambda turn: (turn.start, turn.stop))


def _without_rare(vectors: Float32, labels: Int64, windows: Sequence[Window]) -> Int64:
    """Give the windows of speakers that hardly speak to the most similar other speaker."""
    lengths = np.array([window.stop - window.start for window in windows]) / SAMPLE_RATE
    spoken_s = np.bincount(labels, weights=np.minimum(lengths, HOP_S))
    most = spoken_s.max()
    frequent = np.flatnonzero(spoken_s >= min(_LEAST_SPEAKER_S, most))
    directions = centroids(vectors, labels)[frequent]
    scores = unit(vectors) @ directions.T
    nearest = scores.argmax(axis=1)
    kept = np.isin(labels, frequent)
    place = np.searchsorted(frequent, labels)
    result: Int64 = np.where(kept, place.clip(0, len(frequent) - 1), nearest).astype(np.int64)
    return result


def _shared(units: Float64, found: Float64) -> list[tuple[int, int] | None]:
    """Return the two speakers of each window in which both are heard at once; else None."""
    shared: list[tuple[int, int] | None] = []
    for vector in units:
        pair = None
        scores = found @ vector
        if len(found) > 1:
            first, second = np.argsort(-scores)[:2].tolist()
            if explained(vector, found[[first, second]]) is not None:
                pair = first, second
        shared.append(pair)
    return shared


def _region_turns(
    region: tuple[int, int],
    windows: Sequence[Window],
    scores: Float64,
    shared: Sequence[tuple[int, int] | None],
) -> list[Turn]:
    """Return the turns of one region: each slot goes to the speaker of the windows around it."""
    start, stop = region
    slot = int(SLOT_S * SAMPLE_RATE)
    centres = np.arange(start, stop, slot) + slot // 2  # (slots,)
    middles = np.array([(w.start + w.stop) / 2 for w in windows])
    half = WINDOW_S * SAMPLE_RATE / 2
    weights = np.maximum(1.0 - np.abs(centres[:, None] - middles) / half, 1e-3)  # (slots, windows)
    votes = _smoothed((weights @ scores).argmax(axis=1))
    second = np.full(len(votes), -1)
    for place, near in enumerate(weights.argmax(axis=1).tolist()):
        pair = shared[near]
        # a window over a change of speakers has a share of both, too: it needs a neighbour like it
        around = [shared[n] for n in (near - 1, near + 1) if 0 <= n < len(shared)]
        alike = pair is not None and any(other and set(other) == set(pair) for other in around)
        if pair is not None and alike and votes[place] in pair:
            second[place] = pair[0] if votes[place] == pair[1] else pair[1]
    turns = [
        Turn(start + a * slot, min(stop, start + b * slot), speaker)
        for track in (votes, second)
        for a, b, speaker in _runs(track)
        if speaker >= 0
    ]
    return _joined(turns)


def _smoothed(votes: Int64) -> Int64:
    """Give stretches that are too short to the longer neighbour."""
    least = round(_LEAST_STRETCH_S / SLOT_S)
    votes = votes.copy()
    while True:
        runs = _runs(votes)
        short = [n for n, (a, b, _) in enumerate(runs) if b - a < least]
        if len(runs) < 2 or not short:
            return votes
        place = min(short, key=lambda n: runs[n][1] - runs[n][0])
        around = [n for n in (place - 1, place + 1) if 0 <= n < len(runs)]
        longest = max(around, key=lambda n: runs[n][1] - runs[n][0])
        votes[runs[place][0] : runs[place][1]] = runs[longest][2]


def _runs(track: Int64) -> list[tuple[int, int, int]]:
    edges = [0, *(np.flatnonzero(np.diff(track)) + 1).tolist(), len(track)]
    return [(a, b, int(track[a])) for a, b in pairwise(edges) if b > a]


def _joined(turns: Sequence[Turn]) -> list[Turn]:
    """Join turns of one speaker that touch."""
    joined: list[Turn] = []
    for turn in sorted(turns, key=lambda one: (one.speaker, one.start)):
        last = joined[-1] if joined else None
        if last and last.speaker == turn.speaker and turn.start <= last.stop:
            joined[-1] = Turn(last.start, max(last.stop, turn.stop), turn.speaker)
        else:
            joined.append(turn)
    return joined


def _renumbered(turns: Sequence[Turn], found: Float64) -> tuple[list[Turn], Float64]:
    """Number speakers in the order in which they are first heard."""
    order = list(dict.fromkeys(turn.speaker for turn in turns))
    place = {speaker: number for number, speaker in enumerate(order)}
    return [Turn(t.start, t.stop, place[t.speaker]) for t in turns], found[order]
