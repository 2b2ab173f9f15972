"""Dates, years and times of day in words."""

from __future__ import annotations

import re
from re import Match

from izwi_models.english.numbers import cardinal, decade, digits, ordinal, two_digits, year
from izwi_models.english.units import is_unit


def _either(words: str) -> str:
    """Return a pattern of words, also with a capital."""
    return "|".join(f"[{word[0].upper()}{word[0].lower()}]{word[1:]}" for word in words.split())


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
_TO = r"(?: ?[-–—] ?| to )"
_SUFFIX = r"(?:st|nd|rd|th)?"
_MONTH_FIRST_SPAN = re.compile(
    rf"\b({_MONTH}) (\d{{1,2}}){_SUFFIX}{_TO}(\d{{1,2}}){_SUFFIX}\b(?![:/%\u2044.]\d|,\d)"
    rf"(?:,? {_YEAR})?"
)
_DAY_FIRST_SPAN = re.compile(
    rf"(?<![\w:./,$-])(\d{{1,2}})(st|nd|rd|th)?{_TO}(\d{{1,2}}){_SUFFIX}"
    rf" (?:of )?({_MONTH})(?!\w)(?:,? {_YEAR})?"
)
_MONTH_YEAR = re.compile(rf"\b({_MONTH}),? {_YEAR}")
_DAYS = {"Sat": "Saturday", "Sun": "Sunday"} | _WEEKDAYS
_DAY_SPAN = re.compile(rf"\b({'|'.join(_DAYS)})(\.?)([-–/])({'|'.join(_DAYS)})\b\.?")
_MONTH_SPAN = re.compile(
    rf"\b({'|'.join(_SHORT_MONTHS)})(?:[-–]| to )({'|'.join(_SHORT_MONTHS)})\b"
)
_WEEKEND = re.compile(r"\b(Sat|Sun)\.(?=,)")
_MOMENT = re.compile(
    r"\b(\d{4}-\d{2}-\d{2})T(\d{2}:\d{2})(?::\d{2}(?:\.\d{1,9})?)?(Z|[+-]\d{2}:?\d{2})?(?!\w)"
)
_AMERICAN = re.compile(r"(?<![\d-])(\d{1,2})-(\d{1,2})-(\d{4})\b(?!-)")
# Months in lower case or capitals beside a number. "may" and "march" are other words, too.
_PLAIN_MONTH = (
    "january|february|april|june|july|august|september|october|november|december"
    "|jan|feb|apr|jun|jul|aug|sept?|oct|nov|dec"
)
_CAPITALS = f"{_PLAIN_MONTH}|march|may|mar".upper()
_WRITTEN_OUT = re.compile(
    rf"\b(?:{_PLAIN_MONTH}|{_CAPITALS})\b(?=\.?,? \d)"
    rf"|(?:(?<=\d )|(?<=\d[a-z]{{2}} )|(?<=\bof ))(?:{_PLAIN_MONTH}|{_CAPITALS})\b"
)
_CUT_YEAR = re.compile(r"(?<!\w)'(?=\d\d\b(?!s))")
_SHORT_DAY = re.compile(rf"\b({'|'.join(_WEEKDAYS)})\b(?:\.(?!\n)|(?=,))")
_DECADE = re.compile(r"(?<![\d,.$£€])'?\b(\d0|\d{3}0)'?s\b")
_SPAN = re.compile(r"\b(1\d{3}|20\d{2}) ?[-–] ?(1\d{3}|20\d{2}|\d{2})\b(?![-/.]\d)")
# Years before them, one or two: "1493 to 1479 BC". The points of "B.C." are spaces by then.
_ERA_NAME = r"(BCE|BC|CE|AD|B C E|B C|C E|A D)\b"
_ERA = re.compile(
    rf"(?<![\d.,$£€-])(\d{{1,4}})(?:( to | and | or | ?[-–] ?)(\d{{1,4}}))? {_ERA_NAME}"
)
_ERA_FIRST = re.compile(r"\b(?:AD|A D) (\d{1,4})\b(?![,.:/-]?\d)")
_YEAR_WORDS = "in since until till by from before after during between born died year years circa"
_SEASONS = "spring summer autumn fall winter early late"
_EVENTS = "War Revolution Treaty Battle Act Class"
_AFTER_WORD = re.compile(
    rf"\b((?:(?:{_either(_YEAR_WORDS)}|{_either(_SEASONS)})(?: of)?|(?:{_either(_EVENTS)}) of) )"
    r"(1\d{3}|20\d{2})\b(?![,.:-]?\d|%)(?:( to | and | or )(1\d{3}|20\d{2})\b(?![,.:-]?\d|%))?"
    r"(?=( ?)([°%A-Za-z]+)?)"
)
# In this range, a number of four digits is usually a year.
_MODERN = re.compile(
    r"(?<![\d.,:/$£€¥#+-])\b(19\d{2}|20[0-3]\d)\b(?![.,:/-]?\d|[%°])(?=( ?)([A-Za-z]+)?)"
)

