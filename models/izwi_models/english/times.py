"""Times of day, and lengths of time written like them."""

from __future__ import annotations

import re
from re import Match

from izwi_models.english.numbers import cardinal, digits, two_digits

_ZONES = "EST|EDT|CST|CDT|MST|MDT|PST|PDT|ET|CT|MT|PT|GMT|UTC|BST|CET|CEST|AEST|AEDT|IST|JST"
_DOTTED = re.compile(r"(?<![\d.])(\d{1,2})\.([0-5]\d)(?= ?[AaPp]\.? ?[Mm]\b)")
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
    text = _DOTTED.sub(r"\1:\2", text)
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
