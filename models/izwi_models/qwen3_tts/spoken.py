"""Plain English for a checkpoint that was trained on nothing else: numbers and signs as words.

The published checkpoints read digits, capitals and symbols by themselves and never come here.
"""

from __future__ import annotations

import re

from izwi_models.english.text import say_english, settled
from izwi_models.qwen3_tts.cutting import Part, joined

# What is written after spelling: words, and runs of everything between them.
_RUN = re.compile(r"[A-Za-z]+|[^A-Za-z]+")
# Where a sentence is over, within such a run.
_END = re.compile(r"[.?!][,.?!']*\s|\n")


class SpokenStream:
    """Spells out text that is still being written, sentence by sentence.

    Numbers, dates, units, addresses and abbreviations become words (`izwi_models.english`), other
    marks become commas or go, and every line ends like a sentence. What comes
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
        stop = settled(self._raw)
        spelled = _spell(self._raw[:stop], self._line_begins)
        self._raw = self._raw[stop:]
        return self._speak(spelled)

    def close(self) -> list[Part]:
        """Return the rest, as no text follows."""
        spelled, self._raw = _spell(self._raw + "\n", self._line_begins), ""
        return self._speak(spelled)

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


def _spell(text: str, begins_line: bool) -> str:
    """Write text in the letters and marks that the checkpoint knows."""
    text = say_english(text, begins_line=begins_line)
    text = re.sub(r"[;:()\[\]/–—]", ", ", text)
    return re.sub(r"[^A-Za-z ,.'?!\n-]", "", text)


def _tidy(between: str) -> str:
    """One space, none before a mark, and one mark at a time."""
    between = re.sub(r"\s+", " ", between)
    between = re.sub(r"\s+([,.?!])", r"\1", between)
    return re.sub(r"[,.?!]*?([.?!])[,.?!]*|,{2,}", lambda m: m[1] or ",", between)


def _sentence_end(between: str) -> str:
    """One mark, and nothing loose before it."""
    end = _tidy(between).rstrip(" ,-'")
    return end if end[-1:] in (".", "?", "!") else f"{end}."
