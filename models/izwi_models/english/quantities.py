"""Quantities and plain numbers in words."""

from __future__ import annotations

import re
from re import Match

from izwi_models.english.money import counted, say_money
from izwi_models.english.numbers import cardinal, digits, fraction, ordinal
from izwi_models.english.numerals import to_english
from izwi_models.english.phones import groups, say_phones
from izwi_models.english.units import (
    EXPRESSION,
    is_unit,
    say_bare_units,
    say_consumption,
    unit_words,
)

_DIRECTIONS = {"N": "north", "S": "south", "E": "east", "W": "west"}
_NUMBER = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?"
_SAID_DENOMINATORS = frozenset((*range(2, 11), 16, 32, 64, 100))

_SIZED = re.compile(
    rf"(?<![A-Za-z\d])({_NUMBER})((?: (?:hundred|thousand|million|billion|trillion))?)( ?)"
    rf"({EXPRESSION})(?![\w°]|/[A-Za-z])"
)
_DOTTED_UNIT = re.compile(r"(?<=\d)( ?(?:ft|lbs?|oz|hrs?|min|sec))\.(?= [a-z])")
_INCHES = re.compile(r"(?<=\d) in\.(?= [a-z])")
_SPOONS = re.compile(r"\b(t|tb)sp\b")
_LASTING = re.compile(r"\b(\d+)(h|m) ?(\d{1,2})(m|s)(?:in)?(?: ?(\d{1,2})s)?\b")
_WORD_TO = re.compile(r"(?<=[A-Za-z%°])–(?=[\w$£€])|(?<=\d)–(?=[A-Za-z])")
_DIRECTION = re.compile(r"(?<=\d) ?° ?([NSEW])\b")
_HALVES = re.compile(r"\b(50)-(50)\b|\b(24)-(7)\b")
_RETIREMENT = re.compile(r"\b40([13])\(([kb])\)")  # "401(k)", a plan
_STARS = re.compile(r"(?<![\d/])(\d+(?:\.\d)?)/(5|10)(?= stars?\b)")
_POSTCODE = re.compile(r"(?<![\w-])(\d{5})-(\d{4})(?![\w-])")
# Credit cards, and social security numbers.
_IDENTITY = re.compile(r"(?<![\w-])(?:\d{4}(?:[ -]\d{4}){3}|\d{3}-\d\d-\d{4})(?![\w-])")
_SERIAL = re.compile(r"(?<![\w-])\d+(?:-\d+){3,}(?![\w-])")
_MILLIONS = re.compile(r"\b(\d+(?:\.\d+)?)M\b")
_MIXED = re.compile(r"(?<![\d/.])(\d+)[ -](\d{1,2})[/⁄](\d{1,3})(?![\d/])")
_FRACTION = re.compile(r"(?<![\d/.])(\d{1,3})[/⁄](\d{1,3})(?![\d/])")
_RANGE = re.compile(rf"(?<![\w.-])({_NUMBER}) ?[-–] ?({_NUMBER})(?![\w-]|\.\d)")
_PRODUCT = re.compile(r"(?<=\d) ?[x×] ?(?=\d)")
_DOTTED = re.compile(r"\bv?(\d+(?:\.\d+){2,})\b|\bv(\d+(?:\.\d+)?)\b")
_ORDINAL = re.compile(r"\b(\d{1,3}(?:,\d{3})+|\d+)(?:st|nd|rd|th|ST|ND|RD|TH)\b")
# "4K" is a picture resolution
_THOUSANDS = re.compile(r"\b(\d+(?:\.\d+)?)k\b|\b(\d{2,}(?:\.\d+)?)K\b")
_TIMES = re.compile(r"(?<=\d)x\b(?! ?[=+])")
_HEIGHT = re.compile(r"(?<![\w.])(\d)' ?(\d{1,2})(?:\"|''|(?![\w.:/%]))")
_RATIO = re.compile(r"(?<![\d:])(\d+):(\d+)(?![\d:])")
_CHAIN = re.compile(r"(?<=\d)[-–](?=\d)")
_JOINED = re.compile(r"(?<=[A-Za-z])-(?=\d)|(?<=\d)-(?=[A-Za-z])")
_MODELS = re.compile(r"(?<=[A-Z])-(\d{1,3})s\b")  # "F-16s"
_MINUS = re.compile(r"(?<![\w)])[-−](?=\d|\.\d)")
_ABOUT = re.compile(r"~ ?(?=\d)")
_POINT = re.compile(r"(?<!\d)\.(\d+)")
_ANY = re.compile(_NUMBER)


