"""Hyphens and dashes that are read "to", and those that are read "minus"."""

from __future__ import annotations

import re
from re import Match

from izwi_models.english.units import EXPRESSION, is_unit

_MONTHS = (
    "Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?"
    "|Sept?(?:ember)?|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?"
)
_NUMBER = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?"
_TIME = r"\d{1,2}(?::\d{2}(?::\d{2})?)?"
_HALF = r" ?[AaPp]\.? ?[Mm]\b"
_CLOCKS = re.compile(
    rf"(?<![\w:./,$-])({_TIME}(?:{_HALF}\.?)?)( ?[-–—] ?)"
    rf"({_TIME}(?![\w:]|[.,]\d)|{_TIME}(?={_HALF}))"
)
# Without these, no rule applies.
_HAS_MONTH = re.compile(rf"[-–—] ?(?:{_MONTHS})|(?:{_MONTHS})\.? ?[-–—] ?\d")
_HAS_NUMBER = re.compile(r"[-–—−] ?['(−-]?\d|[\d)] ?−|−[ A-Za-z(]|\d[-–][A-Z]\d")
_ORDINALS = re.compile(r"(?<=\d(?:st|nd|rd|th)) ?[-–—] ?(?=\d+(?:st|nd|rd|th)\b)")
_DECADES = re.compile(r"(?<=\d0s) ?[-–—] ?(?='?(?:\d\d)?\d0s\b)")
_TO_MONTH = re.compile(
    rf"(?:(?<=\d)|(?<=\d(?:st|nd|rd|th))) ?[-–—] ?(?=(?:{_MONTHS})\b\.? \d)"
    rf"|\b({_MONTHS})(\.?) ?[-–—] ?(?=(?:\d{{1,2}} )?(?:{_MONTHS})\b)"
)
_DAY_OF = re.compile(rf"\b(?:({_MONTHS})-(\d{{1,2}})|(\d{{1,2}})-({_MONTHS}))-(\d{{4}}|\d\d)\b")
_SERIES = re.compile(r"\b([A-Z])(\d{1,2})[-–](?=\1\d{1,2}\b)")
_EQUATION = re.compile(rf"(?<=\d) ?[-–—] ?(?=(?:{_NUMBER}) ?=)")
_MINUS = re.compile(r"(?<=[\w)]) ?− ?(?=[\w(])|(?<!\S)−(?= |[A-Za-z(])")
_SPACED = re.compile(r"(?<=[\d%°]) [-–—] (?=\d)")
_SHARES = re.compile(r"(?<=%)[-–—](?=\d)")
_TO_NEGATIVE = re.compile(r"(?<=[\d%°]) ?[–—] ?(?=[-−]\d)|(?<=[\d%°]) - (?=[-−]\d)")
_OF_UNITS = re.compile(
    rf"(?<![\w.,-])({_NUMBER})( ?)({EXPRESSION})( ?[-–—] ?)(?=[-−]?(?:{_NUMBER}) ?[A-Za-z°%])"
)
_TO_UNIT = re.compile(
    rf"(?<![\w.,/-])(-?(?:{_NUMBER}))( ?[-–—] ?)({_NUMBER})( ?)({EXPRESSION}|x)(?![\w°])"
)


def say_ranges(text: str) -> str:
    """Write dashes between two numbers of a kind as words, where the kind is certain."""
    if _HAS_MONTH.search(text):
        text = _TO_MONTH.sub(lambda m: f"{m[1] or ''}{m[2] or ''} to ", text)
        text = _DAY_OF.sub(lambda m: " ".join(part for part in m.groups() if part), text)
    if _HAS_NUMBER.search(text) is None:
        return text
    text = _EQUATION.sub(" minus ", _MINUS.sub(" minus ", text))
    text = _CLOCKS.sub(_clocks, text)
    text = _DECADES.sub(" to ", _ORDINALS.sub(" to ", text))
    text = _SERIES.sub(r"\1\2 to ", text)
    text = _OF_UNITS.sub(_of_units, text)
    text = _TO_UNIT.sub(_to_unit, text)
    text = _SHARES.sub(" to ", _TO_NEGATIVE.sub(" to ", text))
    return _SPACED.sub(" to ", text)


def _clocks(match: Match[str]) -> str:
    first, _, last = match.groups()
    is_half = re.match(_HALF, match.string[match.end() :]) is not None
    if ":" in match[0] or is_half or first[-1] in "mM.":
        return f"{first} to {last}"
    return match[0]


def _of_units(match: Match[str]) -> str:
    number, space, unit, _ = match.groups()
    if not is_unit(unit, space, " "):
        return match[0]
    return f"{number}{space}{unit} to "


def _to_unit(match: Match[str]) -> str:
    first, _, last, space, unit = match.groups()
    after = match.string[match.end() :]
    if unit != "x" and not is_unit(unit, space, after):
        return match[0]
    return f"{first} to {last}{space}{unit}"
