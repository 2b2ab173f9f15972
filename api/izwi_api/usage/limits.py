"""Limits of a key: a token bucket of requests per minute, and daily quotas.

`TokenBucket` and `DayQuota` are pure values; time is passed in as a number. `Meter` applies those
of one key to two clocks, and shares the counts with other processes of this machine. It lives on
the event loop and never awaits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from izwi.errors import QuotaExceeded, RateLimited
from izwi_api.usage.shared_counts import CountsFile, KeyCounts

DAY_S = 86_400
_MINUTE_S = 60.0
# Refilling in floating point may leave a bucket this far below a whole request.
_ROUNDING = 1e-6
_REQUESTS = "requests"

Clock = Callable[[], float]


class Clocks(NamedTuple):
    """The clocks of the limits.

    Attributes:
        monotonic: Seconds, for buckets.
        wall: Seconds since 1970, for days.
    """

    monotonic: Clock = time.monotonic
    wall: Clock = time.time


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """The limits of one key; None is no limit.

    Attributes:
        requests_per_minute: Requests, which may arrive at once; refilled evenly.
        characters_per_day: Characters of text to speak and of conversations to answer.
        audio_seconds_per_day: Seconds of audio to transcribe.
        sessions: Live sessions at the same time.
    """

    requests_per_minute: int | None = None
    characters_per_day: int | None = None
    audio_seconds_per_day: float | None = None
    sessions: int | None = None


@dataclass(frozen=True, slots=True)
class TokenBucket:
    """A bucket that holds `capacity` requests and refills evenly.

    In any time t it gives at most `capacity + per_s * t` requests.

    Attributes:
        capacity: Requests in a full bucket.
        per_s: Requests refilled per second.
        level: Requests that it held at `at_s`.
        at_s: A time on a monotonic clock.
    """

    capacity: float
    per_s: float
    level: float
    at_s: float

    @classmethod
    def full(cls, per_minute: int, now_s: float) -> Self:
        """Return a full bucket of a minute's requests."""
        return cls(per_minute, per_minute / _MINUTE_S, per_minute, now_s)

    def at(self, now_s: float) -> Self:
        """Return the bucket at a time; a clock that steps back adds nothing."""
        elapsed_s = max(0.0, now_s - self.at_s)
        level = min(self.capacity, self.level + elapsed_s * self.per_s)
        return replace(self, level=level, at_s=max(self.at_s, now_s))

    def consume(self, now_s: float) -> Self | None:
        """Return the bucket with one request less, or None if it is empty."""
        bucket = self.at(now_s)
        if bucket.level < 1.0 - _ROUNDING:
            return None
        return replace(bucket, level=max(0.0, bucket.level - 1.0))

    def wait_s(self, now_s: float) -> float:
        """Return the seconds until it holds a request."""
        return max(0.0, 1.0 - self.at(now_s).level) / self.per_s

    def full_in_s(self, now_s: float) -> float:
        """Return the seconds until it is full."""
        return (self.capacity - self.at(now_s).level) / self.per_s


