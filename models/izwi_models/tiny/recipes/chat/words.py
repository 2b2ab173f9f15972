"""Spelling, counting, comparing and repeating: the answer follows from the question's words."""

from __future__ import annotations

from collections.abc import Callable

from izwi_models.tiny.recipes.chat.turns import Turn
from izwi_models.tiny.recipes.chat.vocabulary import NAMES, WORDS
from izwi_models.tiny.recipes.chat.wording import Draw

_ONSETS = (
    *"bcdfghjklmnprstvwz",
    *("br", "cl", "dr", "fl", "gr", "pl", "pr", "qu"),
    *("sh", "sl", "sp", "st", "th", "tr", "ch"),
)
_VOWELS = ["a", "e", "i", "o", "u", "ee", "oo", "ai", "ou", "ea", "y"]
_CODAS = ["", "", "n", "r", "s", "t", "l", "m", "nd", "st", "ck", "ll", "ng", "p", "d", "x"]
_LONGEST_COUNT = 15

_CAN = "[can you|could you|will you|please]"
_SPELL = (
    f"{_CAN} spell [out] [the word] {{word}} [for me]",
    "how (do you|do I|do we|would you|would I|should I|can I) (spell|write) [the word] {word}",
    "how is [the word] {word} (spelled|written)",
    "(what is|what's|give me|tell me) the spelling (of|for) [the word] {word}",
    "(what|which) letters are in [the word] {word}",
    "(what are|tell me|give me|say|list) the letters (in|of) [the word] {word}",
)
_BACKWARDS = (
    f"{_CAN} (spell|say|write) [the word] {{word}} (backwards|in reverse)",
    "what is [the word] {word} (backwards|in reverse)",
    "how (do you|do I|would you|is) (spell|write) [the word] {word} (backwards|in reverse)",
    f"{_CAN} reverse the (word|letters of|letters in) {{word}}",
)
_LENGTH = (
    "how many letters (are in|are there in|does) [the word] {word} [have]",
    f"{_CAN} count the letters (in|of) {{word}}",
    "how long is the word {word}",
    "(what is|what's|tell me) the length of the word {word}",
)
_SPELL_THAT = (
    "(and|now) spell (it|that)",
    "how (do you|do I|would you) (spell|write) (it|that)",
    "spell (it|that|that word) [for me]",
    "(can you|could you) spell (it|that) [for me]",
)
_COUNT = (
    f"{_CAN} count [up] from {{a}} to {{b}} [for me]",
    "(say|give me|tell me|list) the numbers from {a} to {b}",
    f"{_CAN} count {{a}} to {{b}}",
)
_COUNT_TO = (f"{_CAN} count [up] to {{b}} [for me]",)
_COUNT_DOWN = (
    f"{_CAN} count (down|backwards) from {{b}} [to {{a}}]",
    "(say|give me) the numbers from {b} down to {a}",
)
_LARGER = (
    "(which|what) [number] is (larger|bigger|greater|more), {a} or {b}",
    "is {a} or {b} (larger|bigger|greater)",
    "(tell me|say|name) the (larger|bigger|greater) [number] of {a} and {b}",
    "which of {a} and {b} is (larger|bigger|greater)",
)
_SMALLER = (
    "(which|what) [number] is (smaller|less|lower), {a} or {b}",
    "is {a} or {b} (smaller|lower)",
    "(tell me|say|name) the (smaller|lower) [number] of {a} and {b}",
    "which of {a} and {b} is (smaller|less|lower)",
)
_AND_SMALLER = (
    "[and] (which|what) [one] is [the] smaller [one]",
    "and the smaller [one|number]",
)
_IS_LARGER = (
    "is {a} (larger|bigger|greater|more) than {b}",
    "would you say {a} is (larger|bigger|more) than {b}",
)
_LONGER = (
    "(which|what) [word] (is longer|has more letters|is the longer one), {one} or {two}",
    "is {one} or {two} [the] longer [word]",
    "does {one} or {two} have more letters",
    "which of [the words] {one} and {two} (has more letters|is longer|is the longer one)",
)
_FIRST = (
    "which [word] comes first [in the alphabet], {one} or {two}",
    "does {one} or {two} come first in the alphabet",
    "(which|what) comes first [in the dictionary|in the alphabet], {one} or {two}",
    "which of [the words] {one} and {two} (comes|is) first [in the dictionary|in the alphabet]",
)
_REPEAT = (
    "(repeat|say) after me: {words}",
    f"{_CAN} (repeat|say) [this|the words]: {{words}}",
    "say the (words|following): {words}",
    "repeat what I say: {words}",
)
_NEXT = (
    "(what|which) number comes (after|right after) {a}",
    "what (is|comes) after {a}",
    "(tell me|name) the number after {a}",
)
_BEFORE = (
    "(what|which) number comes (before|right before) {a}",
    "(tell me|name) the number before {a}",
)
_EVEN = (
    "is {a} (even or odd|odd or even|an even or an odd number)",
    "is {a} an (even|odd) number",
    "is {a} (even|odd)",
)


def words(draw: Draw) -> list[Turn]:
    """Draw one question about letters, about consecutive numbers, or about words to repeat."""
    return draw.choice(_ASKED)(draw)


