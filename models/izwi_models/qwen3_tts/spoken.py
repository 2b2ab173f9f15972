"""Text normalization for checkpoints trained on plain English: numbers and signs become words.

The published checkpoints read digits, capitals and symbols themselves and do not use this module.
"""

from __future__ import annotations

import re

from izwi.inputs.control_characters import ControlFilter
from izwi_models.english.text import say_english, settled
from izwi_models.qwen3_tts.cutting import Part, joined

# Normalized text: words, and runs of all other characters between them.
_RUN = re.compile(r"[A-Za-z]+|[^A-Za-z]+")
# Accents, quotes and emphasis, which may be inside a word.
_INSIDE_WORDS = re.compile('[\u0300-\u036f*`"“”„«»]')
# Everything else that the checkpoint does not know separates words.
_UNKNOWN = re.compile(r"[^A-Za-z ,.'?!\n-]+")
# The end of a sentence inside such a run.
_END = re.compile(r"[.?!][,.?!']*\s|\n")


class SpokenStream:
    """Normalizer of text that is still being written, sentence by sentence.

    Numbers, dates, units, addresses and abbreviations become words (`izwi_models.english`), other
    marks become commas or are removed, and every line ends like a sentence. The output has only
    letters, apostrophes, hyphens and the marks `, . ? !`. It does not depend on how the input is
    cut: a word is emitted once white space follows it, and marks are emitted with the next word or
    at the end of the sentence.
    """

    def __init__(self) -> None:
        self._raw = ""  # not normalized yet
        self._between = ""  # normalized marks and spaces since the sentence's last letter
        self._started = False  # the sentence has a letter
        self._line_begins = True
        self._controls = ControlFilter()

    def write(self, text: str) -> list[Part]:
        """Add text; return the parts that are now settled. Only a part that ends may be empty."""
        self._raw += self._controls.write(text)
        stop = settled(self._raw)
        spelled = _spell(self._raw[:stop], self._line_begins)
        self._raw = self._raw[stop:]
        return self._speak(spelled)

    def close(self) -> list[Part]:
        """Return the rest at the end of the text."""
        text, self._raw = self._raw + self._controls.close(), ""
        spelled = _spell(text + "\n", self._line_begins)
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
    """Normalize a text and join its sentences with spaces; see `SpokenStream`."""
    return " ".join(sentences(text))


def sentences(text: str) -> list[str]:
    """Normalize a text and split it into sentences."""
    stream = SpokenStream()
    return joined([*stream.write(text), *stream.close()])


def _spell(text: str, begins_line: bool) -> str:
    """Normalize text to the letters and marks that the checkpoint knows."""
    text = say_english(text, begins_line=begins_line)
    text = re.sub(r"[;:()\[\]/–—]", ", ", text)
    return _UNKNOWN.sub(" ", _INSIDE_WORDS.sub("", text))


def _tidy(between: str) -> str:
    """Collapse spaces and runs of marks, and remove spaces before marks."""
    if between in ("", " "):
        return between
    between = re.sub(r"\s+", " ", between)
    between = re.sub(r"\s+([,.?!])", r"\1", between)
    return re.sub(r"[,.?!]*?([.?!])[,.?!]*|,{2,}", lambda m: m[1] or ",", between)


def _sentence_end(between: str) -> str:
    """Return one mark that ends a sentence, without loose characters before it."""
    end = _tidy(between).rstrip(" ,-'")
    return end if end[-1:] in (".", "?", "!") else f"{end}."
