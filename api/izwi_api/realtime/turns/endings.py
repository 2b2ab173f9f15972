"""How a transcript so far ends: in the middle of a sentence, or at its end. Pure.

Transcribers put a question mark or a full stop behind whatever they have heard ("What is?"). So the
last words are looked at first: a sentence that cannot end with them goes on. The word lists are
English; other languages are judged by punctuation only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum

from izwi_api.realtime.turns.words import words_of

_SENTENCE_END = re.compile(r"[.!。！]+[\"'”’)\]]*\s*$")
_QUESTION_END = re.compile(r"[?？]+[\"'”’)\]]*\s*$")
_OPEN_END = re.compile(r"(?:\.{3}|…|[,;:–—-])\s*$")
# Fewer words than this without punctuation are undecided.
_LEAST_WORDS = 3


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


# Articles, conjunctions, prepositions and fillers that end no sentence.
_NEVER_LAST = _set(
    """a an the my our your their its every another each whose and or but because than as if
    although whether unless while until since during between without toward towards through among
    against via per into um uh er erm very quite extremely such it's i'm i'll i'd i've you're we're
    we'll we've they're there's that's he's she's what's where's who's how's when's let's plus minus
    divided multiplied equals"""
)
_BE = _set("is are was were am be")
_DO = _set("do does did have has had")
_MODALS = _set("can could will would should may might must shall")
_AUXILIARIES = _DO | _MODALS
_SUBJECTS = _set("i we they he she")
_PRONOUNS = _SUBJECTS | _set("you it this that these those there")
_OBJECTS = _PRONOUNS - _SUBJECTS
_CONJUNCTIONS = _set("and or but because if when than as so while where how whether although")
_QUESTION_WORDS = _set("what when where which who whom whose why how")
_REPLIES = _set("yes yeah no nope sure of here there well so neither nor")
_VERBS_FIRST = _QUESTION_WORDS | _BE | _AUXILIARIES
# A preposition ends a sentence only behind one of these, and in a question with a question word:
# "What are you looking for?" Particles need no such word: "Turn it on."
_PARTICLES = _set("in on")
_STRANDED = {
    "of": _set("made think thought hear heard out afraid proud tired composed part"),
    "to": _set("talking speaking listening talk speak listen belong belongs referring"),
    "for": _set(
        """that this it looking look asking waiting ask asked wait pay paid apply searching working
        made used known famous good responsible what one"""
    ),
    "with": _set("wrong going do done dealing working talking up agree live come start begin go"),
    "from": _set("come comes came"),
    "about": _set("talking thinking it that this talk think asking worried know"),
    "in": _set("come go get got log sign let fit interested involved believe staying turn hand"),
    "on": _set(
        """come go going get log turn turned switch switched try hold move carry put it them working
        work depend based focus spend light radio heating"""
    ),
    "at": _set("looking look good staring laughing aiming where"),
    "by": _set("need it meant mean made written done stop come stand"),
    "like": _set("look looks it that this you i we they feel sound sounds taste"),
}
# A sentence goes on behind these, too.
_OPEN_PHRASES = tuple(
    tuple(phrase.split())
    for phrase in (
        *("like to know", "want to know", "tell me", "give me", "show me", "send me", "remind me"),
        *("i think", "i mean", "i wonder", "i guess", "i was wondering", "do you know", "you know"),
        *("do you think", "i was thinking", "i'm looking", "i'm trying", "i would like", "let me"),
        *("i'd like", "is it possible", "what about", "how about", "for example", "let me see"),
        *("let me think", "think that", "said that", "say that", "hope that", "sure that"),
        *("believe that", "the one", "going to", "want to", "have to", "need to", "able to"),
        *("instead of", "because of", "according to", "next to", "close to", "compared to"),
        *("as well as", "in order to", "more than", "less than", "and then", "so then", "i need"),
    )
)
# Alone they may be a question, or the beginning of one: "How many?", "What time?"
_HALF_QUESTIONS = _set(
    """many much long far often old big high tall fast deep late early soon time kind day year month
    colour color size type number"""
)
_DIGITS = _set("zero oh o one two three four five six seven eight nine double triple")
_NUMBERS = _DIGITS | _set(
    """ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty thirty
    forty fifty sixty seventy eighty ninety hundred thousand million"""
)
_DICTATED = re.compile(r"\b(?:phone|telephone|mobile|cell|my number|call me|reach me|dial)\b")
# The shortest phone number with its area code, and the fewest digits without such a word.
_PHONE_DIGITS, _LEAST_DIGITS = 10, 3


class Ending(Enum):
    """How the transcript so far ends."""

    UNFINISHED = "unfinished"  # more follows: "I would like to"
    UNKNOWN = "unknown"  # it may be complete
    FINISHED = "finished"  # a whole sentence
    QUESTION = "question"  # a whole question


def ending_of(text: str) -> Ending:
    """Classify how a text ends: by its last words, then its punctuation, then its first word."""
    words = words_of(text)
    if not words:
        return Ending.UNKNOWN
    is_question = _QUESTION_END.search(text) is not None
    is_ended = is_question or (_SENTENCE_END.search(text) and not _OPEN_END.search(text))
    is_open = _OPEN_END.search(text) is not None and not is_question
    if is_open or _is_dictation(text, words) or _goes_on(words, is_question, bool(is_ended)):
        return Ending.UNFINISHED
    if _is_half_question(words):
        return Ending.UNKNOWN
    if is_ended:
        return Ending.QUESTION if is_question else Ending.FINISHED
    if len(words) < _LEAST_WORDS:
        return Ending.UNKNOWN
    return Ending.QUESTION if words[0] in _VERBS_FIRST else Ending.UNKNOWN


def _goes_on(words: Sequence[str], is_question: bool, is_ended: bool) -> bool:
    """Return whether a sentence cannot end with these words."""
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if any(tuple(words[-len(phrase) :]) == phrase for phrase in _OPEN_PHRASES):
        return not (is_ended and _is_whole_phrase(words))
    if not before:
        return _is_open_word(last) or (last in _QUESTION_WORDS and not is_question)
    if last in _NEVER_LAST or (last == "times" and _is_number(before)):
        return True
    if last in _BE:
        return not (is_ended and _ends_with_be(words, before))
    if last in _AUXILIARIES:
        return not (is_ended and _ends_with_auxiliary(words, before))
    if last in _STRANDED:
        return not (is_ended and _is_stranded(words, before))
    if last in _PRONOUNS:
        return _pronoun_goes_on(words, before, is_question, is_ended)
    if last in _QUESTION_WORDS:
        is_asked = is_question and len(words) == 2
        return not (is_ended and (is_asked or _is_known(words)))
    is_wish = last in ("need", "want") and before in ("i", "we")
    return is_wish and _QUESTION_WORDS.isdisjoint(words)


def _is_open_word(word: str) -> bool:
    """Return whether a single word begins something."""
    return (
        word in _NEVER_LAST
        or word in _BE
        or word in _AUXILIARIES
        or word in _STRANDED
        or word in _SUBJECTS
        or word in ("so", "whose")
    )


def _is_whole_phrase(words: Sequence[str]) -> bool:
    """Return whether one of `_OPEN_PHRASES` ends a whole sentence: "I don't want to."."""
    is_negated = any(word.endswith("n't") or word == "not" for word in words)
    return (is_negated and words[-1] == "to") or (
        len(words) >= 4 and words[-2:] == ["you", "think"] and words[0] == "what"
    )


def _ends_with_be(words: Sequence[str], before: str) -> bool:
    """Return whether a sentence may end with a form of "be": "I know where it is."."""
    is_embedded = not _QUESTION_WORDS.isdisjoint(words[words[-1] != "be" : -1])
    is_reply = before in _PRONOUNS and (len(words) >= 4 or words[0] in _REPLIES)
    return is_embedded or is_reply


def _ends_with_auxiliary(words: Sequence[str], before: str) -> bool:
    """Return whether a sentence may end with it: "What should I do?", "Yes, I can."."""
    if words[-1] in ("do", "have") and words[0] in _QUESTION_WORDS:
        return not (_AUXILIARIES | _BE).isdisjoint(words[:-1])
    return before in _PRONOUNS and (len(words) >= 4 or words[0] in _REPLIES)


def _is_stranded(words: Sequence[str], before: str) -> bool:
    """Return whether a sentence may end with its preposition: "Where is she from?"."""
    last = words[-1]
    has_object = last in _PARTICLES or not _QUESTION_WORDS.isdisjoint(words[:-1])
    is_origin = last == "from" and words[0] == "where"
    return has_object and (is_origin or before in _STRANDED[last])


def _pronoun_goes_on(words: Sequence[str], before: str, is_question: bool, is_ended: bool) -> bool:
    """Return whether a sentence goes on behind a pronoun: "How do you", "because it"."""
    last = words[-1]
    if len(words) == 2 and before in _BE:
        return True
    if before in _AUXILIARIES:
        return words[0] not in ("who", "so", "neither", "nor")
    if before in _CONJUNCTIONS:
        return not (is_question and before == "and" and last in _OBJECTS)
    if last in _SUBJECTS:
        return before not in _BE
    if last == "that" and before in _BE:
        return _QUESTION_WORDS.isdisjoint(words)
    return not is_ended and last in _OBJECTS - {"it"}


def _is_known(words: Sequence[str]) -> bool:
    """Return whether a question word ends a sentence: "I don't know why."."""
    is_told = words[-3:-1] == ["tell", "me"]
    is_verb = words[-2] in ("know", "sure", "understand", "remember", "see", "not")
    return (is_told or is_verb) and words[-1] not in ("what", "which", "whose")


def _is_half_question(words: Sequence[str]) -> bool:
    if words[0] not in ("how", "what", "which") or len(words) > 3:
        return False
    return len(words) >= 2 and words[1] in _HALF_QUESTIONS


def _is_number(word: str) -> bool:
    return word in _NUMBERS or word.isdigit()


def _is_dictation(text: str, words: Sequence[str]) -> bool:
    """Return whether a text ends within a phone number."""
    num_digits = 0
    for word in reversed(words):
        if not (word in _DIGITS or word.replace("-", "").isdigit()):
            break
        num_digits += len(word.replace("-", "")) if word[0].isdigit() else 1
    else:
        return _LEAST_DIGITS <= num_digits < _PHONE_DIGITS
    is_named = _DICTATED.search(text.lower()) is not None
    return is_named and 0 < num_digits < _PHONE_DIGITS
