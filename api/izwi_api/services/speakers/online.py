"""Group speaker vectors by speaker while they come, one stretch of speech after another. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from izwi.arrays import Float32
from izwi_api.services.speakers.clusters import Float64, centroids, unit
from izwi_api.services.speakers.timeline import SAMPLE_RATE, Turn, Window, turns_of, window_labels

# A clip of a known speaker counts as much as this many seconds of the session.
_KNOWN_S = 5.0
# Fewer seconds of an unknown voice have no reliable vector, so they make no new speaker.
_LEAST_NEW_S = 1.0
# A session with more voices gives the others to the most similar one.
MAX_SPEAKERS = 64


@dataclass(slots=True)
class _Voice:
    """A speaker so far: the mean of unit vectors, (size,), and the seconds that it is of."""

    name: str
    mean: Float64
    spoken_s: float
    is_known: bool = False

    def add(self, mean: Float64, spoken_s: float) -> None:
        total_s = self.spoken_s + spoken_s
        self.mean = (self.spoken_s * self.mean + spoken_s * mean) / total_s
        self.spoken_s = total_s


class OnlineSpeakers:
    """Tells the speakers of a session apart, as far as it was heard.

    Windows of one stretch are clustered as those of a file. Each cluster then belongs to the most
    similar speaker before, or is a new one. Speakers that turn out to be one are joined: the later
    name is not used again, but what it was given for keeps it.

    Args:
        threshold: Mean cosine below which two voices are different ones; see `cluster`.
        known: Names and vectors, (size,) each, of speakers with a name.
    """

    def __init__(self, threshold: float, known: Sequence[tuple[str, Float32]] = ()):
        self._threshold = threshold
        self._voices = [_Voice(name, unit(one), _KNOWN_S, True) for name, one in known]
        self._letters = letters_without([name for name, _ in known])

    def add(
        self,
        regions: Sequence[tuple[int, int]],
        windows: Sequence[Window],
        vectors: Float32,
    ) -> list[tuple[Turn, str]]:
        """Return the turns of a stretch of speech by start, each with its speaker's name.

        Args:
            regions: Ranges [start, stop) of samples with speech.
            windows: From `speech_windows`.
            vectors: (windows, size), a speaker vector of each.
        """
        if not windows:
            return []
        labels = window_labels(windows, vectors, self._threshold)
        units = unit(vectors)
        spoken_s = [
            _covered_s(regions, [w for w, one in zip(windows, labels, strict=True) if one == label])
            for label in range(int(labels.max()) + 1)
        ]
        names = [""] * len(spoken_s)
        for label in np.argsort(-np.array(spoken_s), kind="stable").tolist():
            names[label] = self._name_of(units[labels == label].mean(axis=0), spoken_s[label])
        turns = turns_of(regions, windows, vectors, centroids(vectors, labels))
        return [(turn, names[turn.speaker]) for turn in turns]

    def _name_of(self, mean: Float64, spoken_s: float) -> str:
        """Return the name of a cluster's speaker, who is remembered with it."""
        scores = [float(voice.mean @ mean) for voice in self._voices]
        best = int(np.argmax(scores)) if scores else -1
        if scores and scores[best] >= self._threshold:
            self._voices[best].add(mean, spoken_s)
            return self._join(best)
        is_short = spoken_s < _LEAST_NEW_S
        unnamed = [n for n, voice in enumerate(self._voices) if not voice.is_known]
        if unnamed and (is_short or len(self._voices) >= MAX_SPEAKERS):
            return self._voices[max(unnamed, key=lambda n: scores[n])].name
        made = _Voice(next(self._letters), mean, spoken_s)
        self._voices.append(made)
        return made.name

    def _join(self, changed: int) -> str:
        """Join a speaker whose vector changed with one that it is now like; return the name."""
        voice = self._voices[changed]
        for place, other in enumerate(self._voices):
            both_known = voice.is_known and other.is_known
            if other is voice or both_known or float(other.mean @ voice.mean) < self._threshold:
                continue
            first, later = (other, voice) if place < changed else (voice, other)
            first.add(later.mean, later.spoken_s)
            self._voices = [one for one in self._voices if one is not later]
            return first.name
        return voice.name


def _covered_s(regions: Sequence[tuple[int, int]], windows: Sequence[Window]) -> float:
    """Return the seconds of speech in windows, which are in order and may overlap."""
    covered, end = 0, 0
    for window in windows:
        first, last = regions[window.region]
        start, stop = max(window.start, first, end), min(window.stop, last)
        covered += max(0, stop - start)
        end = max(end, stop)
    return covered / SAMPLE_RATE


def letters_without(taken: Collection[str]) -> Iterator[str]:
    """Yield A, B, ... Z, AA, ... without the names that are taken."""
    for number in count(1):
        name, rest = "", number
        while rest:
            rest, place = divmod(rest - 1, 26)
            name = chr(ord("A") + place) + name
        if name not in taken:
            yield name
