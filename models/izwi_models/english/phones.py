"""Telephone numbers in words: digits one by one, a comma between groups."""

from __future__ import annotations

import re
from re import Match

from izwi_models.english.numbers import digits

CALLS = "call|dial|ring|phone|text"
_CALL = f"(?:{CALLS}|{'|'.join(map(str.title, CALLS.split('|')))})"
_EMERGENCY = "000|01[56]|10[158]|11[0-9]|[2-8]11|911|988|999"
_SHORT = re.compile(rf"\b({_CALL} )({_EMERGENCY})(?: or ({_EMERGENCY}))?\b(?![.,:/-]?\d)")
_THIRTEEN = re.compile(rf"\b({_CALL} )(13) (\d\d) (\d\d)\b(?![ .,:/-]?\d)")
_AMERICAN = re.compile(
    r"(?<![\w.,$-])((?:\+\d{1,3}|1)[ .-]?)?(?:\((\d{3})\) ?|(\d{3})[ .-])"
    r"(\d{3})[ .-](\d{4})(?![\w-]|\.\d)"
)
_LETTERED = re.compile(r"(?<![\w.,$-])(1)-(8\d\d)-([A-Z]{3,7})\b")
# Australia's numbers without an area code.
_AUSTRALIAN = re.compile(r"(?<![\w.,$-])(1[38]00)[ -](\d{3})[ -](\d{3})(?![\w-]|[ .,]\d)")
_FOREIGN = re.compile(r"(?<!\w)\+\d{1,3}(?:(?: ?\(0\) ?|[ .-])?\(?\d{1,5}\)?){2,6}(?!\w)")
_NATIONAL = re.compile(
    r"(?<![\w.,$-])\(?(0\d{1,4})\)?"
    r"((?:[ -]\d{3,4}){2}|[ -]\d{6,8}|(?:[ .]\d\d){3,4})(?![\w-]|[ .]\d)"
)
_INDIAN = re.compile(r"(?<![\w.,$-])([6-9]\d{4}) (\d{5})(?![\w-]|[ .,]\d)")
_CHINESE = re.compile(r"(?<![\w.,$-])(1[3-9]\d) (\d{4}) (\d{4})(?![\w-]|[ .,]\d)")
_LOCAL = re.compile(r"(?<![\w.,$-])(\d{3})-(\d{4})(?![\w-])")
_FEWEST_DIGITS = 7
# Without these, none of the above is in a text.
_HAS_CALL = re.compile(rf"{_CALL} \d")
_HAS_GROUPS = re.compile(r"\d\d[ .)-]{1,2}\(?\d\d|\d-[\dA-Z]|\+\d|\d \(")


def say_phones(text: str) -> str:
    """Write telephone numbers as words."""
    if _HAS_CALL.search(text):
        text = _SHORT.sub(_short, text)
        text = _THIRTEEN.sub(lambda m: m[1] + groups(m.groups()[1:]), text)
    if _HAS_GROUPS.search(text) is None:
        return text
    text = _AMERICAN.sub(_american, text)
    text = _LETTERED.sub(lambda m: f"{groups([m[1], m[2]])}, {m[3].lower()}", text)
    text = _AUSTRALIAN.sub(lambda m: groups(m.groups()), text)
    if "+" in text:
        text = _FOREIGN.sub(_foreign, text)
    text = _NATIONAL.sub(lambda m: groups([m[1], *re.split("[ .-]", m[2][1:])]), text)
    text = _INDIAN.sub(lambda m: groups(m.groups()), text)
    text = _CHINESE.sub(lambda m: groups(m.groups()), text)
    return _LOCAL.sub(lambda m: groups(m.groups()), text)


def groups(parts: tuple[str, ...] | list[str]) -> str:
    """Say groups of digits with commas between them."""
    return ", ".join(digits(part) for part in parts)


def _short(match: Match[str]) -> str:
    either = f" or {digits(match[3])}" if match[3] else ""
    return f"{match[1]}{digits(match[2])}{either}"


def _american(match: Match[str]) -> str:
    country, area, bare_area, office, line = match.groups()
    spoken = groups([area or bare_area, office, line])
    if not country:
        return spoken
    return f"{'plus ' * country.startswith('+')}{digits(country)}, {spoken}"


def _foreign(match: Match[str]) -> str:
    parts = [part for part in re.split(r"[ .()+-]+", match[0].replace("(0)", " ")) if part]
    if sum(map(len, parts)) < _FEWEST_DIGITS:
        return match[0]
    return "plus " + groups(parts)
