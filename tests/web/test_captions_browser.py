"""A real browser records: captions come while its microphone plays a file, words after Stop."""

from __future__ import annotations

import io

import httpx
import numpy as np
import pytest
import soundfile

from tests.api.served import served
from tests.web.browser import CHROMIUM, FLAGS, WAIT_MS

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="apt-get install chromium")

SENTENCES = ("The red house is near the river.", "The train leaves at seven in the morning.")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with served(tmp_path_factory.mktemp("captions")) as running:
        yield running


def said(server, text):
    body = {"model": "izwi-tiny-tts", "input": text, "voice": "felix", "response_format": "wav"}
    answer = httpx.post(f"{server.url}/v1/audio/speech", json=body, timeout=60)
    samples, rate = soundfile.read(io.BytesIO(answer.raise_for_status().content), dtype="float32")
    return np.concatenate([samples, np.zeros(rate, np.float32)]), rate


@pytest.fixture
def page(server, tmp_path):
    spoken = [said(server, text) for text in SENTENCES]
    rate = spoken[0][1]
    parts = [np.zeros(rate, np.float32), *(samples for samples, _ in spoken), np.zeros(60 * rate)]
    soundfile.write(tmp_path / "microphone.wav", np.concatenate(parts), rate)
    fed = f"--use-file-for-fake-audio-capture={tmp_path / 'microphone.wav'}%noloop"
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS, fed])
        opened = browser.new_page()
        opened.set_default_timeout(WAIT_MS)
        failures = []
        opened.on("pageerror", lambda error: failures.append(str(error)))
        opened.goto(f"{server.url}/#transcribe")
        opened.locator("#status[data-state=ok]").wait_for()
        yield opened
        browser.close()
    assert failures == []


def test_captions_come_while_the_user_speaks(page):
    page.locator("#record").click()
    page.locator("#record[aria-pressed=true]").wait_for()
    page.locator("#transcript .caption:not(.unstable)", has_text="river").wait_for()
    assert page.locator("#record").inner_text() == "Stop"
    assert page.locator("#transcript-audio").is_hidden()
    page.locator("#transcript .caption", has_text="morning").wait_for()
    page.locator("#record").click()
    page.locator("#transcript span:not(.caption)", has_text="river").wait_for()
    assert page.locator("#transcript .caption").count() == 0
    assert page.locator("#transcript-audio").is_visible()
    assert "audio in" in page.locator("#transcribe-note").inner_text()


def test_captions_are_kept_where_the_recording_is_refused(page):
    refused = {"status": 413, "json": {"error": {"message": "The file is too large."}}}
    page.route("**/v1/audio/transcriptions", lambda route: route.fulfill(**refused))
    page.locator("#record").click()
    page.locator("#transcript .caption:not(.unstable)", has_text="river").wait_for()
    page.locator("#record").click()
    page.locator("#transcribe-note", has_text="The captions are kept").wait_for()
    with page.expect_download() as subtitles:
        page.locator("[data-save=srt]").click()
    text = subtitles.value.path().read_text()
    assert "-->" in text
    assert "river" in text


def test_a_recording_ends_with_its_tab(page):
    page.locator("#record").click()
    page.locator("#transcript .caption:not(.unstable)", has_text="red").wait_for()
    page.locator("#tab-speak").click()
    page.locator("#tab-transcribe").click()
    assert page.locator("#record").inner_text() == "Record"
    page.locator("#transcript span:not(.caption)", has_text="red").wait_for()


def test_a_recording_goes_on_where_captions_end(page):
    page.route_web_socket("**/stream", lambda socket: socket.close(code=1013, reason="busy"))
    page.locator("#record").click()
    page.locator("#transcribe-note", has_text="without captions (busy)").wait_for()
    page.wait_for_timeout(1000)
    page.locator("#record").click()
    page.locator("#transcribe-note", has_text="s of audio in").wait_for()
