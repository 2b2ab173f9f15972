"""Words of turns: backchannels, and words that stop an answer. The lists are English. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

_WORD = re.compile(r"[\w'’-]+")
# Said by a listener who does not want the turn.
_BACKCHANNELS = frozenset(
    _WORD.findall(
        """absolutely ah aha alright arf bark cool exactly gotcha great ha haha hahaha heh hehe hm
        hmm hmmm huh indeed interesting m'hm mhm mhmm mm mmhm mm-hm mm-hmm mmm nice oh ok okay
        really right ruff sure true uh uhhuh uh-huh uh-hum uhm um woof wow yeah yep yes yup"""
    )
)
# So are these, if nothing else is said: they ask the speaker to go on.
_LISTENING = tuple(
    tuple(phrase.split())
    for phrase in (
        *("i see", "go on", "go ahead", "got it", "i got it", "i know", "of course", "all right"),
        *("that's right", "that is right", "makes sense", "that makes sense", "sounds good"),
        *("i understand", "fair enough", "for sure", "very good", "keep going", "carry on"),
    )
)
# How transcribers write a hum.
_HUM = re.compile(r"(?:i?m+['-]?)?(?:[hf]?[aeu]*m+[bhp]*)+(?:(?<=[mu]m)e)?")
_POLITE = frozenset(("please", "it", "that", "now", "talking"))
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
    others = _meant(_without_listening(words))
    return bool(words) and 2 * len(others) <= len(words) and not others & _STOPS


def stops(text: str) -> bool:
    """Return whether a text has a word that stops an answer ("wait")."""
    return not meant_words(text).isdisjoint(_STOPS)


def meant_words(text: str) -> set[str]:
    """Return the distinct words of a text that are not backchannels, hums or single letters."""
    return _meant(_without_listening(words_of(text)))


def only_stops(text: str) -> bool:
    """Return whether a text says nothing but that an answer should stop ("Stop. Stop.")."""
    meant = meant_words(text)
    return bool((meant & _STOPS) - {"no"}) and meant <= _STOPS | _POLITE


def _without_listening(words: Sequence[str]) -> Sequence[str]:
    """Return no words if a listener says nothing else, and all of them otherwise."""
    place = 0
    while place < len(words):
        rest = tuple(words[place:])
        phrase = next((p for p in _LISTENING if rest[: len(p)] == p), None)
        if phrase is None and _meant(rest[:1]):
            return words
        place += 1 if phrase is None else len(phrase)
    return ()


def _meant(words: Sequence[str]) -> set[str]:
    return {
        word
        for word in words
        if word not in _BACKCHANNELS and not _HUM.fullmatch(word) and (len(word) > 1 or word == "i")
    }
