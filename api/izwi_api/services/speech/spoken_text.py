"""Prepare text for any speech model: split it at pauses and replace words by pronunciations.

    "Hello [pause:1s] izwi"  ─▶  "Hello ", Pause(1.0), " ee-zwee"

Terminals' escape sequences are removed first (`izwi.inputs.control_characters`).

Pure. A text that arrives in parts gives the same result as the whole text; each part of the result
is returned as soon as later text cannot change it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from izwi.errors import InvalidRequest
from izwi.inputs.control_characters import ControlFilter
from izwi.inputs.speech import SpeechInput
from izwi.request.input_stream import TextPart, TextStream
from izwi_api.schemas.speech import MAX_PRONUNCIATIONS, MAX_SPELLING_CHARS, MAX_WORD_CHARS

MAX_PAUSE_S = 10.0
MAX_PAUSES_S = 60.0  # in total, of one complete text
_PAUSE = re.compile(r"\[pause:(\d{1,9}(?:\.\d{1,9})?)(ms|s)\]", re.IGNORECASE)
_LONGEST_PAUSE = len("[pause:.ms]") + 18


@dataclass(frozen=True, slots=True)
class Pause:
    """Silence between two parts of a text."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Rate:
    """How fast the texts that follow are spoken, relative to the voice's own rate."""

    factor: float


# What a speech is made of, in order.
SpokenPart = SpeechInput | Pause | Rate


class Pronunciations:
    """Words and phrases to replace before synthesis; case does not matter.

    Args:
        spellings: Word or phrase -> the text to speak instead.

    Raises:
        InvalidRequest: There are too many entries, or one is empty or too long.
    """

    def __init__(self, spellings: Mapping[str, str] | None = None):
        self._spellings = {word.lower(): spelling for word, spelling in (spellings or {}).items()}
        if len(self._spellings) > MAX_PRONUNCIATIONS:
            raise _refused(f"at most {MAX_PRONUNCIATIONS} are allowed")
        for word, spelling in self._spellings.items():
            if not word.strip() or not spelling.strip():
                raise _refused(f"{word!r}: {spelling!r} has an empty word or spelling")
            if len(word) > MAX_WORD_CHARS or len(spelling) > MAX_SPELLING_CHARS:
                raise _refused(
                    f"a word has at most {MAX_WORD_CHARS} characters and what is spoken for it "
                    f"{MAX_SPELLING_CHARS}"
                )
        words = sorted(self._spellings, key=len, reverse=True)  # prefer the longest match
        self._by_group = [self._spellings[word] for word in words]
        # a group each: letters that are equal but for their case may differ in lower case, too
        self._whole = _pattern((f"({re.escape(word)})" for word in words), r"(?!\w)")
        self._begun = _pattern(map(_beginning_of, words), r"\Z")

    def __bool__(self) -> bool:
        return bool(self._spellings)

    def settled(self, text: str, start: int, *, is_all: bool) -> tuple[str, int]:
        """Return the replaced text, and where the part begins that later text may still change.

        Args:
            text: Any text.
            start: Text before this index was returned earlier; it only tells whether a word begins.
            is_all: No text follows.
        """
        spoken: list[str] = []
        while start < len(text) and self._spellings:
            word = self._whole.search(text, start)
            begun = None if is_all else self._begun.search(text, start)
            if begun is not None and (word is None or begun.start() <= word.start()):
                spoken.append(text[start : begun.start()])
                return "".join(spoken), begun.start()
            if word is None:
                break
            spoken += [text[start : word.start()], self._by_group[(word.lastindex or 1) - 1]]
            start = word.end()
        return "".join([*spoken, text[start:]]), len(text)


class SpokenText:
    """Converts a text that arrives in parts to spoken text and pauses."""

    def __init__(self, pronunciations: Pronunciations):
        self._pronunciations = pronunciations
        self._controls = ControlFilter(only_escapes=True)
        self._rest = ""  # unsettled; its first `_num_done` characters are context only
        self._num_done = 0

    def write(self, text: str) -> list[str | Pause]:
        """Add text; return what later text cannot change. Raises InvalidRequest: see `Pause`."""
        return self._split(self._controls.write(text), is_all=False)

    def close(self) -> list[str | Pause]:
        """Return the rest; no text follows."""
        return self._split(self._controls.close(), is_all=True)

    def _split(self, text: str, *, is_all: bool) -> list[str | Pause]:
        self._rest += text
        made: list[str | Pause] = []
        while pause := _PAUSE.search(self._rest, self._num_done):
            before, after = self._rest[: pause.start()], self._rest[pause.end() :]
            made.append(self._pronunciations.settled(before, self._num_done, is_all=True)[0])
            made.append(Pause(_seconds(pause)))
            self._rest, self._num_done = after, 0
        end = len(self._rest) if is_all else _end_of_certain(self._rest, self._num_done)
        spoken, done = self._pronunciations.settled(
            self._rest[:end], self._num_done, is_all=is_all or end < len(self._rest)
        )
        made.append(spoken)
        # the character before tells whether a word begins
        kept = max(0, done - 1)
        self._rest, self._num_done = self._rest[kept:], done - kept
        return [part for part in made if part]


