"""What a level of load says of those who were served, refused, left alone and failed."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import aiohttp
import numpy as np
from aiohttp import web

from benchmarks.serving.listeners import Listened
from benchmarks.serving.tenfold import Ended, _ask, compare, row_of

_LOUD = np.full(24_000, 8000, "<i2").tobytes()


async def _answer(request: web.Request) -> web.StreamResponse:
    """Speak, refuse, refuse without a time to come back, fail, or say nothing."""
    seed = (await request.json())["seed"]
    if seed == 0:
        return web.Response(body=_LOUD)
    if seed == 4:
        await asyncio.sleep(30)
    headers = {"retry-after": "3"} if seed == 1 else {}
    return web.Response(status=500 if seed == 3 else 503, headers=headers, text="full")


async def _level() -> dict[str, Any]:
    app = web.Application()
    app.router.add_post("/v1/audio/speech", _answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    timeout = aiohttp.ClientTimeout(total=None, sock_read=0.5)
    try:
        async with aiohttp.ClientSession(site.name, timeout=timeout) as client:
            ended = await asyncio.gather(*(_ask(client, number, 0.0) for number in range(5)))
    finally:
        await runner.cleanup()
    return row_of(10.0, 2.0, ended)


async def test_each_request_ends_in_one_way() -> None:
    row = await _level()
    counts = ("offered", "served", "refused", "refused_without_retry_after", "left", "failed")
    assert [row[name] for name in counts] == [5, 1, 2, 1, 1, 1]
    assert row["audio_s_per_s"] == 0.5
    assert row["requests"] == 1
    assert row["refusal_ms_p95"] > 0


def test_a_level_in_which_nobody_was_served_has_a_row() -> None:
    row = row_of(10.0, 2.0, [Ended(1.0, has_left=True)])
    assert (row["served"], row["left"], row["failed"]) == (0, 1, 0)
    assert "ttfa_ms_p50" not in row


async def test_answers_that_differ_from_the_undisturbed_ones_are_counted() -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=_LOUD)

    app = web.Application()
    app.router.add_post("/v1/audio/speech", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    digest = hashlib.sha256(_LOUD).hexdigest()
    digests = (digest, "", "another", digest)
    ended = [Ended(1.0, Listened(0.1, 1.0, 1.0, 0.0, one) if one else None) for one in digests]
    try:
        assert await compare(site.name, ended) == {"compared": 3, "wrong": 1}
    finally:
        await runner.cleanup()
