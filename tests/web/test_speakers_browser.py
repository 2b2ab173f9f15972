"""A real browser shows who speaks in a transcript, and saves it with names."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.web.browser import CHROMIUM

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="apt-get install chromium"),
    pytest.mark.slow,
]

SEGMENTS = [
    {"start": 0.0, "end": 2.0, "text": "When does the train leave?", "speaker": "ann"},
    {"start": 2.2, "end": 4.0, "text": "At seven.", "speaker": "A"},
    {"start": 4.0, "end": 6.0, "text": "In the morning.", "speaker": "A"},
    {"start": 6.5, "end": 8.0, "text": "Thank you.", "speaker": "ann"},
]


@pytest.fixture
def asked(bare_page):
    """What the page sends; it is answered with the segments."""
    sent = []
    text = " ".join(segment["text"] for segment in SEGMENTS)
    done = {"type": "transcript.text.done", "text": text, "segments": SEGMENTS, "duration": 8.0}

    def answer(route):
        sent.append(route.request.post_data_buffer.decode(errors="replace"))
        body = f"data: {json.dumps(done)}\n\n"
        route.fulfill(status=200, content_type="text/event-stream", body=body)

    bare_page.route("**/v1/audio/transcriptions", answer)
    return sent


def saved(page, kind):
    with page.expect_download() as download:
        page.locator(f"[data-save={kind}]").click()
    return Path(download.value.path()).read_text()


def test_speakers_have_names_and_colours(bare_page, asked):
    page = bare_page
    page.locator("#tab-transcribe").click()
    page.locator("#transcribe-speakers").check()
    wav = {"name": "a.wav", "mimeType": "audio/wav", "buffer": b"RIFF"}
    page.locator("#file").set_input_files(wav)
    page.locator("#transcript .who").first.wait_for()
    assert 'name="speakers"' in asked[0]
    assert "cue" not in asked[0]
    names = page.locator("#transcript .who").all_inner_texts()
    assert [name.partition(" ")[0] for name in names] == ["ann", "A", "ann"]
    said = page.locator("#transcript [role=button]")
    assert said.all_inner_texts() == [segment["text"] for segment in SEGMENTS]
    colours = said.evaluate_all("all => all.map((one) => getComputedStyle(one).color)")
    assert colours[0] == colours[3] != colours[1] == colours[2]
    assert saved(page, "txt").splitlines() == [
        "ann: When does the train leave?",
        "A: At seven. In the morning.",
        "ann: Thank you.",
    ]
    assert "\nann: When does the train leave?\n" in saved(page, "srt")
    assert "<v A>At seven.\n" in saved(page, "vtt")
    assert "speakers=1" in page.url


def test_captions_name_speakers_while_the_user_records(bare_page, asked):
    page, configs = bare_page, []
    heard = [{"type": "transcript.segment", "segment": n, **one} for n, one in enumerate(SEGMENTS)]

    def serve(socket):
        def receive(message):
            if isinstance(message, str) and not configs:
                configs.append(json.loads(message))
                for event in heard:
                    socket.send(json.dumps(event))

        socket.on_message(receive)

    page.route_web_socket("**/v1/audio/transcriptions/stream", serve)
    page.locator("#tab-transcribe").click()
    page.locator("#transcribe-speakers").check()
    page.locator("#record").click()
    said = page.locator("#transcript .caption:not(.unstable)", has_text=re.compile("."))
    page.locator("#transcript .caption", has_text="Thank you.").wait_for()
    assert configs[0]["speakers"] is True
    assert said.all_inner_texts() == [segment["text"] for segment in SEGMENTS]
    assert page.locator("#transcript .who").all_inner_texts() == ["ann", "A", "ann"]
    colours = said.evaluate_all("all => all.map((one) => getComputedStyle(one).color)")
    assert colours[0] == colours[3] != colours[1] == colours[2]
    page.locator("#record").click()  # the answer to the file replaces the captions
    page.locator("#transcript [role=button]").first.wait_for()
