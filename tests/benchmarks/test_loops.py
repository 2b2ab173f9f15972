"""What the loops over HTTP measure: when requests arrive, when audio is heard, and the table."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from benchmarks import gpu_table
from benchmarks.gpu_table import TABLE
from benchmarks.measure import RESULTS, TEXTS
from benchmarks.random_checkpoint import EMBEDDED, EMBEDDED_LISTENER, load
from benchmarks.serving import closed_loop, open_loop, uploads
from benchmarks.serving.listeners import Listened, connect, figures, listen
from izwi.inputs.speech import SpeechInput, TranscriptionInput

FRAME = 1920
SILENCE, AUDIO = bytes(2 * FRAME), np.full(FRAME, 9000, "<i2").tobytes()


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def answering(answer: Handler, connections: int = 1) -> AsyncIterator[ClientSession]:
    """A client of a server that answers every POST with this handler."""
    app = web.Application(client_max_size=1 << 20)
    app.router.add_post("/{path:.*}", answer)
    app.router.add_get("/livez", alive)
    async with TestServer(app) as server, connect(str(server.make_url("/")), connections) as client:
        yield client


async def alive(_: web.Request) -> web.Response:
    return web.Response()


def speaking(parts: list[tuple[float, bytes]], asked: list[Any]) -> Handler:
    """Answer with parts of a body, each some seconds after the one before it."""

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(await request.json())
        response = web.StreamResponse()
        await response.prepare(request)
        for wait_s, part in parts:
            await asyncio.sleep(wait_s)
            await response.write(part)
        return response

    return answer


async def test_audio_counts_from_the_first_audible_sample_and_late_samples_are_a_gap():
    asked: list[Any] = []
    # cut inside a sample; the third part comes 0.2 s after 0.08 s of audio
    parts = [(0.05, SILENCE + AUDIO[:1]), (0.05, AUDIO[1:]), (0.2, AUDIO)]
    async with answering(speaking(parts, asked)) as client:
        played = await listen(client, "izwi-tiny-tts", 3, text="Hello.", frames=3)
    assert asked[0]["input"] == "Hello."
    assert asked[0]["max_new_tokens"] == 4
    assert asked[0]["seed"] == 3
    assert 0.1 <= played.audible_s < 0.2
    assert played.audio_s == pytest.approx(3 * 0.08)
    assert 0.1 < played.gap_s < 0.2
    assert played.total_s >= 0.3


async def test_audio_that_keeps_ahead_has_no_gap():
    parts = [(0.0, AUDIO * 4), (0.05, AUDIO * 4), (0.05, AUDIO)]
    async with answering(speaking(parts, [])) as client:
        assert (await listen(client, "izwi-tiny-tts", 0)).gap_s == 0


async def test_an_error_is_reported():
    async def refuse(_: web.Request) -> web.Response:
        return web.Response(status=503, text="full")

    async with answering(refuse) as client:
        with pytest.raises(RuntimeError, match="503: full"):
            await listen(client, "izwi-tiny-tts", 0)


def test_arrivals_are_the_same_in_every_run_and_as_many_as_the_rate_says():
    first, again = (list(open_loop.asks(20.0, 30.0, 52, seed=0)) for _ in range(2))
    assert first == again
    assert first != list(open_loop.asks(20.0, 30.0, 52, seed=1))
    assert len(first) == pytest.approx(600, rel=0.15)
    assert all(0 < a.at_s < b.at_s < 30 for a, b in pairwise(first))
    assert {ask.text for ask in first} == set(TEXTS)
    assert {ask.frames for ask in first} == {26, 39, 52, 65, 78}
    assert np.mean([ask.frames for ask in first]) == pytest.approx(52, rel=0.05)


async def test_the_open_loop_does_not_wait_for_answers(monkeypatch: pytest.MonkeyPatch):
    """Listeners who take longer than the gap between arrivals are in flight together."""

    async def slow(*_: Any, frames: int, **__: Any) -> Listened:
        await asyncio.sleep(0.2)
        return Listened(0.1, 0.2, frames * 0.08, 0.0)

    monkeypatch.setattr(open_loop, "listen", slow)
    row = await open_loop.run_level("http://server", "m", 100.0, 0.3, 10)
    expected = list(open_loop.asks(100.0, 0.3, 10, seed=0))
    assert row["requests"] == len(expected)
    assert 10 < row["most_in_flight"] < len(expected)
    assert (row["ttfa_ms_p50"], row["ttfa_ms_p99"], row["underruns"]) == (100, 100, 0)
    assert row["end_to_end_ms_p95"] == 200


async def test_each_clone_brings_a_clip_of_its_own(monkeypatch: pytest.MonkeyPatch):
    heard: list[dict[str, str] | None] = []

    async def noted(*_: Any, frames: int, clip: dict[str, str] | None, **__: Any) -> Listened:
        heard.append(clip)
        return Listened(0.1, 0.2, frames * 0.08, 0.0)

    monkeypatch.setattr(open_loop, "listen", noted)
    for rate in (40.0, 80.0):
        await open_loop.run_level("http://server", "m", rate, 0.2, 10, clone_s=0.5)
    seconds = [len(clip["ref_audio"]) * 3 / 4 / 2 / 24_000 for clip in heard if clip]
    assert len({clip["ref_audio"] for clip in heard if clip}) == len(heard) > 10
    assert all(0.44 < length < 0.56 for length in seconds)
    assert max(seconds) > min(seconds)
    heard.clear()
    await open_loop.run_level("http://server", "m", 40.0, 0.2, 10)
    assert heard
    assert not any(heard)


async def test_the_closed_loop_keeps_so_many_busy(monkeypatch: pytest.MonkeyPatch):
    now, most, seeds = 0, 0, []

    async def slow(_client: object, _model: str, number: int) -> Listened:
        nonlocal now, most
        now, most = now + 1, max(most, now + 1)
        seeds.append(number)
        await asyncio.sleep(0.02)
        now -= 1
        return Listened(0.01, 0.02, 0.5, 0.0)

    monkeypatch.setattr(closed_loop, "listen", slow)
    async with answering(speaking([], [])) as client:
        monkeypatch.setattr(closed_loop, "connect", lambda *_: client)
        row = await closed_loop.run_level("http://server", "m", 3, 4)
    assert (most, row["requests"], row["rtf_p50"]) == (3, 12, 0.04)
    assert sorted(seeds) == list(range(12))


async def test_each_clip_is_uploaded_once_by_one_of_so_many(monkeypatch: pytest.MonkeyPatch):
    bodies: list[bytes] = []
    now = most = 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal now, most
        assert request.headers["Content-Type"].startswith("multipart/form-data; boundary=")
        now, most = now + 1, max(most, now + 1)
        await asyncio.sleep(0.02)
        now -= 1
        bodies.append(await request.read())
        return web.json_response({"text": ""})

    clips = [uploads.upload_of("asr", np.full(160, n / 8, np.float32)) for n in range(7)]
    async with answering(answer, connections=3) as client:
        monkeypatch.setattr(uploads, "connect", lambda *_: client)
        taken_s, wall_s = await uploads.transcribe_all("http://server", clips, 3)
    assert sorted(bodies) == sorted(clip.content for clip in clips)
    assert all(b"RIFF" in body and b"asr" in body for body in bodies)
    assert most == 3
    assert len(taken_s) == 7
    assert max(taken_s) < wall_s < sum(taken_s)


def test_gaps_of_the_clock_alone_are_no_underruns():
    played = [Listened(0.1, 1.0, 4.0, gap_s) for gap_s in (0.0, 0.0005, 0.02)]
    row = figures(played)
    assert row["underruns"] == 1
    assert row["gap_ms_most"] == 20


def test_lengths_are_those_that_are_asked_for():
    model = load(EMBEDDED, "cpu", "float32", 20)[0].speech(EMBEDDED)
    for asked, frames in ((None, 20), (8, 7)):
        request = model.prepare_speech("r", "m", SpeechInput(TEXTS[0], max_new_tokens=asked))
        assert (request.min_entries, request.max_entries) == (frames + 1, frames)
    listener = load(EMBEDDED_LISTENER, "cpu", "float32", 0)[0].transcription(EMBEDDED_LISTENER)
    ask = TranscriptionInput(np.zeros(4 * 16_000, np.float32))
    assert listener.prepare_transcription("r", "m", ask).max_entries == 18


def test_the_table_shows_what_the_results_say():
    table = json.loads((RESULTS / "gpu_table.json").read_text(encoding="utf-8"))
    shown = {row["row"]: row["value"] for row in table["rows"]}
    assert set(shown) <= set(TABLE)
    for name, (_, source, read) in TABLE.items():
        path = RESULTS / f"{source}.json"
        if name in shown:
            assert shown[name] == read(json.loads(path.read_text(encoding="utf-8"))["rows"])
    with pytest.raises(LookupError, match="streams"):
        gpu_table.closed([{"loop": "closed", "streams": 8}], 64)


def test_the_picture_shows_what_the_results_say():
    closed_rows, open_rows = (
        gpu_table.rows_of(name) for name in (gpu_table.CLOSED, gpu_table.OPEN)
    )
    made, first, at_random = gpu_table.panels(closed_rows, open_rows)
    (curve,) = made.curves.values()
    points = dict(zip(curve.x, curve.y, strict=True))
    assert points[64] == gpu_table.closed(closed_rows, 64)["audio_s_per_s"]
    assert [len(panel.curves) for panel in (first, at_random)] == [2, 2]
    median, most = at_random.curves.values()
    assert list(median.x) == [1, 10, 20]
    assert all(a <= b for a, b in zip(median.y, most.y, strict=True))
