"""A real browser uses the page of a real server. Needs Debian's chromium and playwright."""

from __future__ import annotations

import io
import wave

import httpx
import numpy as np
import pytest

from tests.api.served import served
from tests.web.browser import CHROMIUM, WAIT_MS

pytest.importorskip("playwright.sync_api", reason="pip install playwright")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="apt-get install chromium")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with served(tmp_path_factory.mktemp("page"), "--manage-models") as running:
        yield running


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


def said(server, text, **fields):
    ask = {"model": "izwi-tiny-tts", "voice": "felix", "input": text, "response_format": "wav"}
    ask |= fields
    return httpx.post(f"{server.url}/v1/audio/speech", json=ask, timeout=60).content


def as_file(name, content):
    return {"name": name, "mimeType": "audio/wav", "buffer": content}


def test_a_transcript_has_its_marks_and_readable_subtitles(page, server):
    text = "The red house is near the river. When does the train leave? At seven."
    clip = said(server, text, voice="amber", seed=1)  # with other seeds a comma is heard in it
    ask = {"model": "izwi-tiny-asr", "response_format": "vtt"}
    files = {"file": ("a.wav", clip)}
    vtt = httpx.post(f"{server.url}/v1/audio/transcriptions", data=ask, files=files, timeout=60)
    open_tab(page, "transcribe")
    page.locator("#file").set_input_files(as_file("three.wav", clip))
    page.locator("#transcript [role=button]").first.wait_for()
    text = page.locator("#transcript").inner_text()
    assert text.count(".") + text.count("?") == 3
    with page.expect_download() as saved:
        page.locator("[data-save=txt]").click()
    assert saved.value.path().read_text().split() == text.split()
    with page.expect_download() as saved:
        page.locator("[data-save=vtt]").click()
    assert saved.value.path().read_text().split() == vtt.text.split()
    assert vtt.text.count("-->") >= 2
    # one word takes the focus, and plays from its place
    page.locator("#transcript [role=button]").first.focus()
    page.keyboard.press("End")
    assert page.evaluate("document.activeElement.textContent").lower().startswith("seven")
    page.keyboard.press("Enter")
    page.wait_for_function("document.getElementById('transcript-audio').currentTime > 2")
    page.keyboard.press("Home")
    assert page.evaluate("document.activeElement.textContent") == "The"


def test_a_file_that_is_no_audio_leaves_no_player(page):
    open_tab(page, "transcribe")
    page.locator("#file").set_input_files(as_file("noise.wav", b"no audio at all"))
    page.locator("#transcribe-note.bad").wait_for()
    assert page.locator("#transcript-card").is_hidden()


def test_other_formats_are_encoded_from_the_audio_that_is_here(page):
    asked = []
    page.on("request", lambda request: asked.append(request.url.partition("/v1/")[2]))
    open_tab(page, "speak")
    page.locator("#text").fill("The red house.")
    page.keyboard.press("Control+Enter")
    page.locator("#speak-note", has_text="real time").wait_for()
    for audio_format, mark in (("mp3", b"\xff"), ("opus", b"OggS"), ("flac", b"fLaC")):
        page.locator("#speak-format").select_option(audio_format)
        with page.expect_download() as saved:
            page.locator("#download").click()
        assert saved.value.suggested_filename == f"speech.{audio_format}"
        content = saved.value.path().read_bytes()
        assert content.startswith((mark, b"ID3"))
        assert len(content) > 1000
        page.locator("#download-note", has_text=f"speech.{audio_format}").wait_for()
    assert asked.count("audio/speech") == 1
    # a reload keeps the text and the audio
    page.reload()
    page.locator("#status[data-state=ok]").wait_for()
    assert page.locator("#text").input_value() == "The red house."
    page.locator("#history button", has_text="Play").click()
    page.locator("#player").wait_for()
    with page.expect_download() as saved:
        page.locator("#history button", has_text="Save").click()
    with wave.open(str(saved.value.path())) as audio:
        assert audio.getnframes() > 12_000
    assert asked.count("audio/speech") == 1


