"""Text rules for turns: backchannels, words that stop an answer, finished sentences. Pure.

The word lists are English. Other languages are judged by punctuation only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum

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
# A sentence that ends with one of these is incomplete.
_CONTINUED = frozenset(
    _WORD.findall(
        """a about an and are as at because but by can could do for from how i if in into is it's
        like my of on or our so than that the their then there these they this those to um uh was
        we were what when where which who will with would you your"""
    )
)
# So is one that ends with these, even if the transcriber added a full stop.
_CONTINUED_ENDS = tuple(
    tuple(end.split())
    for end in ("like to know", "want to know", "tell me", "i think", "i mean", "i wonder")
)
_QUESTION_WORDS = frozenset(
    _WORD.findall(
        """what when where which who whom whose why how is are was were do does did can could will
        would should may have has am"""
    )
)
_SENTENCE_END = re.compile(r"[.!。！]+[\"'”’)\]]*\s*$")
_QUESTION_END = re.compile(r"[?？]+[\"'”’)\]]*\s*$")
_OPEN_END = re.compile(r"(?:\.{3}|…|[,;:–—-])\s*$")
# Fewer words than this without punctuation are undecided.
_LEAST_WORDS = 3


class Ending(Enum):
    """How the transcript so far ends."""

    UNFINISHED = "unfinished"  # more follows: "I would like to"
    UNKNOWN = "unknown"  # it may be complete
    FINISHED = "finished"  # a whole sentence
    QUESTION = "question"  # a whole question


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


def ending_of(text: str) -> Ending:
    """Classify how a text ends, by its punctuation or else its first and last words."""
    words = words_of(text)
    if not words:
        return Ending.UNKNOWN
    if _QUESTION_END.search(text):
        return Ending.QUESTION
    is_continued = any(tuple(words[-len(end) :]) == end for end in _CONTINUED_ENDS)
    if _OPEN_END.search(text) or words[-1] in _CONTINUED or is_continued:
        return Ending.UNFINISHED
    if _SENTENCE_END.search(text):
        return Ending.FINISHED
    if len(words) < _LEAST_WORDS:
        return Ending.UNKNOWN
    return Ending.QUESTION if words[0] in _QUESTION_WORDS else Ending.UNKNOWN
