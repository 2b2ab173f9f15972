"""Dates and times of day in words."""

from __future__ import annotations

import re
from re import Match

from izwi_models.english.numbers import cardinal, decade, ordinal, two_digits, year
from izwi_models.english.quantities import UNIT

_MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
_SHORT_MONTHS = {name[:3]: name for name in _MONTHS} | {"Sept": "September"}
_WEEKDAYS = {
    "Mon": "Monday",
    "Tue": "Tuesday",
    "Tues": "Tuesday",
    "Wed": "Wednesday",
    "Thu": "Thursday",
    "Thur": "Thursday",
    "Thurs": "Thursday",
    "Fri": "Friday",
}
_MONTH = "|".join((*_MONTHS, *(f"{short}\\b\\.?" for short in _SHORT_MONTHS if short != "May")))
_DAY = r"(\d{1,2})(st|nd|rd|th)?"
_YEAR = r"(\d{4})\b(?![,.:]\d)"

_ISO = re.compile(r"\b(\d{4})([-/])(\d{2})\2(\d{2})\b(?![-/])")
_SLASHED = re.compile(r"\b(\d{1,2})/(\d{1,2})/(\d{4}|\d{2})\b")
_DOTTED = re.compile(r"\b(\d{1,2})\.(\d{1,2})\.(\d{4})\b")
# powers and fractions (with U+2044) are in this form before dates are searched
_NO_POWER = "(?! to the power| squared| cubed)"
_MONTH_FIRST = re.compile(rf"\b({_MONTH}) {_DAY}\b(?![:/%\u2044]){_NO_POWER}(?:,? {_YEAR})?")
_DAY_FIRST = re.compile(rf"\b{_DAY} (?:of )?({_MONTH})(?!\w)(?:,? {_YEAR})?")
_MONTH_YEAR = re.compile(rf"\b({_MONTH}),? {_YEAR}")
_DAYS = {"Sat": "Saturday", "Sun": "Sunday"} | _WEEKDAYS
_DAY_SPAN = re.compile(rf"\b({'|'.join(_DAYS)})(\.?)([-–/])({'|'.join(_DAYS)})\b")
_MONTH_SPAN = re.compile(rf"\b({'|'.join(_SHORT_MONTHS)})[-–]({'|'.join(_SHORT_MONTHS)})\b")
_WEEKEND = re.compile(r"\b(Sat|Sun)\.(?=,)")
_MOMENT = re.compile(
    r"\b(\d{4}-\d{2}-\d{2})T(\d{2}:\d{2})(?::\d{2}(?:\.\d{1,9})?)?(Z|[+-]\d{2}:?\d{2})?(?!\w)"
)
_AMERICAN = re.compile(r"(?<![\d-])(\d{1,2})-(\d{1,2})-(\d{4})\b(?!-)")
_CUT_YEAR = re.compile(r"(?<!\w)'(?=\d\d\b(?!s))")
_DOTTED_CLOCK = re.compile(r"(?<![\d.])(\d{1,2})\.([0-5]\d)(?= ?[AaPp]\.? ?[Mm]\b)")
_HUNDRED_HOURS = re.compile(r"\b([01]\d|2[0-3])00(?= (?:hours|hrs)\b)")
_SHORT_DAY = re.compile(rf"\b({'|'.join(_WEEKDAYS)})\b(?:\.(?!\n)|(?=,))")
_DECADE = re.compile(r"(?<![\d,.$£€])'?\b(\d0|\d{3}0)'?s\b")
_SPAN = re.compile(r"\b(1\d{3}|20\d{2}) ?[-–] ?(1\d{3}|20\d{2}|\d{2})\b(?![-/.]\d)")
_AFTER_WORD = re.compile(
    r"\b((?:[Ii]n|[Ss]ince|[Uu]ntil|[Tt]ill|[Bb]y|[Ff]rom|[Bb]efore|[Aa]fter|[Dd]uring|[Yy]ear"
    r"|[Cc]irca|[Ss]pring|[Ss]ummer|[Aa]utumn|[Ff]all|[Ww]inter|[Ee]arly|[Ll]ate)"
    r"(?: of)? )(1[0-9]\d{2}|20\d{2})\b(?![,.:-]?\d|%)"
)
# In this range, a number of four digits is usually a year.
_MODERN = re.compile(
    rf"(?<![\d.,:/$£€¥#+-])\b(19\d{{2}}|20[0-3]\d)\b(?![.,:/-]?\d|[%°]| ?(?:{UNIT})\b)"
)
_HALF_DAY = re.compile(r"(?<![A-Za-z.])([AaPp])\.[Mm]\.(?:( ?[-–] ?)(?=\d)|(?=(\s+[A-Z]|\n)?))")
_CLOCK = re.compile(r"(?<![\d:.])(\d{1,2}):(\d{2})(?::(\d{2}))?(?: ?([AaPp]) ?[Mm]\b)?(?![\d:])")
_HOUR = re.compile(r"(?<![\d:.,])(\d{1,2}) ?([AaPp]) ?[Mm]\b")

