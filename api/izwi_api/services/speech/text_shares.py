"""Split a text where its audio was split, in proportion to the speech in each part. Pure.

This is an estimate. It assumes an even rate of speech, so that a part's share of the letters is
close to its share of the audio without pauses, and that speakers pause at punctuation.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from izwi.arrays import Float32

_FRAME_S = 0.02
# Relative to the level of loud frames; quieter frames are pauses.
_PAUSE_LEVEL = 0.1
# A cut without punctuation costs as much as a cut at punctuation that is this many letters away,
# which is less than half a second of speech.
_INSIDE_LETTERS = 6
_WITHIN_WORDS = "'\u2019-"


def spoken_shares(samples: Float32, rate: int, cuts: Sequence[int]) -> list[float]:
    """Return the share of all speech that comes before each cut, from 0 to 1.

    Args:
        samples: (n,) float32 mono.
        rate: Sample rate in Hz.
        cuts: Positions in samples, ascending.
    """
    size = int(_FRAME_S * rate)
    frames = samples[: len(samples) // size * size].reshape(-1, size)
    level = np.sqrt(np.mean(np.square(frames), axis=1))
    is_speech = level > _PAUSE_LEVEL * np.quantile(level, 0.95) if len(level) else level > 0
    num_speech = max(1, int(is_speech.sum()))
    return [int(is_speech[: round(cut / size)].sum()) / num_speech for cut in cuts]


def cut_text(text: str, shares: Sequence[float]) -> list[tuple[int, int]]:
    """Cut a text between words, near given shares of its letters, preferably at punctuation.

    Args:
        text: The spoken text.
        shares: Share of the speech before each cut, ascending.

    Returns:
        Parts [start, stop) in characters, one more than shares; together they cover the text. A
        part may contain no word.
    """
    letters = np.cumsum([0, *map(str.isalnum, text)])
    gaps = list(_gaps(text))
    places = np.array([place for place, _ in gaps])
    costs = np.array([0 if is_pause else _INSIDE_LETTERS for _, is_pause in gaps])
    cuts = [0]
    for share in shares:
        far = np.abs(letters[places] - share * letters[-1]) + costs
        cuts.append(max(cuts[-1], int(places[far.argmin()])))
    return list(pairwise([*cuts, len(text)]))


def _gaps(text: str) -> Iterator[tuple[int, bool]]:
    """Yield positions between words and at both ends, and whether a pause is likely there."""
    yield 0, False
    last = ""  # character other than white space
    for place, (before, after) in enumerate(pairwise(text), 1):
        last = last if before.isspace() else before
        is_between = before.isspace() and not after.isspace()
        if is_between or (after.isalnum() and (_is_ideograph(before) or _is_ideograph(after))):
            yield place, not last or (_is_mark(last) and last not in _WITHIN_WORDS)
    yield len(text), False


def _is_mark(character: str) -> bool:
    return unicodedata.category(character).startswith("P")


def _is_ideograph(character: str) -> bool:
    is_letter = unicodedata.category(character) == "Lo"
    return is_letter and unicodedata.east_asian_width(character) == "W"