# Without these, none of the above is in a text.
_HAS_MONTH = re.compile("|".join(short for short in _SHORT_MONTHS))
_HAS_ERA = re.compile("B ?C|C ?E|A ?D")
_HAS_YEAR = re.compile(r"[12]\d{3}")

# Words whose reading depends on the next word, or that change the reading of the next word.
DATE_WORDS = frozenset(
    (
        *(*_MONTHS, *_SHORT_MONTHS, "am", "pm", "AM", "PM", "a.m", "p.m", "A.M", "P.M", "of"),
        *(*_YEAR_WORDS.split(), *_SEASONS.split(), *_EVENTS.split(), "AD", "A.D"),
    )
)


def say_dates(text: str) -> str:
    """Write dates, years and times of day as words, and leave everything else."""
    text = _DAY_SPAN.sub(_day_span, text)
    text = _MONTH_SPAN.sub(lambda m: f"{_SHORT_MONTHS[m[1]]} to {_SHORT_MONTHS[m[2]]}", text)
    text = _WEEKEND.sub(lambda m: _DAYS[m[1]], _SHORT_DAY.sub(_weekday, text))
    text = say_half_days(text)
    if not any(character.isdigit() for character in text):
        return text
    text = _CUT_YEAR.sub("", text) if "'" in text else text
    text = _WRITTEN_OUT.sub(lambda m: m[0].title(), text)
    text = _MOMENT.sub(lambda m: f"{m[1]}, {m[2]}{' UTC' * (m[3] == 'Z')}", text)
    text = _AMERICAN.sub(_numeric_date, text)
    text = _ISO.sub(lambda m: _date(m, int(m[3]), int(m[4]), m[1]), text)
    text = _SLASHED.sub(_numeric_date, text)
    text = _DOTTED.sub(lambda m: _date(m, int(m[2]), int(m[1]), m[3]), text)
    if _HAS_MONTH.search(text):
        text = _say_months(text)
    return _say_years(say_times(text))


def _say_months(text: str) -> str:
    text = _MONTH_FIRST_SPAN.sub(_month_first_span, text)
    text = _DAY_FIRST_SPAN.sub(_day_first_span, text)
    text = _MONTH_FIRST.sub(lambda m: _date(m, _month(m[1]), int(m[2]), m[4]), text)
    text = _DAY_FIRST.sub(_day_first, text)
    return _MONTH_YEAR.sub(lambda m: f"{_MONTHS[_month(m[1]) - 1]} {year(int(m[2]))}", text)


def _say_years(text: str) -> str:
    if "0s" in text or "0's" in text:
        text = _DECADE.sub(lambda m: decade(int(m[1])), text)
    if _HAS_ERA.search(text):
        text = _ERA_FIRST.sub(lambda m: f"A D {_era_year(m[1])}", _ERA.sub(_era, text))
    if _HAS_YEAR.search(text) is None:
        return text
    text = _SPAN.sub(_span, text)
    text = _AFTER_WORD.sub(_after_word, text)
    return _MODERN.sub(_modern, text)


def _weekday(match: Match[str]) -> str:
    return _WEEKDAYS[match[1]]


def _day_span(match: Match[str]) -> str:
    joint = ", " if match[3] == "/" else " to "
    return f"{_DAYS[match[1]]}{joint}{_DAYS[match[4]]}"


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


def _after_word(match: Match[str]) -> str:
    before, first, joint, last, space, word = match.groups()
    if word and is_unit(word, space, match.string[match.end(6) :]):
        return match[0]
    return f"{before}{year(int(first))}" + (f"{joint}{year(int(last))}" if last else "")


def _modern(match: Match[str]) -> str:
    number, space, word = match.groups()
    if word and is_unit(word, space, match.string[match.end(3) :]):
        return match[0]
    return year(int(number))