# Words whose reading depends on the next word, or that change the reading of the next word.
DATE_WORDS = frozenset(
    (
        *(*_MONTHS, *_SHORT_MONTHS, "am", "pm", "AM", "PM", "a.m", "p.m", "A.M", "P.M", "of"),
        *("in", "since", "until", "till", "by", "from", "before", "after", "during", "year"),
        *("circa", "spring", "summer", "autumn", "fall", "winter", "early", "late"),
    )
)


def say_dates(text: str) -> str:
    """Write dates, years and times of day as words, and leave everything else."""
    text = _DAY_SPAN.sub(_day_span, text)
    text = _MONTH_SPAN.sub(lambda m: f"{_SHORT_MONTHS[m[1]]} to {_SHORT_MONTHS[m[2]]}", text)
    text = _WEEKEND.sub(lambda m: _DAYS[m[1]], _SHORT_DAY.sub(_weekday, text))
    text = _DOTTED_CLOCK.sub(r"\1:\2", text)
    # if a sentence begins after it, its last point ended the previous one
    text = _HALF_DAY.sub(lambda m: f"{m[1]} m" + (" to " if m[2] else "." if m[3] else ""), text)
    if not any(character.isdigit() for character in text):
        return text
    text = _HUNDRED_HOURS.sub(lambda m: f"{_hour(m[1])} hundred", _CUT_YEAR.sub("", text))
    text = _MOMENT.sub(lambda m: f"{m[1]}, {m[2]}{' UTC' * (m[3] == 'Z')}", text)
    text = _AMERICAN.sub(_numeric_date, text)
    text = _ISO.sub(lambda m: _date(m, int(m[3]), int(m[4]), m[1]), text)
    text = _SLASHED.sub(_numeric_date, text)
    text = _DOTTED.sub(lambda m: _date(m, int(m[2]), int(m[1]), m[3]), text)
    text = _MONTH_FIRST.sub(lambda m: _date(m, _month(m[1]), int(m[2]), m[4]), text)
    text = _DAY_FIRST.sub(_day_first, text)
    text = _MONTH_YEAR.sub(lambda m: f"{_MONTHS[_month(m[1]) - 1]} {year(int(m[2]))}", text)
    text = _CLOCK.sub(_clock, text)
    text = _HOUR.sub(lambda m: f"{cardinal(m[1])} {m[2].lower()} m", text)
    text = _DECADE.sub(lambda m: decade(int(m[1])), text)
    text = _SPAN.sub(_span, text)
    text = _AFTER_WORD.sub(lambda m: f"{m[1]}{year(int(m[2]))}", text)
    return _MODERN.sub(lambda m: year(int(m[1])), text)


def _weekday(match: Match[str]) -> str:
    return _WEEKDAYS[match[1]]


def _day_span(match: Match[str]) -> str:
    joint = ", " if match[3] == "/" else " to "
    return f"{_DAYS[match[1]]}{joint}{_DAYS[match[4]]}"


def _hour(text: str) -> str:
    return f"oh {cardinal(text[1])}" if text[0] == "0" else cardinal(text)


def _month(name: str) -> int:
    short = name.rstrip(".")
    return _MONTHS.index(_SHORT_MONTHS.get(short, short)) + 1


def _date(match: Match[str], month: int, day: int, in_year: str | None) -> str:
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return match[0]
    spoken = f"{_MONTHS[month - 1]} {ordinal(day)}"
    return f"{spoken}, {_in_year(in_year)}" if in_year else spoken


def _day_first(match: Match[str]) -> str:
    day, suffix, month, in_year = int(match[1]), match[2], _month(match[3]), match[4]
    if not 1 <= day <= 31:
        return match[0]
    name = _MONTHS[month - 1]
    spoken = f"{ordinal(day)} of {name}" if suffix else f"{name} {ordinal(day)}"
    return f"{spoken}, {_in_year(in_year)}" if in_year else spoken


def _numeric_date(match: Match[str]) -> str:
    first, second = int(match[1]), int(match[2])
    month, day = (second, first) if first > 12 else (first, second)  # as in the United States
    return _date(match, month, day, match[3])


def _in_year(text: str) -> str:
    number = int(text)
    if len(text) == 2:
        number += 2000 if number < 70 else 1900
    return year(number) if number >= 1000 else cardinal(text)


def _span(match: Match[str]) -> str:
    first, last = match[1], match[2]
    if int(last if len(last) == 4 else first[:2] + last) <= int(first):
        return match[0]  # no years: 1500-20
    end = year(int(last)) if len(last) == 4 else two_digits(int(last))
    return f"{year(int(first))} to {end}"


def _clock(match: Match[str]) -> str:
    hour, minute, second, half = int(match[1]), int(match[2]), match[3], match[4]
    if hour > 24 or minute > 59:
        return match[0]
    words = cardinal(str(hour))
    if minute:
        words += f" {two_digits(minute)}"
    elif not half and second is None:
        words += " o'clock" if 1 <= hour <= 12 else " hundred hours" if hour else " hundred"
    if second is not None:
        words += f" and {cardinal(str(int(second)))} second{'s' * (int(second) != 1)}"
    return f"{words} {half.lower()} m" if half else words
