"""Split a text where its audio was split, by each part's share of the speech. Pure.

It is an estimate: people and models speak evenly enough that the share of the letters is near the
share of the sound, pauses left out, and they pause where there is a mark of punctuation.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from izwi.arrays import Float32

_FRAME_S = 0.02
# Of the level of loud frames; quieter ones are pauses.
_PAUSE_LEVEL = 0.1
# A cut between two words costs as much as one at punctuation that is so many letters away, less
# than half a second of speech.
_INSIDE_LETTERS = 6
_WITHIN_WORDS = "'\u2019-"


def spoken_shares(samples: Float32, rate: int, cuts: Sequence[int]) -> list[float]:
    """How much of what is said in a sound is said before each cut, from 0 to 1.

    Args:
        samples: (n,) float32 mono.
        rate: In Hz.
        cuts: Places in samples, rising.
    """
    size = int(_FRAME_S * rate)
    frames = samples[: len(samples) // size * size].reshape(-1, size)
    level = np.sqrt(np.mean(np.square(frames), axis=1))
    is_speech = level > _PAUSE_LEVEL * np.quantile(level, 0.95) if len(level) else level > 0
    num_speech = max(1, int(is_speech.sum()))
    return [int(is_speech[: round(cut / size)].sum()) / num_speech for cut in cuts]


def cut_text(text: str, shares: Sequence[float]) -> list[tuple[int, int]]:
    """Cut a text between words, each time near a share of its letters, best at punctuation.

    Args:
        text: What is said.
        shares: Of all speech, what comes before each cut, rising.

    Returns:
        One part [start, stop) in characters more than there are shares; they join up to the whole.
        Some may be without a word.
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
    """Places between words, and whether a speaker is likely to pause there; first and last too."""
    yield 0, False
    last = ""  # that is no white space
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
