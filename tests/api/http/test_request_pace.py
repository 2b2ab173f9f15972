"""A client that sends a few bytes at a time is disconnected; a merely slow one is not."""

from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from izwi.errors import RequestTimeout
from izwi_api.environment import read_settings
from izwi_api.http.bodies import CloseUnread
from izwi_api.settings import RequestPace, Settings

SIZES = st.integers(0, 1 << 30)


@given(SIZES, SIZES)
def test_more_bytes_never_buy_less_time_and_none_more_than_all(few, more):
    pace = RequestPace()
    few, more = sorted((few, more))
    assert pace.grace_s <= pace.body_time_s(few) <= pace.body_time_s(more) <= pace.max_body_s


def test_the_largest_upload_passes_over_two_megabits_a_second():
    pace, rate = Settings().pace, 2e6 / 8
    limit = Settings().max_upload_bytes
    for num_bytes in range(0, limit, 1 << 16):
        assert (num_bytes + (1 << 16)) / rate < pace.body_time_s(num_bytes)


def test_the_environment_sets_the_pace():
    environ = {"IZWI_MAX_BODY_S": "600", "IZWI_BODY_GRACE_S": "5", "IZWI_MAX_HEAD_S": "7"}
    assert read_settings(environ).pace == RequestPace(7.0, 5.0, 16_384.0, 600.0)


async def read(pace, pieces, gap_s):
    """Read a body in pieces; return the messages that the app gets, and the response's head."""
    got, sent, left = [], [], [*pieces]

    async def receive():
        await asyncio.sleep(gap_s)
        body = left.pop(0) if left else b""
        return {"type": "http.request", "body": body, "more_body": bool(left)}

    async def send(message):
        sent.append(message)

    async def app(scope, receive, send):
        try:
            while True:
                got.append(await receive())
                if not got[-1]["more_body"]:
                    break
        finally:
            await send({"type": "http.response.start", "status": 200, "headers": []})

    scope = {"type": "http", "headers": [(b"transfer-encoding", b"chunked")]}
    try:
        await CloseUnread(app, pace)(scope, receive, send)
    except RequestTimeout:
        return got, dict(sent[0]["headers"])
    return got, dict(sent[0]["headers"])


async def test_a_body_that_keeps_its_pace_may_take_longer_than_the_grace():
    pace = RequestPace(grace_s=0.1, min_bytes_per_s=1000, max_body_s=30)
    got, head = await read(pace, [b"x" * 60] * 10, 0.04)
    assert (len(got), head) == (10, {})


@pytest.mark.parametrize(
    "pace",
    [
        RequestPace(grace_s=0.1, min_bytes_per_s=1000, max_body_s=30),
        RequestPace(grace_s=30, min_bytes_per_s=1, max_body_s=0.1),
    ],
)
async def test_slow_body_is_cut_off_while_it_is_read(pace):
    begun_s = time.monotonic()
    got, head = await read(pace, [b"x"] * 100, 0.04)
    assert 0 < len(got) < 10
    assert head == {b"connection": b"close"}
    assert time.monotonic() - begun_s < 1
