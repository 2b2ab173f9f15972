"""Plain English for a checkpoint that was trained on nothing else: numbers and signs as words.

The published checkpoints read digits, capitals and symbols by themselves and never come here.
"""

from __future__ import annotations

import re
import unicodedata

_SIGNS = {
    "%": " percent ",
    "&": " and ",
    "+": " plus ",
    "=": " equals ",
    "@": " at ",
    "#": " number ",
}
_MONEY = {"$": "dollars", "£": "pounds", "€": "euros"}
_PRICE = re.compile(r"([$£€])\s?(\d[\d,]*(?:\.\d+)?)")
_CLOCK = re.compile(r"\b(\d{1,2}):(\d{2})\b")
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:st|nd|rd|th)?\b|\d+")
_CAPITALS = re.compile(r"\b[A-Z]{2,}\b")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_LONGEST_ABBREVIATION = 3


def spell_out(text: str) -> str:
    """Write text with letters, apostrophes, hyphens and the marks `, . ? !` alone.

    Numbers become words, short words in capitals are spelled letter by letter, longer ones are
    read as words, other marks become commas or go, and every line ends like a sentence.
    """
    text = unicodedata.normalize("NFKD", text.replace("’", "'").replace("‘", "'"))
    text = _PRICE.sub(lambda m: f"{m[2]} {_MONEY[m[1]]}", text)
    text = _CLOCK.sub(lambda m: f"{m[1]} {m[2]}" if int(m[2]) else f"{m[1]} o'clock", text)
    if any(character.isdigit() for character in text):
        text = _NUMBER.sub(lambda m: f" {_number(m[0])} ", text)
    for sign, word in _SIGNS.items():
        text = text.replace(sign, word)
    text = _CAPITALS.sub(_read_capitals, text)
    text = re.sub(r"[;:()\[\]/–—…]", ", ", text)
    text = re.sub(r"[^A-Za-z ,.'?!\n-]", "", text)
    lines = (_tidy(line) for line in text.splitlines())
    return " ".join(line for line in lines if line)


def sentences(text: str) -> list[str]:
    """Cut spelled-out text after each sentence."""
    return [sentence for sentence in _SENTENCE_END.split(text) if sentence]


def _number(digits: str) -> str:
    import inflect  # slow to import, and most text has no digits

    words = str(inflect.engine().number_to_words(digits.replace(",", ""), andword="and"))
    return words.replace(",", "").replace("-", " ")


def _read_capitals(match: re.Match[str]) -> str:
    word = match[0]
    return " ".join(word) if len(word) <= _LONGEST_ABBREVIATION else word.lower()


def _tidy(line: str) -> str:
    """One space between words, none before a mark, one mark at a time, one at the end."""
    line = re.sub(r"\s+", " ", line)
    line = re.sub(r"\s+([,.?!])", r"\1", line)
    line = re.sub(r"[,.?!]*?([.?!])[,.?!]*|,{2,}", lambda m: m[1] or ",", line).strip(" ,-'")
    if not re.search(r"[A-Za-z]", line):
        return ""
    line = line[0].upper() + line[1:]
    return line if line[-1] in ".?!" else f"{line}."
