"""Limits of a key: bucket and day quota as pure values, and the meter over a clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from izwi.errors import QuotaExceeded, RateLimited
from izwi_api.usage.limits import (
    DAY_S,
    Clocks,
    DayQuota,
    KeyLimits,
    Meter,
    TokenBucket,
    next_day_in_s,
)

SECONDS = st.floats(0, 200, allow_nan=False)


class Clock:
    def __init__(self, now_s=1_000_000.0):
        self.now_s = now_s

    def __call__(self):
        return self.now_s


@given(st.integers(1, 100), st.lists(SECONDS, min_size=1, max_size=60))
def test_a_bucket_never_gives_more_than_its_rate(per_minute, gaps):
    bucket, now_s, taken_at = TokenBucket.full(per_minute, 0.0), 0.0, []
    for gap_s in gaps:
        now_s += gap_s
        after = bucket.consume(now_s)
        if after is not None:
            bucket = after
            taken_at.append(now_s)
        assert 0 <= bucket.level <= bucket.capacity
    for first, begin_s in enumerate(taken_at):
        for last in range(first, len(taken_at)):
            allowed = per_minute + (taken_at[last] - begin_s) * per_minute / 60
            assert last - first + 1 <= allowed + 1e-3


@given(st.integers(1, 1000), st.integers(0, 1100), SECONDS)
def test_waiting_wait_s_is_enough_and_less_is_not(per_minute, tries, start_s):
    bucket = TokenBucket.full(per_minute, start_s)
    given_out = 0
    for _ in range(tries):
        after = bucket.consume(start_s)
        bucket, given_out = (after, given_out + 1) if after else (bucket, given_out)
    assert given_out == min(tries, per_minute)
    wait_s = bucket.wait_s(start_s)
    assert bucket.consume(start_s + wait_s) is not None
    if given_out == per_minute:
        assert wait_s == pytest.approx(60 / per_minute)
        assert bucket.consume(start_s + 0.9 * wait_s) is None
    assert bucket.at(start_s + bucket.full_in_s(start_s)).level == pytest.approx(per_minute)


@given(st.integers(1, 100), st.lists(st.floats(-100, 100), max_size=30))
def test_a_clock_that_steps_back_adds_nothing(per_minute, steps):
    bucket, now_s, latest_s = TokenBucket.full(per_minute, 0.0), 0.0, 0.0
    bucket = bucket.consume(0.0)
    before = bucket.level
    for step_s in steps:
        now_s += step_s
        bucket = bucket.at(now_s)
        latest_s = max(latest_s, now_s)
    assert bucket.level == pytest.approx(min(per_minute, before + latest_s * per_minute / 60))


AMOUNTS = st.lists(st.tuples(st.floats(0, DAY_S / 3), st.integers(0, 80)), max_size=60)


@given(st.integers(1, 200), AMOUNTS)
def test_a_day_never_gives_more_than_its_limit(limit, asks):
    quota, now_s, days = DayQuota(limit), 5.0 * DAY_S, {}
    for gap_s, amount in asks:
        now_s += gap_s
        left = quota.left(now_s)
        after = quota.consume(now_s, amount)
        assert (after is None) == (amount > left)
        if after is not None:
            quota = after
            day = int(now_s // DAY_S)
            days[day] = days.get(day, 0) + amount
            assert quota.left(now_s) == left - amount
    assert all(used <= limit for used in days.values())


@given(st.integers(1, 100), st.integers(0, 100), st.integers(0, 200))
def test_refund_restores_a_day_quota_up_to_its_limit(limit, used, back):
    used = min(used, limit)
    quota = DayQuota(limit).consume(100.0, used).refund(100.0, back)
    assert quota.left(100.0) == min(limit, limit - used + back)
    # what was used yesterday is not today's
    assert quota.refund(100.0 + DAY_S, back).left(100.0 + DAY_S) == limit


def test_a_day_ends_at_midnight_and_does_not_come_back():
    quota = DayQuota(10).consume(DAY_S - 1, 10)
    assert quota.consume(DAY_S - 0.5, 1) is None
    assert quota.consume(DAY_S, 10) is not None
    today = quota.consume(DAY_S, 10)
    assert today.consume(DAY_S - 1, 1) is None  # the clock was set back
    assert next_day_in_s(DAY_S - 1) == 1
    assert next_day_in_s(DAY_S) == DAY_S


def test_a_meter_lets_in_and_refuses_and_says_how_long():
    clock = Clock()
    meter = Meter(KeyLimits(requests_per_minute=2), Clocks(clock, clock))
    meter.admit()
    meter.admit()
    assert meter.headers() == {
        "x-ratelimit-limit-requests": "2",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "1m0s",
    }
    with pytest.raises(RateLimited) as refused:
        meter.admit()
    assert refused.value.retry_after_s == 30
    assert not isinstance(refused.value, QuotaExceeded)
    clock.now_s += 30
    meter.admit()


@given(per_minute=st.integers(1, 1000), start_s=st.floats(0, 1e6))
def test_waiting_retry_after_is_enough(per_minute, start_s):
    now_s = [start_s]
    meter = Meter(KeyLimits(requests_per_minute=per_minute), Clocks(lambda: now_s[0], lambda: 0.0))
    for _ in range(per_minute):
        meter.admit()
    with pytest.raises(RateLimited) as refused:
        meter.admit()
    now_s[0] += refused.value.retry_after_s
    meter.admit()


def test_a_charge_takes_from_both_quotas_or_from_none():
    clock = Clock(10.0 * DAY_S + 3600)
    limits = KeyLimits(characters_per_day=10, audio_seconds_per_day=60.0)
    meter = Meter(limits, Clocks(clock, clock))
    meter.charge({"characters": 8, "audio-seconds": 30.0})
    with pytest.raises(QuotaExceeded, match="2 are left and this request takes 3") as refused:
        meter.charge({"characters": 3})
    assert refused.value.retry_after_s == 23 * 3600
    with pytest.raises(QuotaExceeded):
        meter.charge({"characters": 1, "audio-seconds": 31.0})
    headers = meter.headers()
    assert headers["x-ratelimit-remaining-characters"] == "2"
    assert headers["x-ratelimit-remaining-audio-seconds"] == "30"
    assert headers["x-ratelimit-reset-characters"] == "23h0m0s"
    meter.refund({"characters": 8})
    assert meter.headers()["x-ratelimit-remaining-characters"] == "10"
    clock.now_s += DAY_S
    assert meter.headers()["x-ratelimit-remaining-audio-seconds"] == "60"


@given(st.integers(1, 50), st.integers(1, 50), st.integers(0, 50), st.integers(0, 500))
def test_other_limits_do_not_forget_what_was_used(before, after, num_requests, characters):
    clock = Clock()
    meter = Meter(KeyLimits(before, 500), Clocks(clock, clock))
    num_requests = min(num_requests, before)
    for _ in range(num_requests):
        meter.admit()
    meter.charge({"characters": characters})
    meter.change(KeyLimits(after, 400))
    headers = meter.headers()
    assert headers["x-ratelimit-remaining-requests"] == str(max(0, after - num_requests))
    assert headers["x-ratelimit-remaining-characters"] == str(max(0, 400 - characters))


def test_no_limits_no_headers():
    clock = Clock()
    meter = Meter(KeyLimits(), Clocks(clock, clock))
    for _ in range(1000):
        meter.admit()
        meter.charge({"characters": 10**9})
    assert meter.headers() == {}
