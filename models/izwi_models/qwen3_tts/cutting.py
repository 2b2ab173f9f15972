"""Split text into pieces that a checkpoint can speak, while the text is still being written. Pure.

Where a piece ends depends only on the text, not on how or when it arrived.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

# Ends of pieces, in order of preference. A closing quote or bracket stays with its sentence.
_ENDS = (
    re.compile(r"[.!?…]+[\"'”’)\]]*(?=\s)|[。！？]+[”’」』）]*|\n+"),
    re.compile(r"[,;:–—]+[\"'”’)\]]*(?=\s)|[，、；：]"),
    re.compile(r"\s+"),
)
# Characters that are examined in one pass, so that the cost is linear in the length of a text.
_BLOCK = 4096


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
