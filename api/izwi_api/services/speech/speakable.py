"""The spoken form of a chat answer, while it is being written. Pure.

Code blocks, tables and emoji are left out. A link is spoken by its text, a bare address by its
host. The number of a source, "[1]" behind a word or as a link, is left out, too. Headings and list
items lose their marks and become sentences; emphasis and inline code lose theirs. The result
depends on the text only, not on how it was split.
"""

from __future__ import annotations

import re
import unicodedata
from urllib.parse import urlsplit

_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})")
_MARKS = r"(?:[ \t]*(?:#{1,6}|>+|[-*+•]|\d{1,3}[.)])[ \t]+)"
_MARKER = re.compile(f"{_MARKS}+")
# The beginning of a line that may still become a fence or a longer marker.
_MAY_BEGIN = re.compile(_MARKS + r"*[ \t]*(?:`{0,3}|~{0,3}|#{0,6}|>+|[-*+•]|\d{1,3}[.)]?)[ \t]*")
_MAY_BE_RULE = re.compile(r"[ \t]*([-*_])(?:[ \t]*\1)*[ \t]*")
_RULE = re.compile(r"[ \t]*([-*_])(?:[ \t]*\1){2,}[ \t]*")
_LINK = re.compile(r"!?\[([^\[\]\n]*)\]\(([^()\n]*)\)")
# As in Markdown, the closing marks are as many as the opening ones, so that a split cannot pair
# others.
_CODE = re.compile(r"(?<!`)(`+)(?!`)([^`\n]*)\1(?!`)")
# The numbers of sources: as links, in lenticular brackets, and behind a word or a mark.
_SOURCES = re.compile(
    r"\[\[?\^?\d{1,3}\]?\]\([^()\n]*\)|【[^【】\n]{0,80}】"
    r"|(?<=[A-Za-z.,;:!?\"')”])(?:\[\^?[1-9]\d{0,2}(?:[,–-] ?[1-9]\d{0,2}){0,9}\])+(?![(\w])"
)
_ADDRESS = re.compile(r"<?\b(?:https?://|www\.)[^\s<>\"']+>?")
_EMPHASIS = re.compile(
    r"(?<=\S)\*+|\*+(?=\S)|~~|(?<!\w)_+(?=\w)|(?<=\w)_+(?!\w)|(?<=[.!?,;:])_+(?!\w)"
)
_TAG = re.compile(r"</?[A-Za-z][\w-]{0,20}/?>")
_ENDS_SENTENCE = re.compile(r"[.!?:;,…。！？][\"'”’)\]]*$")
# Positions behind white space at which no construct is open, so that text can be emitted.
_LAST_SPACE = re.compile(r"\s(?=\S*$)")
# A construct that stays open for longer than this is taken as plain text.
_MAX_OPEN_CHARS = 300
_KEPT_SYMBOLS = frozenset("°©®™№℃℉")


class SpeakableText:
    """Takes the text of an answer in parts, and returns what to speak."""

    def __init__(self) -> None:
        self._rest = ""  # not emitted yet; of one line, once its beginning is known
        self._fence = ""  # the mark that closes the current code block
        self._at_start = True  # at the start of a line
        self._is_item = False  # the line had a marker, so it becomes a sentence
        self._last = ""  # the last character emitted of this line
        self._space = ""  # white space after that; dropped before a full stop

    def write(self, text: str) -> str:
        """Add text; return what is now certain."""
        self._rest += text
        return "".join(iter(lambda: self._next(ended=False), None))

    def close(self) -> str:
        """Return the rest; no text follows."""
        return "".join(iter(lambda: self._next(ended=True), None))

    def _next(self, *, ended: bool) -> str | None:
        """Take what is certain off the beginning of the text; None if nothing is."""
        line, newline, after = self._rest.partition("\n")
        if not self._rest or (self._at_start and not newline and not ended and _is_open(line)):
            return None
        if self._at_start and (self._fence or _FENCE.match(line) or line.lstrip()[:1] == "|"):
            if not newline and not ended:
                return None  # skipped as a whole
            self._rest = after
            self._skip(line)
            return ""
        if self._at_start:
            if _RULE.fullmatch(line) and (newline or ended):
                self._rest = after
                return ""
            marker = _MARKER.match(line)
            self._is_item = marker is not None
            self._at_start = False
            self._rest = self._rest[marker.end() if marker else 0 :]
            return ""
        if newline or ended:
            self._rest, self._at_start = after, True
            return self._end_line(line, newline)
        place = _settled(line)
        if not place:
            return None
        self._rest = line[place:]
        return self._say(line[:place])

    def _skip(self, line: str) -> None:
        """Skip a line of a code block or a table."""
        fence = _FENCE.match(line)
        if self._fence:
            if fence and fence[1].startswith(self._fence) and not line.strip().strip(fence[1][0]):
                self._fence = ""
        elif fence:
            self._fence = fence[1]

    def _end_line(self, line: str, newline: str) -> str:
        said = self._say(line)
        whole = self._last.rstrip()
        if self._is_item and newline and whole and not _ENDS_SENTENCE.search(whole):
            said += "."
        else:
            said += self._space
        self._last, self._space, self._is_item = "", "", False
        return said + newline

    def _say(self, text: str) -> str:
        said = self._space + _plain(text)
        kept = said.rstrip() if self._is_item else said
        self._space = said[len(kept) :]
        self._last = (self._last + kept)[-8:]
        return kept


def _is_open(line: str) -> bool:
    """Whether the beginning of a line may still turn out to be something else."""
    return len(line) < _MAX_OPEN_CHARS and bool(
        _MAY_BEGIN.fullmatch(line) or _MAY_BE_RULE.fullmatch(line)
    )


def _settled(line: str) -> int:
    """Return how much of an unfinished line is certain: up to a space with nothing open before."""
    space = _LAST_SPACE.search(line)
    place = space.end() if space else 0
    settled = _LINK.sub(lambda link: "x" * len(link[0]), line[:place])
    settled = _CODE.sub(lambda code: "x" * len(code[0]), settled)
    opened = [at for at in map(settled.find, "[`") if at >= 0 and len(line) - at < _MAX_OPEN_CHARS]
    if not opened:
        return place
    before = _LAST_SPACE.search(settled[: min(opened)])
    return before.end() if before else 0


def _plain(text: str) -> str:
    text = _LINK.sub(lambda link: link[1], _SOURCES.sub("", text))
    text = _CODE.sub(lambda code: code[2], text)
    text = _ADDRESS.sub(_host, text)
    text = _EMPHASIS.sub("", _TAG.sub("", text))
    return "".join(character for character in text if not _is_picture(character))


def _host(address: re.Match[str]) -> str:
    whole = address[0].strip("<>")
    end = re.search(r"[.,;:!?)]*$", whole)
    tail = end[0] if end else ""
    url = whole[: len(whole) - len(tail)]
    try:
        host = urlsplit(url if "//" in url else f"//{url}").hostname or ""
    except ValueError:
        host = ""
    return host.removeprefix("www.") + tail


def _is_picture(character: str) -> bool:
    """Whether a character is an emoji or pictogram, or joins or colors them."""
    if character < "\u2000":
        return False
    code = ord(character)
    if character == "\u200d" or 0xFE00 <= code <= 0xFE0F or 0xE0000 <= code <= 0xE007F:
        return True
    if 0x1F3FB <= code <= 0x1F3FF or code == 0x20E3:
        return True
    return unicodedata.category(character) == "So" and character not in _KEPT_SYMBOLS
