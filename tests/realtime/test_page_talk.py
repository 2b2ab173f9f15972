"""A real browser holds a live conversation: its microphone plays a file that interrupts the answer.

Over the WebSocket, and over WebRTC where aiortc is installed. Needs Debian's chromium and
playwright.
"""

from __future__ import annotations

import re
import shutil
from importlib.util import find_spec

import numpy as np
import pytest
import soundfile

from izwi_api.routes import realtime_calls
from tests.realtime.conftest import ANSWER

playwright = pytest.importorskip("playwright.async_api", reason="pip install playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="apt-get install chromium")

RATE = 24_000
WAIT_MS = 120_000
# some words of the interruption, however well they were heard
INTERRUPTED = re.compile("stop|wait|river|please", re.IGNORECASE)
LONG_ANSWER = " ".join([ANSWER] * 6)


def silence(seconds):
    return np.zeros(int(RATE * seconds), np.float32)


HAS_WEBRTC = find_spec("aiortc") is not None


@pytest.mark.parametrize(
    "way",
    [
        "socket",
        pytest.param("webrtc", marks=pytest.mark.skipif(not HAS_WEBRTC, reason="needs aiortc")),
    ],
)
async def test_the_page_holds_a_conversation_with_barge_in(
    served, said, tmp_path, monkeypatch, way
):
    if way == "socket":
        monkeypatch.setattr(realtime_calls, "find_spec", lambda _: None)
    served.prompts.clear()
    served.answer = LONG_ANSWER
    microphone = tmp_path / "microphone.wav"
    parts = (silence(1), said("When does the train leave?"), silence(6))
    parts += (said("Please stop now, and wait for me near the river."), silence(60))
    soundfile.write(microphone, np.concatenate(parts), RATE)
    flags = [
        "--no-sandbox",
        "--use-fake-ui-for-media-stream",
        "--use-fake-device-for-media-stream",
        f"--use-file-for-fake-audio-capture={microphone}%noloop",
        "--autoplay-policy=no-user-gesture-required",
    ]
    async with playwright.async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=flags)
        page = await browser.new_page()
        page.set_default_timeout(WAIT_MS)
        failures = []
        page.on("pageerror", lambda error: failures.append(str(error)))
        sockets = []
        page.on("websocket", lambda socket: sockets.append(socket.url))
        await page.goto(f"http://127.0.0.1:{served.port}/#talk")
        await page.locator("#talk-start:enabled").click()
        await page.locator("#captions li.user", has_text="train").wait_for()
        await page.locator("#talk-state[data-state=speaking]").wait_for()
        assert "ms" in await page.locator("#phases").inner_text()
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