def _era(match: Match[str]) -> str:
    first, joint, last, era = match.groups()
    years = _era_year(first)
    if last:
        years += f" {joint.strip() if joint.strip().isalpha() else 'to'} {_era_year(last)}"
    return f"{years} {' '.join(era.replace(' ', ''))}"


def _era_year(text: str) -> str:
    """Say a year of up to four digits: 753 is "seven fifty three"."""
    number = int(text)
    if number >= 1000:
        return year(number)
    hundreds, rest = divmod(number, 100)
    if not hundreds or not rest:
        return cardinal(str(number))
    return f"{cardinal(str(hundreds))} {two_digits(rest)}"


def _month_first_span(match: Match[str]) -> str:
    return _days(match, match[1], match[2], match[3], match[4])


def _day_first_span(match: Match[str]) -> str:
    first, has_suffix, last, month, in_year = match.groups()
    if not has_suffix:
        return _days(match, month, first, last, in_year)
    spoken = f"{ordinal(int(first))} to {ordinal(int(last))} of {_MONTHS[_month(month) - 1]}"
    return f"{spoken}, {_in_year(in_year)}" if in_year else spoken


def _days(match: Match[str], month: str, first: str, last: str, in_year: str | None) -> str:
    if not 1 <= int(first) < int(last) <= 31:
        return match[0]
    spoken = f"{_MONTHS[_month(month) - 1]} {ordinal(int(first))} to {ordinal(int(last))}"
    return f"{spoken}, {_in_year(in_year)}" if in_year else spoken


_ZONES = "EST|EDT|CST|CDT|MST|MDT|PST|PDT|ET|CT|MT|PT|GMT|UTC|BST|CET|CEST|AEST|AEDT|IST|JST"
_DOTTED_TIME = re.compile(r"(?<![\d.])(\d{1,2})\.([0-5]\d)(?= ?[AaPp]\.? ?[Mm]\b)")
_HALF_DAY = re.compile(
    r"(?<![A-Za-z.])([AaPp])\.[Mm]\.(?:( ?[-–] ?)(?=\d)"
    rf"|(?=(\s+(?!(?:{_ZONES})\b)[A-Z]|\n)?))"
)
_HUNDRED_HOURS = re.compile(r"\b([01]\d|2[0-3])00(?= (?:hours|hrs)\b)")
_FRENCH = re.compile(r"(?<![\w:.])([01]?\d|2[0-3])h([0-5]\d)\b(?! ?(?:m|s|min|sec)\b)")
_CLOCK = re.compile(
    r"(?<![\d:.])(\d{1,2}):(\d{2})(?::(\d{2})(\.\d{1,9})?)?(?: ?([AaPp]) ?[Mm]\b)?(?![\d:])"
)
_HOUR = re.compile(r"(?<![\d:.,])(\d{1,2}) ?([AaPp]) ?[Mm]\b")


def say_half_days(text: str) -> str:
    """Write "a.m." as "a m"."""
    text = _DOTTED_TIME.sub(r"\1:\2", text)
    # if a sentence begins after it, its last point ended the previous one
    return _HALF_DAY.sub(lambda m: f"{m[1]} m" + (" to " if m[2] else "." if m[3] else ""), text)


def say_times(text: str) -> str:
    """Write times of day as words."""
    text = _FRENCH.sub(r"\1:\2", text)
    if ":" in text:
        text = _CLOCK.sub(_clock, text)
    if "00 h" in text:
        text = _HUNDRED_HOURS.sub(lambda m: f"{_hour(m[1])} hundred", text)
    return _HOUR.sub(lambda m: f"{cardinal(_bare(m[1]))} {m[2].lower()} m", text)


def _hour(text: str) -> str:
    return f"oh {cardinal(text[1])}" if text[0] == "0" else cardinal(text)


def _bare(hour: str) -> str:
    return str(int(hour))


def _clock(match: Match[str]) -> str:
    hour, minute, second, part, half = int(match[1]), int(match[2]), *match.groups()[2:]
    if hour > 24 or minute > 59:
        return match[0]
    has_seconds = bool(part) or int(second or 0) > 0
    words = cardinal(str(hour))
    if minute:
        words += f" {two_digits(minute)}"
    elif not half and not has_seconds:
        words += " o'clock" if 1 <= hour <= 12 else " hundred hours"
    if has_seconds:
        point = f" point {digits(part)}" if part else ""
        is_one = int(second) == 1 and not part
        words += f" and {cardinal(str(int(second)))}{point} second{'s' * (not is_one)}"
    return f"{words} {half.lower()} m" if half else words