@dataclass(frozen=True, slots=True)
class DayQuota:
    """The usage between two midnights, UTC.

    Attributes:
        limit: Amount per day.
        used: Amount used on that day.
        day: Days since 1970.
    """

    limit: float
    used: float = 0.0
    day: int = 0

    def at(self, now_s: float) -> Self:
        """Return the quota at a time (seconds since 1970), which is never before its day."""
        day = int(now_s // DAY_S)
        return replace(self, used=0.0, day=day) if day > self.day else self

    def consume(self, now_s: float, amount: float) -> Self | None:
        """Return the quota with an amount used, or None if not enough is left."""
        quota = self.at(now_s)
        if quota.used + amount > quota.limit:
            return None
        return replace(quota, used=quota.used + amount)

    def refund(self, now_s: float, amount: float) -> Self:
        """Return the quota with an amount refunded, if it was used today."""
        quota = self.at(now_s)
        return replace(quota, used=max(0.0, quota.used - amount))

    def left(self, now_s: float) -> float:
        """Return the amount left of the day."""
        quota = self.at(now_s)
        return max(0.0, quota.limit - quota.used)


def next_day_in_s(now_s: float) -> float:
    """Return the seconds until midnight UTC; `now_s` is since 1970."""
    return DAY_S - now_s % DAY_S


class Level(NamedTuple):
    """The rest of one limit.

    Attributes:
        what: "requests", "characters" or "audio-seconds".
        limit: The whole amount.
        left: The amount left.
        reset_s: Seconds until the whole amount is available again.
    """

    what: str
    limit: float
    left: float
    reset_s: float


class Meter:
    """The usage of one key.

    While the shared counts cannot be used, usage is counted on top of their last known values. It
    is added to them when they can be used again.

    Args:
        limits: The key's limits.
        clocks: Of bucket and day.
        shared: The counts of all processes of this machine; None counts in this process only.
    """

    def __init__(
        self,
        limits: KeyLimits,
        clocks: Clocks,
        shared: CountsFile | None = None,
    ):
        (self._clock, self._wall_clock), self._shared = clocks, shared
        self._unreported: dict[str, float] = {}  # usage that the shared counts do not contain yet
        self._bucket: TokenBucket | None = None
        self._quotas: dict[str, DayQuota] = {}
        self.limits = KeyLimits()
        self.change(limits)

    def change(self, limits: KeyLimits) -> None:
        """Change the limits; usage so far is kept."""
        if limits == self.limits:
            return
        now_s, wall_s = self._clock(), self._wall_clock()
        spent = 0.0
        if self._bucket is not None:
            spent = self._bucket.capacity - self._bucket.at(now_s).level
        self._bucket = None
        if limits.requests_per_minute is not None:
            bucket = TokenBucket.full(limits.requests_per_minute, now_s)
            self._bucket = replace(bucket, level=max(0.0, bucket.level - spent))
        quotas: dict[str, DayQuota] = {}
        for what, limit in _quotas_of(limits).items():
            known = self._quotas.get(what, DayQuota(limit)).at(wall_s)
            quotas[what] = replace(known, limit=limit)
        self._quotas, self.limits = quotas, limits

    def admit(self) -> None:
        """Take one request from the bucket.

        Raises:
            RateLimited: The bucket is empty.
        """
        if self._bucket is None:
            return
        with self._counting():
            now_s = self._clock()
            bucket = self._bucket.consume(now_s)
            if bucket is None:
                wait_s = max(1, math.ceil(self._bucket.wait_s(now_s)))
                raise RateLimited(
                    f"this key may send {self.limits.requests_per_minute} requests a minute; "
                    f"try again in {wait_s} s",
                    retry_after_s=wait_s,
                )
            self._bucket = bucket
            self._note({_REQUESTS: 1.0})

    def charge(self, amounts: Mapping[str, float]) -> None:
        """Use amounts of the day, by quota ("characters", "audio-seconds"): all or none.

        Raises:
            QuotaExceeded: Not enough is left of one of them.
        """
        if not any(amounts.get(what) for what in self._quotas):
            return
        with self._counting():
            self._charge(self._wall_clock(), amounts)
            self._note(amounts)

    def _charge(self, now_s: float, amounts: Mapping[str, float]) -> None:
        after: dict[str, DayQuota] = {}
        for what, quota in self._quotas.items():
            taken = quota.consume(now_s, amounts.get(what, 0.0))
            if taken is None:
                raise QuotaExceeded(
                    f"this key may use {quota.limit:g} {what} a day (UTC); "
                    f"{quota.left(now_s):g} are left and this request takes {amounts[what]:g}",
                    retry_after_s=max(1, math.ceil(next_day_in_s(now_s))),
                )
            after[what] = taken
        self._quotas = after

    def refund(self, amounts: Mapping[str, float]) -> None:
        """Refund a charge for work that was not done."""
        if not any(amounts.get(what) for what in self._quotas):
            return
        with self._counting():
            now_s = self._wall_clock()
            for what, quota in self._quotas.items():
                self._quotas[what] = quota.refund(now_s, amounts.get(what, 0.0))
            self._note({what: -amount for what, amount in amounts.items()})

    @contextmanager
    def _counting(self) -> Generator[None]:
        """Read the shared counts, run the block, and write them back; not after an error."""
        if self._shared is None:
            yield
            return
        with self._shared.locked(self._wall_clock()) as locked:
            if locked is not None and locked.counts is not None:
                self._take_in(locked.counts)
            yield
            if locked is not None:
                locked.write(self._counts(locked.counts))
                self._unreported = {}

    def _note(self, amounts: Mapping[str, float]) -> None:
        if self._shared is not None:
            for what, amount in amounts.items():
                self._unreported[what] = self._unreported.get(what, 0.0) + amount

    def _take_in(self, counts: KeyCounts) -> None:
        """Replace the local counts by the shared ones plus unreported usage."""
        now_s, wall_s = self._clock(), self._wall_clock()
        if self._bucket is not None:
            came_back = max(0.0, wall_s - counts.spent_at_s) * self._bucket.per_s
            spent = max(0.0, counts.spent - came_back) + self._unreported.get(_REQUESTS, 0.0)
            level = max(0.0, self._bucket.capacity - spent)
            self._bucket = replace(self._bucket, level=level, at_s=now_s)
        for what, quota in self._quotas.items():
            known = replace(quota, used=counts.used.get(what, 0.0), day=counts.day).at(wall_s)
            used = max(0.0, known.used + self._unreported.get(what, 0.0))
            self._quotas[what] = replace(known, used=used)

    def _counts(self, before: KeyCounts | None) -> KeyCounts:
        """Return the current counts; those without a limit keep their last values."""
        wall_s = self._wall_clock()
        spent_at_s, spent = wall_s, 0.0
        if self._bucket is not None:
            spent = self._bucket.capacity - self._bucket.at(self._clock()).level
        elif before is not None:
            spent_at_s, spent = before.spent_at_s, before.spent
        day = int(wall_s // DAY_S)
        used = dict(before.used) if before is not None and before.day == day else {}
        used |= {what: quota.at(wall_s).used for what, quota in self._quotas.items()}
        return KeyCounts(spent_at_s, spent, day, used)

    def levels(self) -> list[Level]:
        """Return the rest of each limit of the key."""
        now_s, wall_s = self._clock(), self._wall_clock()
        levels = []
        if self._bucket is not None:
            bucket = self._bucket.at(now_s)
            left, full_in_s = bucket.level + _ROUNDING, bucket.full_in_s(now_s)
            levels.append(Level(_REQUESTS, bucket.capacity, left, full_in_s))
        for what, quota in self._quotas.items():
            levels.append(Level(what, quota.limit, quota.left(wall_s), next_day_in_s(wall_s)))
        return levels

    def headers(self) -> dict[str, str]:
        """Return OpenAI's x-ratelimit-* headers for each limit of the key."""
        headers: dict[str, str] = {}
        for level in self.levels():
            headers |= _headers(level)
        return headers


def _quotas_of(limits: KeyLimits) -> dict[str, float]:
    known = {
        "characters": limits.characters_per_day,
        "audio-seconds": limits.audio_seconds_per_day,
    }
    return {what: limit for what, limit in known.items() if limit is not None}


def _headers(level: Level) -> dict[str, str]:
    return {
        f"x-ratelimit-limit-{level.what}": str(math.floor(level.limit)),
        f"x-ratelimit-remaining-{level.what}": str(math.floor(level.left)),
        f"x-ratelimit-reset-{level.what}": _duration(level.reset_s),
    }


def _duration(seconds: float) -> str:
    """Format a time as OpenAI does: "0s", "59s", "6m0s", "23h59m1s"; rounded up."""
    minutes, whole_s = divmod(math.ceil(seconds - _ROUNDING), 60)
    hours, minutes = divmod(minutes, 60)
    text = f"{whole_s}s"
    if minutes or hours:
        text = f"{minutes}m{text}"
    return f"{hours}h{text}" if hours else text
