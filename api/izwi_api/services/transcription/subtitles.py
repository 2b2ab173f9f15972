"""Cut a text with times into subtitles. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

from izwi.model.alignment import AlignedWord

# Two lines of 42 letters and common durations. A pause ends a subtitle, and so does the end of a
# sentence once the subtitle was shown long enough to read.
MAX_LINE_WIDTH, MAX_LINES, MAX_CUE_S = 42, 2, 7.0
_PAUSE_S, _READABLE_S = 1.0, 1.0
_SENTENCE_ENDS = frozenset(".!?…。！？")


class Timed(Protocol):
    """Text with a start and an end: a segment or a subtitle."""

    @property
    def start_s(self) -> float:
        """Return the start in seconds."""
        ...

    @property
    def end_s(self) -> float:
        """Return the end in seconds."""
        ...

    @property
    def text(self) -> str:
        """Return the text."""
        ...


@dataclass(frozen=True, slots=True)
class Cue:
    """A subtitle.

    Attributes:
        start_s: When it appears, in seconds.
        end_s: When it disappears.
        text: What it says, in one line; `cue_lines` breaks it.
        speaker: Who says it, if speakers were told apart; else empty.
    """

    start_s: float
    end_s: float
    text: str
    speaker: str = ""


class Spoken(Timed, Protocol):
    """A segment of one speaker."""

    @property
    def speaker(self) -> str:
        """Return the speaker's name; empty if speakers were not told apart."""
        ...


@dataclass(frozen=True, slots=True)
class _Unit:
    """A word with the marks around it: the least that a subtitle holds."""

    text: str
    start_s: float
    end_s: float
    ends_sentence: bool


def cut_segments(
    segments: Sequence[Spoken], words: Sequence[Sequence[AlignedWord]] | None
) -> list[Cue]:
    """Cut a transcription into subtitles.

    Args:
        segments: Its pieces.
        words: The words of each piece; None if they were not aligned. Each word then gets a share
            of its piece's time by its length.
    """
    if words is None:
        words = [estimate_words(s.text, s.start_s, s.end_s) for s in segments]
    pairs = zip(segments, words, strict=True)
    return [
        replace(cue, speaker=segment.speaker)
        for segment, group in pairs
        for cue in cut_cues(segment.text, group)
    ]


def estimate_words(text: str, start_s: float, end_s: float) -> list[AlignedWord]:
    """Share the time of a text among its words, by their width; seconds are rounded to 1 ms."""
    places = list(_word_places(text))
    total = sum(_width(text[start:stop]) for start, stop in places)
    words, done = [], 0
    for start, stop in places:
        begun, done = done, done + _width(text[start:stop])
        begin_s, stop_s = (
            round(start_s + (end_s - start_s) * share / total, 3) for share in (begun, done)
        )
        words.append(AlignedWord(text[start:stop], begin_s, stop_s, start, stop))
    return words


def cut_cues(text: str, words: Sequence[AlignedWord]) -> list[Cue]:
    """Cut a text into subtitles.

    Args:
        text: The text with punctuation; each character except white space appears in a cue.
        words: Its words, in order.

    Returns:
        Cues in order, none of them empty; none without words. Short ones are extended to a second
        if there is room.
    """
    groups = list(_groups(list(_units(text, words))))
    starts = [group[0].start_s for group in groups[1:]]
    cues = []
    for group, next_s in zip(groups, [*starts, float("inf")], strict=False):
        start_s, end_s = group[0].start_s, group[-1].end_s
        end_s = max(end_s, min(start_s + _READABLE_S, next_s))
        cues.append(Cue(start_s, min(end_s, start_s + MAX_CUE_S), _text(group)))
    return [cue for cue in cues if cue.text]