def say_quantities(text: str) -> str:
    """Write all remaining digits of a text as words."""
    if not any(character.isdigit() for character in text):
        return say_bare_units(_WORD_TO.sub(" to ", text))
    text = say_money(to_english(say_phones(text)))
    text = _WORD_TO.sub(" to ", text)
    text = _POSTCODE.sub(lambda m: groups([m[1], m[2]]), text)
    text = _IDENTITY.sub(lambda m: groups(re.split("[ -]", m[0])), text)
    text = _SERIAL.sub(lambda m: groups(m[0].split("-")), text)
    if "40" in text:
        text = _RETIREMENT.sub(r"four oh \1 \2", text)
    if "50-50" in text or "24-7" in text:
        text = _HALVES.sub(r"\1\3 \2\4", text)
    text = _STARS.sub(r"\1 out of \2", text)
    text = _LASTING.sub(_lasting, text)
    text = _DIRECTION.sub(lambda m: f" degrees {_DIRECTIONS[m[1]]}", text)
    text = _JOINED.sub(" ", _MODELS.sub(lambda m: f" {cardinal(m[1])}'s", text))
    text = _MINUS.sub("minus ", text)
    text = _ABOUT.sub("about ", text)
    text = _DOTTED.sub(_version, text)
    text = _ORDINAL.sub(lambda m: ordinal(int(m[1].replace(",", ""))), text)
    text = _MIXED.sub(_mixed, text)
    text = _FRACTION.sub(_fraction, text)
    text = _RANGE.sub(r"\1 to \2", _HEIGHT.sub(r"\1 foot \2", text))
    text = _CHAIN.sub(" ", _RATIO.sub(r"\1 to \2", text) if ":" in text else text)
    text = _PRODUCT.sub(" by ", say_consumption(text))
    text = _SIZED.sub(_sized, _INCHES.sub("in", _DOTTED_UNIT.sub(r"\1", text)))
    text = say_bare_units(text)
    text = _SPOONS.sub(lambda m: "teaspoon" if m[1] == "t" else "tablespoon", text)
    text = _THOUSANDS.sub(lambda m: f"{cardinal(m[1] or m[2])} thousand", text)
    text = _MILLIONS.sub(lambda m: f"{cardinal(m[1])} million", text)
    text = _TIMES.sub(" times", text)
    text = _POINT.sub(lambda m: f" point {digits(m[1])}", text)
    return _ANY.sub(lambda m: f" {cardinal(m[0])} ", text)


def _lasting(match: Match[str]) -> str:
    first, of_first, second, of_second, third = match.groups()
    if of_first == of_second or (third and of_second == "s"):
        return match[0]
    names = {"h": ("hour", "hours"), "m": ("minute", "minutes"), "s": ("second", "seconds")}
    rest = f" {counted(third, *names['s'])}" if third else ""
    return f"{counted(first, *names[of_first])} {counted(second, *names[of_second])}{rest}"


def _version(match: Match[str]) -> str:
    parts = (match[1] or match[2]).split(".")
    said = f" {'dot' if match[1] else 'point'} ".join(cardinal(part) for part in parts)
    return f"version {said}" if match[0].startswith("v") else said


def _mixed(match: Match[str]) -> str:
    whole, above, below = match[1], int(match[2]), int(match[3])
    if not 0 < above < below:
        return match[0]
    part = fraction(above, below)
    return f"{cardinal(whole)} and {'a ' + part[4:] if above == 1 else part}"


def _fraction(match: Match[str]) -> str:
    above, below = int(match[1]), int(match[2])
    if 0 < above < below and below in _SAID_DENOMINATORS:
        return fraction(above, below)
    return f"{cardinal(match[1])} {cardinal(match[2])}"


def _sized(match: Match[str]) -> str:
    number, magnitude, space, unit = match.groups()
    words = unit_words(unit, is_one=number == "1" and not magnitude)
    if words is None or not is_unit(unit, space, match.string[match.end() :]):
        return match[0]
    return f" {cardinal(number)}{magnitude} {words}"
