"""Words of turns: backchannels, and words that stop an answer. The lists are English. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

_WORD = re.compile(r"[\w'’-]+")
# Said by a listener who does not want the turn.
_BACKCHANNELS = frozenset(
    _WORD.findall(
        """ah aha alright cool gotcha great ha haha heh hm hmm hmmm huh m'hm mhm mhmm mm mmhm mm-hm
        mm-hmm mmm nice oh ok okay really right sure uh uhhuh uh-huh uh-hum uhm um wow yeah yep yes
        yup"""
    )
)
# How transcribers write a hum.
_HUM = re.compile(r"(?:i?m+['-]?)?(?:[hf]?[aeu]*m+[bhp]*)+(?:(?<=[mu]m)e)?")
# Any of these stops an answer, however short the speech was.
_STOPS = frozenset(("stop", "wait", "hold", "cancel", "quiet", "enough", "no", "pause"))


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case, without punctuation."""
    return [word.strip("'’-").replace("’", "'") for word in _WORD.findall(text.lower())]


def is_backchannel(text: str) -> bool:
    """Return whether a text has words and at least half are backchannels ("yeah, okay").

    At least half, because a transcriber often gets one of two short words wrong.
    """
    words = words_of(text)
    others = _meant(words)
    return bool(words) and 2 * len(others) <= len(words) and not others & _STOPS


def stops(text: str) -> bool:
    """Return whether a text has a word that stops an answer ("wait")."""
    return not meant_words(text).isdisjoint(_STOPS)


def meant_words(text: str) -> set[str]:
    """Return the distinct words of a text that are not backchannels, hums or single letters."""
    return _meant(words_of(text))


def _meant(words: Sequence[str]) -> set[str]:
    return {
        word
        for word in words
        if word not in _BACKCHANNELS and not _HUM.fullmatch(word) and (len(word) > 1 or word == "i")
    }