def spoken_parts(text: str, pronunciations: Pronunciations) -> list[str | Pause]:
    """Return the spoken text and pauses of a complete text.

    Raises:
        InvalidRequest: A pause is too long.
    """
    spoken = SpokenText(pronunciations)
    return _merged([*spoken.write(text), *spoken.close()])


def _merged(parts: Sequence[str | Pause]) -> list[str | Pause]:
    merged: list[str | Pause] = []
    for part in parts:
        if isinstance(part, str) and merged and isinstance(merged[-1], str):
            merged[-1] += part
        else:
            merged.append(part)
    return merged


def _pattern(words: Iterable[str], end: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w)(?:{'|'.join(words)}){end}", re.IGNORECASE)


def _beginning_of(word: str) -> str:
    """Return a pattern that matches the word and each of its prefixes."""
    first, *rest = map(re.escape, word)
    return first + "".join(f"(?:{character}" for character in rest) + ")?" * len(rest)


def _end_of_certain(text: str, start: int) -> int:
    """Return where an unfinished pause tag may begin; else the end of the text."""
    bracket = text.rfind("[", max(start, len(text) - _LONGEST_PAUSE))
    if bracket < 0:
        return len(text)
    begun, head = text[bracket:].lower(), "[pause:"
    may_follow = begun in head or re.fullmatch(r"\[pause:[\d.]*m?s?", begun)
    return bracket if may_follow else len(text)


def _seconds(pause: re.Match[str]) -> float:
    seconds = float(pause[1]) / (1000 if pause[2].lower() == "ms" else 1)
    if seconds > MAX_PAUSE_S:
        raise InvalidRequest(
            f"{pause[0]} is longer than the {MAX_PAUSE_S:g} s that a pause may last", param="input"
        )
    return seconds


def _refused(why: str) -> InvalidRequest:
    return InvalidRequest(f"pronunciations: {why}", param="pronunciations")


class PausingText:
    """Turns text into parts of pieces, and the pauses between them.

    A pause ends a piece. The text between two pauses is a text of its own for the model.

    Args:
        open_stream: Opens the model's text stream for one such text, with a name for its requests.
        name: The name of the first one.
        pronunciations: Replacements of words.

    Raises:
        InvalidRequest: The model cannot do what was requested.
    """

    def __init__(
        self,
        open_stream: Callable[[str], TextStream],
        name: str,
        pronunciations: Pronunciations,
    ):
        self._open_stream, self._name = open_stream, name
        self._spoken = SpokenText(pronunciations)
        self._stream: TextStream | None = open_stream(name)
        self._num_texts = 1
        self._num_pieces = self._first_piece = 0  # of all texts; of the current one
        self._unsayable: InvalidRequest | None = None

    def write(self, text: str) -> Sequence[TextPart | Pause]:
        """Add text; return what is now certain.

        Raises:
            InvalidRequest: A pause is too long.
        """
        return self._parts(self._spoken.write(text))

    def close(self) -> Sequence[TextPart | Pause]:
        """Return the rest; no text follows.

        Raises:
            InvalidRequest: Nothing in the whole text can be spoken.
        """
        made = [*self._parts(self._spoken.close()), *self._end()]
        if self._num_pieces == 0:
            raise self._unsayable or InvalidRequest(
                "the text contains nothing that can be spoken", param="input"
            )
        return made

    def _parts(self, spoken: Sequence[str | Pause]) -> list[TextPart | Pause]:
        made: list[TextPart | Pause] = []
        for part in spoken:
            if isinstance(part, Pause):
                made += [*self._end(), part]
                continue
            if self._stream is None:
                self._stream = self._open_stream(f"{self._name}.{self._num_texts}")
                self._num_texts += 1
            made += self._numbered(self._stream.write(part))
        return made

    def _end(self) -> list[TextPart]:
        """End the current text; skip it if nothing in it can be spoken."""
        stream, self._stream = self._stream, None
        if stream is None:
            return []
        try:
            made = self._numbered(stream.close())
        except InvalidRequest as error:
            self._unsayable = self._unsayable or error
            return []
        self._first_piece = self._num_pieces
        return made

    def _numbered(self, parts: Sequence[TextPart]) -> list[TextPart]:
        made = [replace(part, piece=self._first_piece + part.piece) for part in parts]
        self._num_pieces = max([self._num_pieces, *(part.piece + 1 for part in made)])
        return made
