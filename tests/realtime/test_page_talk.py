"""A real browser holds a live conversation, and its user interrupts the answer.

The test is the microphone: it speaks when the page is ready, and again when so much of the answer
was heard. So a busy machine only takes longer. Over the WebSocket, and over WebRTC where aiortc is
installed. Needs Debian's chromium and playwright.
"""

from __future__ import annotations

import asyncio
import base64
import re
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from izwi.audio.pcm import to_s16le
from izwi_api.routes import realtime_calls
from tests.realtime import conftest

playwright = pytest.importorskip("playwright.async_api", reason="pip install playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="apt-get install chromium")

MICROPHONE = Path(__file__).with_name("page_microphone.js")
WAIT_MS = 240_000
HEARD_S = 2.0  # how much of the answer is heard before it is interrupted
# some words of the interruption, however well they were heard
INTERRUPTED = re.compile("stop|wait|river|please", re.IGNORECASE)
LONG_ANSWER = " ".join([conftest.LONG_ANSWER] * 12)
HAS_WEBRTC = find_spec("aiortc") is not None


@pytest.mark.parametrize(
    "way",
    [
        "socket",
        pytest.param("webrtc", marks=pytest.mark.skipif(not HAS_WEBRTC, reason="needs aiortc")),
    ],
)
async def test_the_page_holds_a_conversation_with_barge_in(served, said, monkeypatch, way):
    if way == "socket":
        monkeypatch.setattr(realtime_calls, "find_spec", lambda _: None)
    served.prompts.clear()
    served.answer = LONG_ANSWER
    question = said("When does the train leave?")
    interruption = said("Please stop now, and wait for me near the river.")
    flags = ["--no-sandbox", "--autoplay-policy=no-user-gesture-required"]
    async with playwright.async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=flags)
        page = await browser.new_page()
        page.set_default_timeout(WAIT_MS)
        await page.add_init_script(path=MICROPHONE)
        failures = []
        page.on("pageerror", lambda error: failures.append(str(error)))
        sockets = []
        page.on("websocket", lambda socket: sockets.append(socket.url))
        await page.goto(f"http://127.0.0.1:{served.port}/#talk")
        await page.locator("#talk-start:enabled").click()
        await page.locator("#talk-state[data-state=listening]").wait_for()
        await speak(page, question)
        await page.locator("#captions li.user", has_text="train").wait_for()
        await page.locator("#talk-state[data-state=speaking]").wait_for()
        assert re.search(r"\d m?s", await page.locator("#phases").inner_text())
        async with asyncio.timeout(WAIT_MS / 1000):
            while await page.evaluate("microphone.heard()") < HEARD_S:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert await page.locator("#captions li.assistant.cut").count() == 0
        await speak(page, interruption)
        await page.locator("#captions li.assistant.cut").wait_for()
        await page.locator("#captions li.user", has_text=INTERRUPTED).wait_for()
        await page.locator("#captions li.assistant:not(.cut)").wait_for()
        await page.locator("#talk-start").click()
        await page.locator("#talk-state[data-state=off]").wait_for()
        assert await page.locator("#talk-note.bad").count() == 0
        assert len(sockets) == (way == "socket")
        await browser.close()
    assert failures == []
    # the second question comes with a history that is cut to what was heard
    answered = [message for message in served.prompts[-1] if message.role == "assistant"]
    assert len(answered) == 1
    assert 0 < len(answered[0].content) < len(LONG_ANSWER)
    assert LONG_ANSWER.startswith(answered[0].content.strip())


async def speak(page, samples):
    """Say samples at 24 kHz into the page's microphone."""
    await page.evaluate("pcm => microphone.say(pcm)", base64.b64encode(to_s16le(samples)).decode())
