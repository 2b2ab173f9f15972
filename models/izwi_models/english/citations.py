"""Marks that refer to sources and notes, which are not read: "[1]", "[citation needed]"."""

from __future__ import annotations

import re
from re import Match

_NUMBERS = r"\^?[1-9]\d{0,2}(?: ?[,;–—-] ?[1-9]\d{0,2}){0,9}"
_NEEDED = (
    r"(?:citation|clarification|verification|better source|non-primary source|page|full citation)"
    r"s? needed"
)
_ASKED = r"(?:who|whom|by whom|according to whom|when|where|why|which|how|clarify)\?"
_NOTE = r"(?:note|nb|n|fn|ref) ?\d{1,3}|edit|update|dubious(?: [-–] discuss)?"
_MARK = rf"\[(?:{_NUMBERS}|\^[\w-]{{1,20}}|{_NEEDED}|{_ASKED}|{_NOTE})\](?!\()"
# Behind a word or a mark. After a space a number in brackets may be text: "Press [1]".
_MARKS = re.compile(rf"(?<=[\w.,;:!?'\"”’)%°]){_MARK}(?:[,–—-]?{_MARK})*")
# In a word of program code, and behind an index.
_CODE = re.compile(r"\$[A-Za-z_]|[_={}<>\\/()&|`]")
_OPERATORS = ("=", "+", "*", "(", "/", "<", ">")
_LONGEST_NAME = 40
_LETTER = re.compile(r"(?<=[.,;:!?])\[[a-z]\](?!\()")
_SPACED = re.compile(rf"\[{_NEEDED}\](?!\()")
_LINKED = re.compile(r"\(?\[{1,2}\^?\d{1,3}\]{1,2}\([^)\s]{0,200}\)\)?")
_DEFINED = re.compile(r"^\[\^[\w-]{1,20}\]: ?", re.MULTILINE)
_LENTICULAR = re.compile(r"【[^【】\n]{0,80}】")


def without_citations(text: str) -> str:
    """Remove the marks of sources and notes."""
    if "【" in text:
        text = _LENTICULAR.sub("", text)
    if "[" not in text:
        return text
    text = _LINKED.sub("", _DEFINED.sub("", text))
    return _SPACED.sub("", _LETTER.sub("", _MARKS.sub(_mark, text)))


def _mark(match: Match[str]) -> str:
    """Keep what is an index in program code."""
    before = match.string[max(0, match.start() - _LONGEST_NAME) : match.start()].split()[-1]
    after = match.string[match.end() : match.end() + 1]
    return match[0] if _CODE.search(before) or after in _OPERATORS else ""
