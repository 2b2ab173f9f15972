"""Plain English for a checkpoint that was trained on nothing else: numbers and signs as words.

The published checkpoints read digits, capitals and symbols by themselves and never come here.
"""

from __future__ import annotations

import re
import unicodedata

from izwi_models.qwen3_tts.cutting import Part, joined

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
_LONGEST_ABBREVIATION = 3

# What is written after spelling: words, and runs of everything between them.
_RUN = re.compile(r"[A-Za-z]+|[^A-Za-z]+")
# Where a sentence is over, within such a run.
_END = re.compile(r"[.?!][,.?!']*\s|\n")


class SpokenStream:
    """Spells out text that is still being written, sentence by sentence.

    Numbers become words, short words in capitals are spelled letter by letter, longer ones are
    read as words, other marks become commas or go, and every line ends like a sentence. What comes
    out has letters, apostrophes, hyphens and the marks `, . ? !` alone, and does not depend on how
    the text was cut: a word is spelled once the white space after it is there, and marks wait for
    the next word, or for the end of the sentence.
    """

    def __init__(self) -> None:
        self._raw = ""  # not spelled yet
        self._between = ""  # spelled marks and spaces since the sentence's last letter
        self._started = False  # the sentence has a letter
        self._line_begins = True

    def write(self, text: str) -> list[Part]:
        """Take more text and return what is settled by it. No part is empty but for an end."""
        self._raw += text
        stop = _settled(self._raw)
        spelled = _spell(self._raw[:stop])
        self._raw = self._raw[stop:]
        return self._speak(spelled)

    def close(self) -> list[Part]:
        """Return the rest, as no text follows."""
        spelled, self._raw = _spell(self._raw), ""
        return self._speak(spelled + "\n")

    def _speak(self, spelled: str) -> list[Part]:
        parts: list[Part] = []
        for run in _RUN.findall(spelled):
            if run[0].isalpha():
                parts.append(Part(self._word(run)))
            elif self._started:
                self._between += run
                end = _END.search(self._between)
                if end:
                    parts.append(Part(_sentence_end(self._between[: end.end()]), ends=True))
                    self._between, self._started = "", False
            self._line_begins = self._line_begins or "\n" in run
        return parts

    def _word(self, word: str) -> str:
        if self._line_begins:
            word = word[0].upper() + word[1:]
        text = _tidy(self._between) + word
        self._between, self._started, self._line_begins = "", True, False
        return text


def spell_out(text: str) -> str:
    """Write text as it is said, its sentences joined by spaces; see `SpokenStream`."""
    return " ".join(sentences(text))


def sentences(text: str) -> list[str]:
    """Write text as it is said, and cut it after each sentence."""
    stream = SpokenStream()
    return joined([*stream.write(text), *stream.close()])


def _settled(text: str) -> int:
    """Up to where text is spelled the same whatever follows: after its last white space.

    But a price may have a space after its sign.
    """
    stop = len(text)
    while stop:
        while stop and not text[stop - 1].isspace():
            stop -= 1
        word = text[:stop].rstrip()
        if not word or unicodedata.normalize("NFKD", word[-1])[-1] not in _MONEY:
            return stop
        stop = len(word) - 1
    return 0


def _spell(text: str) -> str:
    """Spell out whole words: nothing here looks across white space, but for the price."""
    text = unicodedata.normalize("NFKD", text.replace("’", "'").replace("‘", "'"))
    text = re.sub(r"[^\S\n]", " ", text)
    text = _PRICE.sub(lambda m: f"{m[2]} {_MONEY[m[1]]}", text)
    text = _CLOCK.sub(lambda m: f"{m[1]} {m[2]}" if int(m[2]) else f"{m[1]} o'clock", text)
    if any(character.isdigit() for character in text):
        text = _NUMBER.sub(lambda m: f" {_number(m[0])} ", text)
    for sign, word in _SIGNS.items():
        text = text.replace(sign, word)
    text = _CAPITALS.sub(_read_capitals, text)
    text = re.sub(r"[;:()\[\]/–—]", ", ", text)
    return re.sub(r"[^A-Za-z ,.'?!\n-]", "", text)


def _number(digits: str) -> str:
    import inflect  # slow to import, and most text has no digits

    words = str(inflect.engine().number_to_words(digits.replace(",", ""), andword="and"))
    return words.replace(",", "").replace("-", " ")


def _read_capitals(match: re.Match[str]) -> str:
    word = match[0]
    return " ".join(word) if len(word) <= _LONGEST_ABBREVIATION else word.lower()


def _tidy(between: str) -> str:
    """One space, none before a mark, and one mark at a time."""
    between = re.sub(r"\s+", " ", between)
    between = re.sub(r"\s+([,.?!])", r"\1", between)
    return re.sub(r"[,.?!]*?([.?!])[,.?!]*|,{2,}", lambda m: m[1] or ",", between)


def _sentence_end(between: str) -> str:
    """One mark, and nothing loose before it."""
    end = _tidy(between).rstrip(" ,-'")
    return end if end[-1:] in (".", "?", "!") else f"{end}."
