"""An API server that answers for long keeps nothing of a call that has ended."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter

import httpx
import pytest

from izwi_api.serve.app import create_app
from izwi_api.settings import Settings
from tests.api.conftest import FakeChat, FakeEngine, FakeRegistry, FakeSpeech

_CALLS = 25
_MARGIN = 12


@pytest.fixture
async def served(tmp_path):
    engine, chat = FakeEngine(alive=True), FakeChat()
    registry = FakeRegistry(tts=FakeSpeech(), chat=chat)
    engine.step_s = 0.0
    app = create_app(engine, registry, Settings(home=tmp_path, decode_workers=0))
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield client, chat


async def answer(http: httpx.AsyncClient, chat: FakeChat, first: int) -> None:
    """Answer calls of each kind: no two have the same text, and some are refused."""
    for number in range(first, first + _CALLS):
        speech = {"model": "tts", "voice": "Ann", "input": f"Sentence {number}."}
        for body in (speech, speech | {"voice": "none"}, speech | {"speed": number}):
            await http.post("/v1/audio/speech", json=body | {"response_format": "pcm"})
        messages = [{"role": "user", "content": f"Question {number}?"}]
        for stream in (True, False):
            body = {"model": "chat", "messages": messages, "stream": stream}
            await http.post("/v1/chat/completions", json=body)
        await http.get("/v1/none")
    chat.asked.clear()


async def objects() -> Counter[str]:
    """Count objects by type, without timers that were cancelled, of which asyncio keeps some."""
    loop = asyncio.get_running_loop()
    for timer in [loop.call_later(3600, print) for _ in range(1000)]:
        timer.cancel()
    await asyncio.sleep(0)  # with more than half of many cancelled, it drops them all
    for _ in range(3):  # a nested tuple of numbers is untracked level by level
        gc.collect()
    return Counter(type(one).__qualname__ for one in gc.get_objects())


async def test_calls_leave_no_objects_behind(served) -> None:
    await answer(*served, 0)
    await answer(*served, _CALLS)
    await objects()  # looking makes some, once
    before = await objects()
    await answer(*served, 2 * _CALLS)
    await answer(*served, 3 * _CALLS)
    after = await objects()
    assert not {name: count for name, count in (after - before).items() if count > _MARGIN}
