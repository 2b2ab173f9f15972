"""Split a text into the words to be timed. Knows no tokens and no audio.

Source: qwen_asr 0.0.6, inference/qwen3_forced_aligner.py `Qwen3ForceAlignProcessor`. Words have
    only letters, digits and apostrophes; each has its position in the text.
"""

from __future__ import annotations

import importlib
import unicodedata
from collections.abc import Iterator, Set

from msgspec import Struct

from izwi.errors import InvalidRequest

# CJK Unified Ideographs, their extensions A to E, and the compatibility ones.
_IDEOGRAPHS = (
    range(0x3400, 0x4DC0),
    range(0x4E00, 0xA000),
    range(0xF900, 0xFB00),
    range(0x20000, 0x2A6E0),
    range(0x2A700, 0x2CEB0),
)
_SHORT_KOREAN = 2  # shorter words are never split, and a stem has at least this many syllables


class Word(Struct, frozen=True):
    """One word of a text.

    Attributes:
        text: Its letters, digits and apostrophes.
        start: Where it begins in the text, in characters.
        stop: Where it ends there.
    """

    text: str
    start: int
    stop: int


def split_words(
    text: str, language: str | None, korean_stems: Set[str] = frozenset()
) -> list[Word]:
    """Cut a text into words.

    Args:
        text: The spoken text, with punctuation.
        language: Name of its language, as "Japanese"; None for one that writes spaces, or Chinese.
        korean_stems: Known stems; a Korean word is split after its longest known stem. Without
            stems it stays whole.

    Raises:
        InvalidRequest: Splitting the language needs a package that is not installed.
    """
    if language == "Japanese":
        return list(_japanese(text))
    pieces = _korean(text, korean_stems) if language == "Korean" else _around_ideographs(text)
    words = []
    for start, stop in pieces:
        kept = _kept(text[start:stop])
        if kept:
            words.append(_trimmed(text, kept, start, stop))
    return words


def _trimmed(text: str, kept: str, start: int, stop: int) -> Word:
    """The word without surrounding punctuation; punctuation inside it is kept."""
    while not _is_kept(text[start]):
        start += 1
    while not _is_kept(text[stop - 1]):
        stop -= 1
    return Word(kept, start, stop)


def _around_ideographs(text: str) -> Iterator[tuple[int, int]]:
    """Split at white space, with each ideograph by itself."""
    for start, stop in _between_spaces(text):
        begun = start
        for index in range(start, stop):
            if _is_ideograph(text[index]):
                yield begun, index
                yield index, index + 1
                begun = index + 1
        yield begun, stop


def _korean(text: str, stems: Set[str]) -> Iterator[tuple[int, int]]:
    for start, stop in _between_spaces(text):
        cut = stop
        if stop - start > _SHORT_KOREAN:
            ends = range(stop, start + _SHORT_KOREAN - 1, -1)
            cut = next((end for end in ends if text[start:end] in stems), stop)
        yield start, cut
        yield cut, stop


def _japanese(text: str) -> Iterator[Word]:
    try:
        nagisa = importlib.import_module("nagisa")
    except ImportError as error:
        raise InvalidRequest(
            "splitting Japanese into words needs the package nagisa, which is not installed here",
            param="language",
        ) from error
    done = 0
    for word in filter(None, map(_kept, nagisa.tagging(text).words)):
        # the output is normalized, so its place in the text is found letter by letter
        start, num_letters = done, 0
        while done < len(text) and num_letters < len(word):
            letters = len(_kept(unicodedata.normalize("NFKC", text[done])))
            if num_letters + letters == 0:
                start = done + 1
            num_letters += letters
            done += 1
        yield Word(word, start, done)


def _between_spaces(text: str) -> Iterator[tuple[int, int]]:
    start = 0
    for index, character in enumerate(text):
        if character.isspace():
            if start < index:
                yield start, index
            start = index + 1
    if start < len(text):
        yield start, len(text)


def _kept(text: str) -> str:
    return "".join(filter(_is_kept, text))


def _is_kept(character: str) -> bool:
    return character == "'" or unicodedata.category(character)[0] in "LN"


def _is_ideograph(character: str) -> bool:
    return _is_kept(character) and any(ord(character) in block for block in _IDEOGRAPHS)
