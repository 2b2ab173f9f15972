"""Numbers of other countries' notation in English notation: "1.234,56" is "1234.56"."""

from __future__ import annotations

import re
from re import Match

from izwi_models.english.units import EXPRESSION, is_unit

_SPACES = "\u00a0\u2009\u202f"
# These spaces do not break a line, so the groups belong together.
_THIN = re.compile(rf"(?<![\d.,+{_SPACES}])[1-9]\d{{0,2}}(?:[{_SPACES}]\d{{3}})+(?![\d{_SPACES}])")
_EUROPEAN = re.compile(r"(?<![\d.,])(\d{1,3}(?:[. ]\d{3})+),(\d{1,2})(?![\d,])")
_POINTS = re.compile(r"(?<![\w.,])\d{1,3}(?:\.\d{3}){2,}(?![\d,]|\.\d)")
_SPACED = re.compile(r"(?<![\d.,+])(?<!\+\d )(?<!\+\d\d )\d{1,3}(?: \d{3}){2,}\b(?![ .,-]?\d)")
_ZEROS = re.compile(r"(?<![\d.,])\d{1,3}(?: 000)+\b(?![.,]?\d)")
_SWISS = re.compile(r"(?<![\d.,'])\d{1,3}(?:'\d{3})+(?!\d)")
_INDIAN = re.compile(r"(?<![\d.,])\d{1,2}(?:,\d{2})+,\d{3}(?![\d,])")
_BELOW_ONE = re.compile(r"0,(?<![\w,.(\[{]0,)(?=\d+(?![\d,]))")
# Without these, none of the above is in a text.
_HAS_COMMA = re.compile(r",\d{1,2}(?!\d)")
_HAS_POINTS = re.compile(r"\.\d{3}\.")
_HAS_GROUPS = re.compile(r"\d \d{3}(?!\d)")
# "1,5" may be two numbers; before a unit it is one.
_BEFORE_UNIT = re.compile(rf"(?<![\d,.])(\d+),(\d{{1,2}})( ?)({EXPRESSION})(?!\w)")


def join_thin_spaces(text: str) -> str:
    """Join groups of digits between spaces that do not break; normalization makes them plain."""
    if text.isascii():
        return text
    return _THIN.sub(lambda m: re.sub(rf"[{_SPACES}]", "", m[0]), text)


def to_english(text: str) -> str:
    """Write numbers with a decimal point, and without the separators that English does not use."""
    if "'" in text:
        text = _SWISS.sub(lambda m: m[0].replace("'", ""), text)
    if _HAS_POINTS.search(text):
        text = _POINTS.sub(_without_points, text)
    if "0," in text:
        text = _BELOW_ONE.sub("0.", text)
    if _HAS_COMMA.search(text):
        text = _EUROPEAN.sub(lambda m: re.sub("[. ]", "", m[1]) + "." + m[2], text)
        text = _INDIAN.sub(lambda m: m[0].replace(",", ""), text)
        text = _BEFORE_UNIT.sub(_decimal, text)
    if _HAS_GROUPS.search(text) is None:
        return text
    text = _SPACED.sub(lambda m: m[0].replace(" ", ""), text)
    return _ZEROS.sub(lambda m: m[0].replace(" ", ""), text)


def _without_points(match: Match[str]) -> str:
    groups = match[0].split(".")
    is_address = len(groups) == 4 and all(int(group) < 256 for group in groups)
    return match[0] if is_address else "".join(groups)


def _decimal(match: Match[str]) -> str:
    whole, decimals, space, unit = match.groups()
    if not is_unit(unit, space, match.string[match.end() :]):
        return match[0]
    return f"{whole}.{decimals}{space}{unit}"
