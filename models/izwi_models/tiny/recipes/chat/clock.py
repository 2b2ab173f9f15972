"""Questions about the time and date in the system message."""

from __future__ import annotations

from datetime import datetime, timedelta

from izwi_models.tiny.recipes.chat.turns import Turn
from izwi_models.tiny.recipes.chat.wording import Draw

NO_CLOCK = "I cannot see a clock here."
_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]

_TELL = "(can you tell me|could you tell me|tell me|do you know|say)"
_TIME = (
    "what time is it [now|right now]",
    "what's the time [now|right now]",
    "what is the [current] time",
    f"{_TELL} (what time it is|the time|what the time is) [now|right now]",
    "how late is it [now]",
    "do you have the time",
    "give me the time",
)
_DATE = (
    "(what is|what's) (today's date|the date [today]|the date of today)",
    f"{_TELL} (today's date|the date [today]|what date it is)",
    "what date (is it|is today|do we have) [today]",
    "which date is it [today]",
)
_DAY = (
    "(what|which) day is (it|today) [today]",
    "(what|which) day of the week is (it|today) [today]",
    f"{_TELL} (what|which) day (it is|today is)",
    "is it a (weekday|weekend) today",
)
_MONTH = (
    "(what|which) month (is it|are we in|do we have) [now]",
    f"{_TELL} (what|which) month it is",
)
_YEAR = ("(what|which) year (is it|are we in|do we have) [now]", f"{_TELL} (what|which) year it is")
_TOMORROW = (
    "(what|which) day (is|will be|is it|will it be) tomorrow",
    "(what|which) day of the week is tomorrow",
    f"{_TELL} (what|which) day tomorrow is",
)
_TOMORROW_DATE = (
    "(what is|what's) (tomorrow's date|the date tomorrow|the date of tomorrow)",
    "what date is [it] tomorrow",
)
_YESTERDAY = (
    "(what|which) day (was|was it) yesterday",
    "(what|which) day of the week was yesterday",
)
_IN_MINUTES = (
    "what time (is it|will it be) in {number} minutes",
    "what will the time be in {number} minutes",
    f"{_TELL} what time it (is|will be) in {{number}} minutes",
)
_IN_HOURS = (
    "what time (is it|will it be) in {number} hours",
    f"{_TELL} what time it (is|will be) in {{number}} hours",
)
_AND_DATE = ("and the date", "and (what|which) date [is it]", "and the date today")
_AND_TIME = ("and the time", "and what time is it", "and what is the time")


def a_moment(draw: Draw) -> datetime:
    """Draw a minute between 2024 and 2034."""

    def moment() -> datetime:
        minutes = draw.random.randrange(10 * 365 * 24 * 60)
        return datetime(2024, 1, 1) + timedelta(minutes=minutes)

    return draw.values("moment", moment)


def clock_time(now: datetime) -> str:
    """Return the time of day as spoken: "2:35 pm"."""
    return f"{(now.hour + 11) % 12 + 1}:{now.minute:02d} {'am' if now.hour < 12 else 'pm'}"


def date(now: datetime) -> str:
    """Return the date as spoken: "Sunday, 22 November 2026"."""
    return f"{_DAYS[now.weekday()]}, {now.day} {_MONTHS[now.month - 1]} {now.year}"


def clock(draw: Draw, now: datetime | None) -> list[Turn]:
    """Draw one question about time or date; if `now` is None, the answer is that it is unknown."""
    if now is None:
        return [
            Turn(draw.ask(draw.choice((_TIME, _DATE, _DAY, _MONTH, _YEAR, _TOMORROW))), NO_CLOCK)
        ]
    kind = draw.random.randrange(10)
    if kind < 3:
        turns = [Turn(draw.ask(_TIME), f"It is {clock_time(now)}.")]
        if draw.random.random() < 0.2:
            turns.append(Turn(draw.ask(_AND_DATE), f"Today is {date(now)}."))
        return turns
    if kind == 3:
        turns = [Turn(draw.ask(_DATE), f"Today is {date(now)}.")]
        if draw.random.random() < 0.2:
            turns.append(Turn(draw.ask(_AND_TIME), f"It is {clock_time(now)}."))
        return turns
    if kind == 4:
        return [Turn(draw.ask(_DAY), f"Today is {_DAYS[now.weekday()]}.")]
    if kind == 5:
        return [_month_or_year(draw, now)]
    if kind == 6:
        return [_tomorrow(draw, now)]
    if kind == 7:
        day = _DAYS[(now.weekday() - 1) % 7]
        return [Turn(draw.ask(_YESTERDAY), f"Yesterday was {day}.")]
    if kind == 8:
        number = draw.random.randint(2, 59)
        then = clock_time(now + timedelta(minutes=number))
        return [
            Turn(draw.ask(_IN_MINUTES, number=number), f"In {number} minutes it will be {then}.")
        ]
    number = draw.random.randint(2, 12)
    then = clock_time(now + timedelta(hours=number))
    return [Turn(draw.ask(_IN_HOURS, number=number), f"In {number} hours it will be {then}.")]


def _month_or_year(draw: Draw, now: datetime) -> Turn:
    if draw.random.random() < 0.5:
        return Turn(draw.ask(_MONTH), f"It is {_MONTHS[now.month - 1]}.")
    return Turn(draw.ask(_YEAR), f"It is {now.year}.")


def _tomorrow(draw: Draw, now: datetime) -> Turn:
    then = now + timedelta(days=1)
    if draw.random.random() < 0.6:
        return Turn(draw.ask(_TOMORROW), f"Tomorrow is {_DAYS[then.weekday()]}.")
    return Turn(draw.ask(_TOMORROW_DATE), f"Tomorrow is {date(then)}.")
