"""How a change of limits, a refund and other processes' counts change what is left of a key."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from izwi.errors import QuotaExceeded, RateLimited
from izwi_api.usage import shared_counts
from izwi_api.usage.limits import Clocks, KeyLimits, Meter
from izwi_api.usage.shared_counts import CountsFile
from tests.api.usage.test_limits import Clock
from tests.api.usage.test_shared_counts import locked

LEFT = "x-ratelimit-remaining-"


def shared_meter(folder, clock, limits):
    return Meter(limits, Clocks(clock, clock), CountsFile(folder, "ann"))


def test_a_limit_that_was_taken_away_does_not_hold_any_more():
    clock = Clock()
    meter = Meter(KeyLimits(1), Clocks(clock, clock))
    meter.admit()
    with pytest.raises(RateLimited):
        meter.admit()
    meter.change(KeyLimits())
    for _ in range(3):
        meter.admit()
    assert meter.headers() == {}


def test_a_refund_is_of_what_it_names():
    clock = Clock()
    meter = Meter(KeyLimits(None, 100, 100.0), Clocks(clock, clock))
    meter.charge({"characters": 60, "audio-seconds": 60})
    meter.refund({"characters": 10})
    assert meter.headers()[f"{LEFT}characters"] == "50"
    assert meter.headers()[f"{LEFT}audio-seconds"] == "40"
    meter.refund({"audio-seconds": 20})
    assert meter.headers()[f"{LEFT}characters"] == "50"
    assert meter.headers()[f"{LEFT}audio-seconds"] == "60"


def test_requests_that_others_made_long_ago_leave_a_full_bucket_and_no_more(tmp_path):
    clock = Clock()
    one, other = (shared_meter(tmp_path, clock, KeyLimits(2)) for _ in range(2))
    one.admit()
    one.admit()
    clock.now_s += 3600
    other.admit()
    assert other.headers()[f"{LEFT}requests"] == "1"
    other.admit()
    with pytest.raises(RateLimited):
        other.admit()


def test_a_shared_bucket_refills_at_its_rate(tmp_path):
    """What came back since others counted does not come back a second time."""
    clock = Clock()
    meter = shared_meter(tmp_path, clock, KeyLimits(60))
    for _ in range(60):
        meter.admit()
    for wait_s in (20, 1, 7):
        clock.now_s += wait_s
        for _ in range(wait_s):
            meter.admit()
        with pytest.raises(RateLimited):
            meter.admit()
    other = shared_meter(tmp_path, clock, KeyLimits(60))
    clock.now_s += 5
    for _ in range(5):
        other.admit()
    for one in (meter, other):
        with pytest.raises(RateLimited):
            one.admit()


def test_a_quota_that_others_did_not_count_is_whole(tmp_path):
    clock = Clock()
    characters = shared_meter(tmp_path, clock, KeyLimits(None, 100))
    characters.charge({"characters": 30})
    both = shared_meter(tmp_path, clock, KeyLimits(None, 100, 2.0))
    both.charge({"audio-seconds": 2.0})
    assert both.headers()[f"{LEFT}characters"] == "70"
    with pytest.raises(QuotaExceeded):
        both.charge({"audio-seconds": 0.5})


def test_a_refund_cannot_leave_more_than_the_limit(tmp_path):
    clock = Clock()
    one, other = (shared_meter(tmp_path, clock, KeyLimits(None, 100)) for _ in range(2))
    one.charge({"characters": 30})
    other.charge({"characters": 5})
    for _ in range(3):
        one.refund({"characters": 30})
    with pytest.raises(QuotaExceeded):
        other.charge({"characters": 101})
    other.charge({"characters": 100})


def test_a_refund_without_the_shared_file_is_added_later(tmp_path, monkeypatch):
    clock = Clock()
    one, other = (shared_meter(tmp_path, clock, KeyLimits(None, 100)) for _ in range(2))
    one.charge({"characters": 10})
    (path,) = tmp_path.iterdir()
    monkeypatch.setattr(shared_counts, "_LOCK_WAIT_S", 0.01)
    with locked(path):
        one.charge({"characters": 50})
        one.refund({"characters": 30})
    begun_s = time.monotonic()
    later = SimpleNamespace(monotonic=lambda: begun_s + 60, sleep=time.sleep)
    monkeypatch.setattr(shared_counts, "time", later)
    one.charge({"characters": 1})
    other.charge({"characters": 1})
    assert other.headers()[f"{LEFT}characters"] == "68"


def test_a_limit_that_was_lowered_below_what_was_used_waits_for_one_request_only(tmp_path):
    clock = Clock()
    before = shared_meter(tmp_path, clock, KeyLimits(60))
    for _ in range(30):
        before.admit()
    after = shared_meter(tmp_path, clock, KeyLimits(6))
    with pytest.raises(RateLimited) as refused:
        after.admit()
    assert refused.value.retry_after_s == 10
    clock.now_s += 10.0
    assert after.headers()[f"{LEFT}requests"] == "1"