def cue_lines(text: str) -> list[str]:
    """Break a text into lines of at most 42 letters; two lines get about the same width."""
    text = " ".join(text.split())
    if _width(text) <= MAX_LINE_WIDTH:
        return [text]
    fitting = [n for n in range(1, len(text)) if _width(text[:n]) <= MAX_LINE_WIDTH]
    breaks = [n for n in fitting if _may_break(text, n)] or fitting
    last = [n for n in breaks if _width(text[n:].strip()) <= MAX_LINE_WIDTH]
    if last:
        place = min(last, key=lambda n: max(_width(text[:n]), _width(text[n:].strip())))
    else:
        place = breaks[-1]
    return [text[:place].strip(), *cue_lines(text[place:])]


def _may_break(text: str, place: int) -> bool:
    """Whether a line may end before this place: at a space, or between wide characters."""
    before, after = text[place - 1], text[place]
    if " " in (before, after):
        return after == " "
    if _width(before) == _width(after) == 1 or unicodedata.category(before) in ("Ps", "Pi"):
        return False
    return unicodedata.category(after) not in ("Pe", "Pf", "Po")


def _units(text: str, words: Sequence[AlignedWord]) -> Iterator[_Unit]:
    """Yield the words with their marks; together they are the text."""
    cuts = [_cut(text, before, after) for before, after in pairwise(words)]
    for word, start, stop in zip(words, [0, *cuts], [*cuts, len(text)], strict=False):
        after = text[word.stop : stop]
        unit = _Unit(
            text[start:stop], word.start_s, word.end_s, not _SENTENCE_ENDS.isdisjoint(after)
        )
        yield from _split_wide(unit)


def _split_wide(unit: _Unit) -> Iterator[_Unit]:
    """Yield a unit, in pieces if it is wider than a line: an address, or marks in a row."""
    if _width(unit.text.strip()) <= MAX_LINE_WIDTH:
        yield unit
        return
    size = MAX_LINE_WIDTH // 2  # of wide characters
    pieces = [unit.text[at : at + size] for at in range(0, len(unit.text), size)]
    step_s = (unit.end_s - unit.start_s) / len(pieces)
    for index, piece in enumerate(pieces):
        start_s = unit.start_s + index * step_s
        is_last = index == len(pieces) - 1
        yield _Unit(piece, start_s, start_s + step_s, is_last and unit.ends_sentence)


def _groups(units: Sequence[_Unit]) -> Iterator[list[_Unit]]:
    """Yield the units of each subtitle."""
    group: list[_Unit] = []
    for unit in units:
        if group and _is_end(group, unit):
            yield group
            group = []
        group.append(unit)
    if group:
        yield group


def _is_end(group: Sequence[_Unit], unit: _Unit) -> bool:
    first, last = group[0], group[-1]
    if not unit.text.strip():
        return False
    if unit.start_s - last.end_s >= _PAUSE_S or unit.end_s - first.start_s > MAX_CUE_S:
        return True
    lines = cue_lines(_text([*group, unit]))
    if len(lines) > MAX_LINES:
        return True
    return last.end_s - first.start_s >= _READABLE_S and last.ends_sentence


def _text(group: Sequence[_Unit]) -> str:
    return "".join(unit.text for unit in group).strip()


def _word_places(text: str) -> Iterator[tuple[int, int]]:
    """Yield where the words of a text are; wide characters are words of their own."""
    begun: int | None = None
    for place, character in enumerate([*text, " "]):
        wide = _width(character) == 2
        if begun is not None and (wide or not character.isalnum()):
            if character in "'’.,-:" and text[place + 1 : place + 2].isalnum():
                continue  # "it's", "3.5"
            yield begun, place
            begun = None
        if character.isalnum():
            if wide:
                yield place, place + 1
            elif begun is None:
                begun = place


def _cut(text: str, before: AlignedWord, after: AlignedWord) -> int:
    """Return where to cut between two words: at a space, or before an opening mark."""
    for index in range(before.stop, after.start):
        if text[index].isspace() or unicodedata.category(text[index]) in ("Ps", "Pi"):
            return index
    return after.start


def _width(text: str) -> int:
    """Return the width in letters; wide East Asian characters count as two."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