def a_word(draw: Draw) -> str:
    """Draw an everyday word, or an invented one."""
    chance = draw.random.random()
    if chance < 0.5:
        return draw.values("word", lambda: draw.choice(WORDS + NAMES).lower())
    return draw.values("word", lambda: invented(draw))


def invented(draw: Draw) -> str:
    """Draw a word that looks like English but has no meaning."""
    syllables = range(draw.random.randint(1, 3))
    return "".join(
        draw.choice(_ONSETS) + draw.choice(_VOWELS) + draw.choice(_CODAS) for _ in syllables
    )


def letters(word: str) -> str:
    """Return a word letter by letter."""
    return ", ".join(word.upper()) + "."


def _spelling(draw: Draw) -> list[Turn]:
    word = a_word(draw)
    turns = [Turn(draw.ask(_SPELL, word=word), letters(word))]
    if draw.random.random() < 0.2:
        turns.append(
            Turn(
                draw.ask(("(and|now|and now|then) [spell it] (backwards|in reverse)",)),
                letters(word[::-1]),
            )
        )
    return turns


def _backwards(draw: Draw) -> list[Turn]:
    word = a_word(draw)
    return [Turn(draw.ask(_BACKWARDS, word=word), letters(word[::-1]))]


def _length(draw: Draw) -> list[Turn]:
    word = a_word(draw)
    count = f"{len(word)} letter" + "s" * (len(word) > 1)
    turns = [Turn(draw.ask(_LENGTH, word=word), f"The word {word} has {count}.")]
    if draw.random.random() < 0.3:
        turns.append(Turn(draw.ask(_SPELL_THAT), letters(word)))
    return turns


def _counting(draw: Draw) -> list[Turn]:
    def ends() -> tuple[int, int]:
        a = draw.number(0, 120)
        return a, a + draw.random.randint(2, _LONGEST_COUNT - 1)

    a, b = draw.values("count", ends)
    row = [str(value) for value in range(a, b + 1)]
    kind = draw.random.randrange(3)
    if kind == 0:
        return [Turn(draw.ask(_COUNT, a=a, b=b), ", ".join(row) + ".")]
    b = draw.random.randint(3, _LONGEST_COUNT)
    row = [str(value) for value in range(1, b + 1)]
    if kind == 1:
        return [Turn(draw.ask(_COUNT_TO, b=b), ", ".join(row) + ".")]
    return [Turn(draw.ask(_COUNT_DOWN, a=1, b=b), ", ".join(reversed(row)) + ".")]


def _pair(draw: Draw) -> tuple[int, int]:
    a = draw.number(0, 9999)
    near = draw.random.random() < 0.5
    b = max(0, a + draw.random.randint(-50, 50)) if near else draw.number(0, 9999)
    return (a, b) if a != b else (a, a + 1)


def _comparing(draw: Draw) -> list[Turn]:
    a, b = draw.values("compare", lambda: _pair(draw))
    kind = draw.random.randrange(3)
    if kind == 0:
        turns = [Turn(draw.ask(_LARGER, a=a, b=b), f"{max(a, b)} is larger.")]
        if draw.random.random() < 0.2:
            asked = draw.ask(
                ("[and] (which|what) [one] is [the] smaller [one]", "and the smaller [one|number]")
            )
            turns.append(Turn(asked, f"{min(a, b)} is smaller."))
        return turns
    if kind == 1:
        return [Turn(draw.ask(_SMALLER, a=a, b=b), f"{min(a, b)} is smaller.")]
    answer = f"Yes, {a} is larger than {b}." if a > b else f"No, {a} is smaller than {b}."
    return [Turn(draw.ask(_IS_LARGER, a=a, b=b), answer)]


def _comparing_words(draw: Draw) -> list[Turn]:
    one, two = a_word(draw), a_word(draw)
    if draw.random.random() < 0.5:
        if len(one) == len(two):
            two += "s"
        longer = max(one, two, key=len)
        return [Turn(draw.ask(_LONGER, one=one, two=two), f"{longer.capitalize()} is longer.")]
    if one == two:
        two += "s"
    first = min(one, two)
    return [Turn(draw.ask(_FIRST, one=one, two=two), f"{first.capitalize()} comes first.")]


def _repeating(draw: Draw) -> list[Turn]:
    said = " ".join(a_word(draw) for _ in range(draw.random.randint(1, 6)))
    return [Turn(draw.ask(_REPEAT, words=said), said[0].upper() + said[1:] + ".")]


def _neighbours(draw: Draw) -> list[Turn]:
    a = draw.values("neighbour", lambda: draw.number(1, 9998))
    kind = draw.random.randrange(3)
    if kind == 0:
        return [Turn(draw.ask(_NEXT, a=a), f"{a + 1} comes after {a}.")]
    if kind == 1:
        return [Turn(draw.ask(_BEFORE, a=a), f"{a - 1} comes before {a}.")]
    return [Turn(draw.ask(_EVEN, a=a), f"{a} is {'odd' if a % 2 else 'even'}.")]


_ASKED: tuple[Callable[[Draw], list[Turn]], ...] = (
    _spelling,
    _spelling,
    _backwards,
    _length,
    _counting,
    _comparing,
    _comparing_words,
    _repeating,
    _neighbours,
)
