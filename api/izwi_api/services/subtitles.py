"""Cut a text with word times into subtitles. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from izwi.alignment import AlignedWord

# Two lines of 42 letters and common durations. A pause ends a subtitle, and so does the end of a
# sentence once the subtitle was shown long enough to read.
_MAX_WIDTH, _MAX_S = 84, 7.0
_PAUSE_S, _READABLE_S = 1.0, 1.0
_SENTENCE_ENDS = frozenset(".!?…。！？")


@dataclass(frozen=True, slots=True)
class Cue:
    """A subtitle.

    Attributes:
        start_s: When it appears, in seconds.
        end_s: When it disappears.
    """

    start_s: float
    end_s: float
    text: str


def cut_cues(text: str, words: Sequence[AlignedWord]) -> list[Cue]:
    """Cut a text into subtitles.

    Args:
        text: The text with punctuation; each character except white space appears in a cue.
        words: Its words, in order.

    Returns:
        Cues in order; none without words. Short ones are extended to a second if there is room.
    """
    groups = list(_groups(text, words))
    cues = []
    begun = 0
    for index, group in enumerate(groups):
        start_s, end_s = group[0].start_s, group[-1].end_s
        stop, next_s = len(text), float("inf")
        if index + 1 < len(groups):
            following = groups[index + 1][0]
            stop, next_s = _cut(text, group[-1], following), following.start_s
        end_s = max(end_s, min(start_s + _READABLE_S, next_s))
        cues.append(Cue(start_s, end_s, text[begun:stop].strip()))
        begun = stop
    return cues


def _groups(text: str, words: Sequence[AlignedWord]) -> Iterator[list[AlignedWord]]:
    """Yield the words of each subtitle."""
    group: list[AlignedWord] = []
    for word in words:
        if group and _is_end(text, group, word):
            yield group
            group = []
        group.append(word)
    if group:
        yield group


def _is_end(text: str, group: Sequence[AlignedWord], word: AlignedWord) -> bool:
    first, last = group[0], group[-1]
    if word.start_s - last.end_s >= _PAUSE_S or word.end_s - first.start_s > _MAX_S:
        return True
    if _width(text[first.start : word.stop]) > _MAX_WIDTH:
        return True
    between = text[last.stop : _cut(text, last, word)]
    return last.end_s - first.start_s >= _READABLE_S and not _SENTENCE_ENDS.isdisjoint(between)


def _cut(text: str, before: AlignedWord, after: AlignedWord) -> int:
    """Return where to cut between two words: at a space, or before an opening mark."""
    for index in range(before.stop, after.start):
        if text[index].isspace() or unicodedata.category(text[index]) in ("Ps", "Pi"):
            return index
    return after.start


def _width(text: str) -> int:
    """Return the width in letters; wide East Asian characters count as two."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
