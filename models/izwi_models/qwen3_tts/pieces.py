"""Split text into pieces that a checkpoint can speak, while the text is still being written. Pure.

For checkpoints trained on plain English, numbers and signs become words first (`SpokenStream`). The
published checkpoints read digits, capitals and symbols themselves.

Where a piece ends depends only on the text, not on how or when it arrived.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from izwi.inputs.control_characters import ControlFilter
from izwi_models.english.text import say_english, settled

# Ends of pieces, in order of preference. A closing quote or bracket stays with its sentence.
_ENDS = (
    re.compile(r"[.!?…]+[\"'”’)\]]*(?=\s)|[。！？]+[”’」』）]*|\n+"),
    re.compile(r"[,;:–—]+[\"'”’)\]]*(?=\s)|[，、；：]"),
    re.compile(r"\s+"),
)
# Characters that are examined in one pass, so that the cost is linear in the length of a text.
_BLOCK = 4096
# Normalized text: words, and runs of all other characters between them.
_RUN = re.compile(r"[A-Za-z]+|[^A-Za-z]+")
# Accents, quotes and emphasis, which may be inside a word.
_INSIDE_WORDS = re.compile('[\u0300-\u036f*`"“”„«»]')
# Everything else that the checkpoint does not know separates words.
_UNKNOWN = re.compile(r"[^A-Za-z ,.'?!\n-]+")
# The end of a sentence inside such a run.
_END = re.compile(r"[.?!][,.?!']*\s|\n")


class Part(NamedTuple):
    """Text to add to the piece in flight, and whether the piece is complete with it."""

    text: str
    ends: bool = False


class Cutter:
    """Cuts text into pieces of at most `limit` characters.

    A piece ends after a sentence where one ends within the limit, else after a clause, else after
    a word, else (no space within the limit) anywhere. Pieces lose the white space at their edges
    and nothing else, and stay in order.

    Text is returned as soon as it certainly belongs to the piece, whatever follows: up to its last
    sentence end, else its last clause end, else its last whole word. The words after a clause
    therefore wait until the text ends or exceeds the limit, because the piece may end there.
    """

    def __init__(self, limit: int | None):
        """Bind a limit of at least 1; None leaves the text whole."""
        self.limit = limit
        self._rest = ""  # from the start of the piece, or, without a limit, not returned yet
        self._given = 0  # characters of it that were returned
        self._started = False  # the piece has a character

    def write(self, text: str) -> list[Part]:
        """Add text and return the parts that are now settled. Only an end may be empty."""
        parts: list[Part] = []
        for start in range(0, len(text), _BLOCK):
            self._rest += text[start : start + _BLOCK]
            if not self._started:
                self._rest = self._rest.lstrip()
            while self.limit is not None and len(self._rest.rstrip()) > self.limit:
                cut = _last_end(self._rest[: self.limit + 1], self.limit) or self.limit
                parts.append(Part(self._rest[:cut].rstrip()[self._given :], ends=True))
                self._start_piece(self._rest[cut:].lstrip())
            parts += self._settled()
        return parts

    def close(self) -> list[Part]:
        """Return the rest of the last piece, as no text follows; nothing if there is no piece."""
        text, started = self._rest.rstrip()[self._given :], self._started or bool(self._rest)
        self._start_piece("")
        return [Part(text, ends=True)] if started else []

    def _start_piece(self, rest: str) -> None:
        self._rest, self._given, self._started = rest, 0, False

    def _settled(self) -> list[Part]:
        rest = self._rest
        stop = len(rest)
        if self.limit is not None:
            # an end counts once the next character has arrived: a run of marks may continue
            stop = _last_end(rest, min(self.limit, len(rest) - 1))
        text = rest[:stop].rstrip()[self._given :]
        if not text:
            return []
        self._started = True
        self._given += len(text)
        if self.limit is None:
            self._rest, self._given = rest[len(text) :], 0
        return [Part(text)]


def split_text(text: str, limit: int | None) -> list[str]:
    """Cut a whole text as `Cutter` does; white space alone is one empty piece.

    Args:
        text: Any text.
        limit: At least 1; None leaves the text whole.
    """
    cutter = Cutter(limit)
    return joined([*cutter.write(text), *cutter.close()]) or [""]


def joined(parts: Iterable[Part]) -> list[str]:
    """Join parts to complete pieces."""
    pieces: list[str] = []
    texts: list[str] = []
    for part in parts:
        texts.append(part.text)
        if part.ends:
            pieces.append("".join(texts))
            texts.clear()
    return pieces


def _last_end(text: str, limit: int) -> int:
    """Return the best end of a piece up to `limit`; 0 if there is none."""
    for end in _ENDS:
        cuts = [match.end() for match in end.finditer(text) if match.end() <= limit]
        if cuts:
            return cuts[-1]
    return 0


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
