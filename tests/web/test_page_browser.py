"""A real browser uses the page of a real server. Needs Debian's chromium and playwright."""

from __future__ import annotations

import io
import wave

import httpx
import numpy as np
import pytest

from tests.api.served import served
from tests.web.browser import CHROMIUM, FLAGS, WAIT_MS

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="apt-get install chromium")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with served(tmp_path_factory.mktemp("page"), "--manage-models") as running:
        yield running


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield started
        started.close()


def is_fault(message):
    """Whether a console line is an error; a refused request is not."""
    return message.type == "error" and "Failed to load resource" not in message.text


@pytest.fixture
def page(browser, server):
    context = browser.new_context(accept_downloads=True)
    context.set_default_timeout(WAIT_MS)
    opened = context.new_page()
    failures = []
    opened.on("pageerror", lambda error: failures.append(str(error)))
    opened.on(
        "console", lambda message: failures.append(message.text) if is_fault(message) else None
    )
    opened.goto(server.url)
    opened.locator("#status[data-state=ok]").wait_for()
    yield opened
    context.close()
    assert failures == []


def open_tab(page, name):
    page.locator(f"#tab-{name}").click()
    page.locator(f"#{name}").wait_for(state="visible")


def test_tabs_by_keyboard(page):
    page.locator("#tab-talk").focus()
    for name in ("speak", "transcribe", "voices", "models", "metrics", "talk"):
        page.keyboard.press("ArrowDown")
        page.locator(f"#{name}").wait_for(state="visible")
        assert page.locator(f"#tab-{name}").get_attribute("aria-selected") == "true"
        assert page.locator("[role=tabpanel]:visible").count() == 1


def test_spoken_text_is_played_saved_and_transcribed(page, tmp_path):
    open_tab(page, "speak")
    page.locator("#text").fill("The red house is near the river.")
    page.locator("#speak-go").click()
    page.locator("#speak-note", has_text="real time").wait_for()
    with page.expect_download() as saved:
        page.locator("#download").click()
    path = tmp_path / "speech.wav"
    saved.value.save_as(path)
    with wave.open(str(path)) as audio:
        assert audio.getframerate() == 24_000
        samples = np.frombuffer(audio.readframes(audio.getnframes()), np.int16)
    assert len(samples) > 24_000
    assert np.abs(samples).max() > 1000
    open_tab(page, "transcribe")
    page.locator("#file").set_input_files(path)
    page.locator("#transcript span", has_text="river").wait_for()
    words = page.locator("#transcript span:not(.stamp)").all_inner_texts()
    assert "house" in [word.lower().strip(".,") for word in words]
    with page.expect_download() as subtitles:
        page.locator("[data-save=srt]").click()
    assert "-->" in subtitles.value.path().read_text()


def test_speech_stops_when_it_is_asked_to(page):
    open_tab(page, "speak")
    page.locator("#text").fill("The house is near the river and the road is long. " * 40)
    page.locator("#speak-go").click()
    page.locator("#player").wait_for(state="visible")
    page.locator("#speak-stop").click()
    page.locator("#speak-note", has_text="Stopped").wait_for()


def test_the_page_explains_why_a_clip_without_audio_is_rejected(page):
    open_tab(page, "voices")
    page.locator("#voice-list li", has_text="amber").wait_for()
    page.locator("#clone-input").set_input_files(
        {"name": "noise.wav", "mimeType": "audio/wav", "buffer": b"no audio at all"}
    )
    page.locator("#clone-name").fill("walker")
    page.locator("#clone-consent").check()
    page.locator("#clone-form button[type=submit]").click()
    page.locator("#clone-note.bad").wait_for()


def test_metrics_show_what_was_asked(page):
    open_tab(page, "metrics")
    page.locator(".tile", has_text="Requests a second").wait_for()
    page.locator("#latency td", has_text="/v1/models").wait_for()


def test_a_model_is_unloaded_and_loaded_again(page):
    page.on("dialog", lambda dialog: dialog.accept())
    open_tab(page, "models")
    chat = page.locator("#model-list li", has_text="izwi-tiny-chat")
    chat.locator("small", has_text="MiB").wait_for()
    chat.get_by_role("button", name="Unload").click()
    chat.wait_for(state="detached")
    open_tab(page, "talk")
    page.locator("#talk-note", has_text="No chat model is loaded").wait_for()
    assert page.locator("#talk-start").is_disabled()
    open_tab(page, "models")
    page.locator("#pull-name").fill("izwi-tiny-chat")
    page.locator("#pull-form [value=load]").click()
    chat.wait_for()
    open_tab(page, "talk")
    page.locator("#talk-start:enabled").wait_for()
    assert page.locator("#talk-note").inner_text() == ""


def test_a_voice_is_cloned_heard_and_deleted(page, server):
    page.on("dialog", lambda dialog: dialog.accept())
    text = "I am the owner of this voice, and I agree that it is copied here, today and tomorrow."
    ask = {"model": "izwi-tiny-tts", "voice": "felix", "input": text, "response_format": "wav"}
    clip = httpx.post(f"{server.url}/v1/audio/speech", json=ask, timeout=60).content
    open_tab(page, "voices")
    file = {"name": "clip.wav", "mimeType": "audio/wav", "buffer": clip}
    page.locator("#clone-input").set_input_files(file)
    page.locator("#clone-audio").wait_for(state="visible")
    page.locator("#clone-name").fill("walker")
    page.locator("#clone-text").fill(text)
    page.locator("#clone-consent").check()
    page.locator("#clone-form button[type=submit]").click()
    voice = page.locator("#voice-list li", has_text="walker")
    page.locator("#voice-list li.now", has_text="walker").wait_for()  # it is heard at once
    assert "was added" in page.locator("#clone-note").inner_text()
    # the form is ready for the next one
    assert page.locator("#clone-name").input_value() == ""
    assert page.locator("#clone-audio").is_hidden()
    voice.get_by_role("button", name="Delete walker").click()
    voice.wait_for(state="detached")


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_screen(page, width):
    page.set_viewport_size({"width": width, "height": 844})
    for name in ("talk", "speak", "transcribe", "voices", "models", "metrics"):
        open_tab(page, name)
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def silent_wav(seconds):
    data = io.BytesIO()
    with wave.open(data, "wb") as audio:
        audio.setnchannels(1)
        audio.setsampwidth(2)
        audio.setframerate(16_000)
        audio.writeframes(bytes(2 * int(16_000 * seconds)))
    return data.getvalue()


def test_silence_has_no_words(page):
    open_tab(page, "transcribe")
    page.locator("#file").set_input_files(
        {"name": "silence.wav", "mimeType": "audio/wav", "buffer": silent_wav(2)}
    )
    page.locator("#transcribe-note", has_text="No speech was found").wait_for()
