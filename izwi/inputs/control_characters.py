"""Remove control characters and terminals' escape sequences from text, also while it arrives. Pure.

Colors and titles vanish. Any other control character, or movement of a cursor, separates words as a
space does; vertical tabs, form feeds and the separators of lines and paragraphs end a line.
"""

from __future__ import annotations

import re
from re import Match

_LONGEST_PARAMETERS, _LONGEST_STRING = 64, 1000
_CSI = rf"(?:\x1b\[|\x9b)[0-?]{{0,{_LONGEST_PARAMETERS}}}[ -/]{{0,4}}"
_STRING = rf"\x1b[\]PX^_][^\x07\x1b\x9c\r\n]{{0,{_LONGEST_STRING}}}"  # OSC, DCS, SOS, PM, APC
_ESCAPE = re.compile(
    rf"{_CSI}([@-~])|{_STRING}(?:\x07|\x1b\\|\x9c)|\x1b[ -/]{{0,4}}[0-OQ-WYZ\\`-~]"
)
# The beginning of a sequence whose end has not arrived.
_UNFINISHED = re.compile(rf"(?:{_CSI}|{_STRING}\x1b?|\x1b[ -/]{{0,4}})\Z")
_ANY = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029]")
_LINE_ENDS = dict.fromkeys(map(ord, "\x0b\x0c\x85\u2028\u2029"), "\n")
# What these bytes are in Windows-1252, in which much text was before it was decoded wrongly.
_WINDOWS = dict(zip(map(ord, "\x80\x91\x92\x93\x94\x96\x97"), "€‘’“”–—", strict=True))
_SEPARATORS = dict.fromkeys((*range(9), *range(14, 32), *range(127, 160)), " ")
_PRINTABLE = _SEPARATORS | _WINDOWS | _LINE_ENDS


class ControlFilter:
    """Removes the control characters of a text that arrives in parts."""

    def __init__(self, *, only_escapes: bool = False) -> None:
        """Bind whether control characters outside of escape sequences stay."""
        self._only_escapes = only_escapes
        self._rest = ""  # the beginning of an escape sequence

    def write(self, text: str) -> str:
        """Add text; return what is certain of it, without control characters."""
        text, self._rest = self._rest + text, ""
        if _ANY.search(text) is None:
            return text
        begun = _UNFINISHED.search(text)
        if begun is not None:
            text, self._rest = text[: begun.start()], text[begun.start() :]
        return self._clean(text)

    def close(self) -> str:
        """Return the rest at the end of the text."""
        rest, self._rest = self._rest, ""
        return "" if re.match(_CSI, rest) else self._clean(rest)

    def _clean(self, text: str) -> str:
        text = _ESCAPE.sub(_replacement, text)
        return text if self._only_escapes else text.translate(_PRINTABLE)


def without_controls(text: str) -> str:
    """Remove the control characters of a whole text."""
    controls = ControlFilter()
    return controls.write(text) + controls.close()


def _replacement(match: Match[str]) -> str:
    """Return a space for a movement of the cursor, which separates words."""
    return " " if match[1] and match[1] not in "mK" else ""