def test_the_waveform_is_a_slider_for_keys(page):
    open_tab(page, "speak")
    page.locator("#text").fill("The house is near the river and the road is long.")
    page.locator("#speak-go").click()
    page.locator("#speak-note", has_text="real time").wait_for()
    wave_form = page.locator("#wave")
    wave_form.focus()
    page.keyboard.press("End")
    whole = wave_form.get_attribute("aria-valuemax")
    page.wait_for_function(
        "([id, at]) => document.getElementById(id).getAttribute('aria-valuenow') === at",
        arg=["wave", whole],
    )
    page.keyboard.press("Home")
    page.keyboard.press("Space")
    page.locator("#play[aria-label=Play]").wait_for()
    assert wave_form.get_attribute("aria-valuetext").startswith("0:0")
    assert " of 0:0" in wave_form.get_attribute("aria-valuetext")


def test_a_clip_is_judged_before_a_voice_is_made(page, server):
    made = []
    page.on("request", lambda request: made.append(request.method + request.url))
    open_tab(page, "voices")
    clip = said(server, "I am the owner of this voice, and it may be copied.")
    page.locator("#clone-input").set_input_files(as_file("clip.wav", clip))
    page.locator("#clone-report", has_text="speech").wait_for()
    for name in ("Length", "Level", "noise"):
        assert page.locator("#clone-report dt", has_text=name).is_visible()
    with wave.open(io.BytesIO(clip)) as audio:
        rate, frames = audio.getframerate(), audio.readframes(audio.getnframes())
    page.locator("#clone-input").set_input_files(as_file("b.wav", wav(rate, frames[: 3 * rate])))
    page.locator("#clone-report .fault", has_text="give at least 2 s").wait_for()
    page.locator("#clone-input").set_input_files(as_file("c.wav", wav(rate, frames[: rate + 200])))
    page.locator("#clone-note.bad", has_text="0.5 s long").wait_for()
    assert page.locator("#clone-audio").is_hidden()
    assert page.locator("#clone-report").is_hidden()
    assert not any(url.startswith("POST") and url.endswith("/voices") for url in made)


def wav(rate, frames):
    data = io.BytesIO()
    with wave.open(data, "wb") as audio:
        audio.setnchannels(1)
        audio.setsampwidth(2)
        audio.setframerate(rate)
        audio.writeframes(frames)
    return data.getvalue()


def test_the_first_screen_says_what_the_embedded_models_are(page):
    line = page.locator("#about-models")
    assert "izwi serve --model" in line.inner_text()
    line.get_by_role("button").click()
    page.locator("#pull-form").wait_for()
    assert page.evaluate("document.activeElement.id") == "tab-models"


def test_voices_say_what_they_are_and_speak_ones_own_text(page):
    asked = []
    page.on("request", lambda request: asked.append(request.post_data or ""))
    open_tab(page, "voices")
    clara = page.locator("#voice-list li", has_text="clara")
    assert "British" in clara.locator(".about-voice").inner_text()
    page.locator("#voice-sample").fill("A red house.")
    clara.get_by_role("button", name="Listen to clara").click()
    page.locator("#voice-list li.now", has_text="clara").wait_for()
    assert any('"A red house."' in text for text in asked)


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
    open_tab(page, "voices")
    page.locator("#clone-input").set_input_files(as_file("clip.wav", said(server, text)))
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
    page.wait_for_function("document.activeElement.classList.contains('listen')")


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_screen(page, width):
    page.set_viewport_size({"width": width, "height": 844})
    for name in ("talk", "speak", "transcribe", "voices", "models", "metrics"):
        open_tab(page, name)
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_silence_has_no_words(page):
    open_tab(page, "transcribe")
    page.locator("#file").set_input_files(
        {"name": "silence.wav", "mimeType": "audio/wav", "buffer": wav(16_000, bytes(64_000))}
    )
    page.locator("#transcribe-note", has_text="No speech was found").wait_for()
