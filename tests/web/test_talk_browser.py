"""The Talk tab in a real browser, over a WebSocket whose server is the test."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import numpy as np
import pytest

from izwi.audio.pcm import to_s16le
from tests.web.browser import CHROMIUM

pytest.importorskip("playwright.sync_api", reason="pip install playwright")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="apt-get install chromium")

MICROPHONE = Path(__file__).parents[1] / "realtime" / "page_microphone.js"
RATE = 24_000
COUNT_MICROPHONES = """() => {
globalThis.asked = [];
const media = navigator.mediaDevices, open = media.getUserMedia.bind(media);
media.getUserMedia = (wanted) => { globalThis.asked.push(wanted); return open(wanted); };
}"""


class Live:
    """The server's side of the page's sessions.

    Attributes:
        sockets: One for each session, in order.
        heard: The events of the last session, without audio.
        num_audio: How many pieces of audio the last session sent.
    """

    def __init__(self, page):
        self.sockets, self.heard, self.num_audio = [], [], 0
        page.route_web_socket("**/v1/realtime?*", self._open)

    def _open(self, socket):
        self.sockets.append(socket)
        self.heard.clear()
        self.num_audio = 0
        socket.on_message(self._hear)

    def _hear(self, text):
        event = json.loads(text)
        if event["type"] == "input_audio_buffer.append":
            self.num_audio += 1
        else:
            self.heard.append(event)

    def send(self, kind, **fields):
        self.sockets[-1].send(json.dumps({"type": kind, **fields}))

    def events(self, kind):
        return [event for event in self.heard if event["type"] == kind]


@pytest.fixture
def page(bare_page):
    return bare_page


@pytest.fixture
def live(page):
    return Live(page)


def until(page, condition):
    """Let the page run until a condition holds that this process sees."""
    for _ in range(1200):
        if condition():
            return
        page.wait_for_timeout(50)
    raise AssertionError("it did not come")


def start(page):
    page.locator("#talk-start").click()
    page.locator("#talk-state[data-state=listening]").wait_for()


def in_base64(samples):
    return base64.b64encode(to_s16le(samples.astype(np.float32))).decode()


def tone(seconds):
    return 0.3 * np.sin(2 * np.pi * 300 * np.arange(round(seconds * RATE)) / RATE)


def answer(live, item, text, samples):
    live.send("response.created")
    live.send("response.output_item.added", item={"id": item, "type": "message"})
    live.send("response.output_audio_transcript.delta", item_id=item, delta=text)
    live.send("response.output_audio.delta", item_id=item, delta=in_base64(samples))


def milliseconds(text):
    number, unit = re.fullmatch(r"([\d.]+) (ms|s)", text).groups()
    return float(number) * (1000 if unit == "s" else 1)


def test_latency_is_from_the_last_word_to_the_first_audible_sample(page, live):
    page.add_init_script(path=MICROPHONE)
    page.reload()
    page.locator("#talk-start:enabled").wait_for()
    start(page)
    page.evaluate("pcm => microphone.say(pcm)", in_base64(tone(0.5)))
    until(page, lambda: page.locator("#talk-level").evaluate("meter => meter.value") > 0.5)
    until(page, lambda: page.locator("#talk-level").evaluate("meter => meter.value") < 0.1)
    page.wait_for_timeout(600)  # the end of the turn is noticed so much later, at least
    live.send("input_audio_buffer.speech_stopped", item_id="a", audio_end_ms=1100)
    live.send(
        "conversation.item.input_audio_transcription.completed", item_id="a", transcript="Hi."
    )
    answer(live, "b", "Hello.", np.concatenate([np.zeros(RATE), tone(0.5)]))
    until(page, lambda: page.locator("#turn-total").inner_text() != "–")
    times = [milliseconds(text) for text in page.locator("#phases dd").all_inner_texts()]
    assert times == sorted(times)
    assert times[0] >= 600
    # a second of silence comes before the first sound
    assert times[-1] - times[-2] >= 950
    assert milliseconds(page.locator("#turn-total").inner_text()) == times[-1]
    page.locator("#tab-metrics").click()
    page.locator("#turns-text", has_text="1 turn, median").wait_for()
    assert page.locator("#turns-chart svg").count() == 1


def test_the_server_says_when_the_last_word_ended(page, live):
    start(page)
    live.send("input_audio_buffer.speech_stopped", item_id="a", audio_end_ms=1100, silence_ms=750)
    answer(live, "b", "Hello.", tone(0.5))
    until(page, lambda: page.locator("#turn-total").inner_text() != "–")
    assert page.locator("#phases dd").first.inner_text() == "750 ms"
    assert milliseconds(page.locator("#turn-total").inner_text()) >= 750


@pytest.mark.parametrize("way", ["truncated", "cancelled"])
def test_words_that_were_not_heard_are_grey(page, live, way):
    start(page)
    answer(live, "b", "One two  three four.", tone(3.0))
    page.locator("#talk-state[data-state=speaking]").wait_for()
    content = [{"type": "output_audio", "transcript": "One two"}]
    item = {"id": "b", "type": "message", "role": "assistant", "content": content}
    if way == "truncated":
        live.send("input_audio_buffer.speech_started", item_id="c")
        until(page, lambda: live.events("conversation.item.retrieve"))
        cut = live.events("conversation.item.truncate")[0]
        assert (cut["item_id"], cut["content_index"]) == ("b", 0)
        assert 0 <= cut["audio_end_ms"] < 3000
        live.send("conversation.item.retrieved", item=item)
    else:
        live.send("response.done", response={"status": "cancelled", "output": [item]})
    page.locator("#captions .cut .unheard", has_text="three four.").wait_for()
    assert page.locator("#captions .assistant .words").inner_text().startswith("One two")
    with page.expect_download() as saved:
        page.locator("#talk-save").click()
    text = saved.value.path().read_text()
    assert "izwi: One two [interrupted; not heard: three four.]" in text


def test_typing_needs_no_microphone_and_prompts_go_away(page, live):
    page.evaluate(COUNT_MICROPHONES)
    assert page.locator("#prompts button").count() >= 2
    page.locator("#prompts button").first.click()
    until(page, lambda: live.events("response.create"))
    assert page.locator("#prompts").is_hidden()
    assert page.evaluate("asked.length") == 0
    page.locator("#typed").fill("And then?")
    page.locator("#typed").press("Enter")
    until(page, lambda: len(live.events("response.create")) == 2)
    typed = [event["item"] for event in live.events("conversation.item.create")]
    assert typed[1]["role"] == "user"
    assert typed[1]["content"] == [{"type": "input_text", "text": "And then?"}]
    assert page.locator("#captions .user").count() == 2
    # the user may speak, too
    start(page)
    assert page.evaluate("asked.length") == 1
    until(page, lambda: live.num_audio > 0)
    assert len(live.sockets) == 1


def test_a_restart_draws_a_line(page, live):
    start(page)
    live.send(
        "conversation.item.input_audio_transcription.completed", item_id="a", transcript="Hi."
    )
    page.locator("#captions .user", has_text="Hi.").wait_for()
    page.locator("#talk-start").click()
    start(page)
    page.locator("#captions .divider", has_text="New conversation").wait_for()
    assert live.events("conversation.item.create") == []
    page.locator("#talk-clear").click()
    assert page.locator("#captions li").count() == 0
    page.locator("#prompts").wait_for()


def test_the_microphone_is_shown_on_every_tab_and_ends_there(page, live):
    start(page)
    assert page.locator("#live").is_hidden()
    for name in ("speak", "metrics"):
        page.locator(f"#tab-{name}").click()
        page.locator("#live-text", has_text="Microphone on").wait_for()
    page.locator("#metrics").focus()
    page.keyboard.press("m")
    page.locator("#live-text", has_text="Muted").wait_for()
    page.locator("#live-end").click()
    page.locator("#live").wait_for(state="hidden")
    page.locator("#tab-talk").click()
    assert page.locator("#talk-start").inner_text() == "Start talking"


def test_leaving_during_a_conversation_warns(page, live):
    asked = []
    page.on("dialog", lambda dialog: (asked.append(dialog.type), dialog.dismiss()))
    start(page)
    page.evaluate("setTimeout(() => location.reload())")
    until(page, lambda: asked)
    assert asked == ["beforeunload"]
    assert page.locator("#talk-start").inner_text() == "End"
    page.locator("#talk-start").click()
    page.reload()
    assert asked == ["beforeunload"]


def test_the_page_reconnects_and_keeps_the_conversation(page, live):
    start(page)
    live.send(
        "conversation.item.input_audio_transcription.completed", item_id="a", transcript="Hi."
    )
    answer(live, "b", "Hello you.", tone(0.1))
    page.locator("#captions .assistant", has_text="Hello you.").wait_for()
    draining = {"status": 503, "json": {"status": "draining"}}
    page.route("**/readyz", lambda route: route.fulfill(**draining))
    page.locator("#talk-banner", has_text="shutting down").wait_for()
    live.sockets[-1].close(code=1012, reason="restart")
    page.locator("#talk-state[data-state=reconnecting]").wait_for()
    page.unroute("**/readyz")
    page.locator("#captions .divider", has_text="Reconnected").wait_for()
    page.locator("#talk-state[data-state=listening]").wait_for()
    assert page.locator("#talk-banner").is_hidden()
    assert len(live.sockets) == 2
    until(page, lambda: len(live.events("conversation.item.create")) == 2)
    kept = [event["item"] for event in live.events("conversation.item.create")]
    assert [(item["role"], item["content"][0]["text"]) for item in kept] == [
        ("user", "Hi."),
        ("assistant", "Hello you."),
    ]
    until(page, lambda: live.num_audio > 0)  # the same microphone


def test_a_session_that_the_server_ends_is_over(page, live):
    """The microphone is not opened again without the user."""
    start(page)
    live.send(
        "conversation.item.input_audio_transcription.completed", item_id="a", transcript="Hi."
    )
    live.send("error", error={"code": "session_expired", "message": "it has reached its limit"})
    live.sockets[-1].close(code=1001)
    page.locator("#talk-state[data-state=off]").wait_for()
    page.locator("#talk-note.bad", has_text="reached its limit").wait_for()
    assert len(live.sockets) == 1
    # what is typed next goes on from there
    page.locator("#typed").fill("And then?")
    page.locator("#typed").press("Enter")
    until(page, lambda: len(live.events("conversation.item.create")) == 2)
    items = [event["item"] for event in live.events("conversation.item.create")]
    assert [item["content"][0]["text"] for item in items] == ["Hi.", "And then?"]


def test_a_button_is_held_to_talk(page, live):
    page.locator("details.settings summary").click()
    page.locator("#talk-turns").select_option("hold")
    page.locator("#talk-start").click()
    page.locator("#talk-state[data-state=waiting]").wait_for()
    until(page, lambda: live.events("session.update"))
    update = live.events("session.update")[-1]["session"]
    assert update["audio"]["input"]["turn_detection"] is None
    page.wait_for_timeout(300)
    assert live.num_audio == 0
    page.locator("#talk-hold").focus()
    page.keyboard.down("Space")
    page.locator("#talk-state[data-state=hearing]").wait_for()
    until(page, lambda: live.num_audio > 12)
    page.keyboard.up("Space")
    until(page, lambda: live.events("response.create"))
    sent = [event["type"] for event in live.heard if event["type"] != "session.update"]
    assert sent == ["input_audio_buffer.clear", "input_audio_buffer.commit", "response.create"]
    num_audio = live.num_audio
    page.wait_for_timeout(300)
    assert live.num_audio == num_audio


def test_shortcuts(page, live):
    page.keyboard.press("?")
    page.locator("#keys-dialog").wait_for()
    page.locator("#letter-keys").uncheck()
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    assert page.locator("#keys-dialog").is_hidden()
    page.keyboard.press("Control+Enter")
    page.locator("#talk-state[data-state=listening]").wait_for()
    answer(live, "b", "One two three.", tone(5.0))
    page.locator("#talk-state[data-state=speaking]").wait_for()
    page.keyboard.press("Escape")
    until(page, lambda: live.events("response.cancel"))
    page.locator("#captions .cut").wait_for()
    page.locator("#talk-state[data-state=listening]").wait_for()
    page.keyboard.press("Control+Enter")
    page.locator("#talk-state[data-state=off]").wait_for()


def test_settings_are_in_the_address(page, live, url):
    page.goto(f"{url}/#talk?voice=eve&turns=semantic_vad&instructions=Be+brief")
    page.reload()
    page.locator("#talk-start:enabled").wait_for()
    assert page.locator("#talk-voice").input_value() == "eve"
    start(page)
    update = live.events("session.update")[-1]["session"]
    assert update["audio"]["output"]["voice"] == "eve"
    assert update["audio"]["input"]["turn_detection"]["type"] == "semantic_vad"
    assert update["instructions"] == "Be brief"
    page.locator("#talk-start").click()
    page.locator("details.settings summary").click()
    page.locator("#talk-voice").select_option("bob")
    assert "voice=bob" in page.url
    page.locator("#tab-speak").click()
    assert page.url.endswith("#speak")
    languages = page.locator("#speak-language option").all_inner_texts()
    assert languages == ["Automatic", "English", "German"]
    page.locator("#speak-language").select_option("german")
    assert page.url.endswith("#speak?language=german")
    page.go_back()
    assert page.locator("#talk").is_visible()
    assert page.locator("#talk-voice").input_value() == "bob"


def test_a_microphone_is_chosen_and_its_level_shown(page, live):
    page.evaluate(COUNT_MICROPHONES)
    page.locator("details.settings summary").click()
    page.locator("#talk-test").click()
    # the browser's fake microphone beeps
    until(page, lambda: page.locator("#talk-level").evaluate("meter => meter.value") > 0.01)
    labels = page.locator("#talk-microphone option").all_inner_texts()
    assert len(labels) > 1
    page.locator("#talk-microphone").select_option(index=1)
    assert page.locator("#talk-test").inner_text() == "Test"
    chosen = page.locator("#talk-microphone").input_value()
    start(page)
    assert page.evaluate("asked.at(-1).audio.deviceId") == {"exact": chosen}


@pytest.mark.parametrize("tab", ["talk", "speak", "transcribe"])
def test_snippets_are_code(page, tab):
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator(f"#tab-{tab}").click()
    if tab == "talk":
        page.locator("details.settings summary").click()
    texts = {}
    for language in ("curl", "python", "javascript"):
        page.locator(f"#{tab}-snippets [data-copy={language}]", has_text="").click()
        page.locator(f"#{tab}-snippets [data-copy={language}]", has_text="Copied").wait_for()
        texts[language] = page.evaluate("navigator.clipboard.readText()")
    compile(texts["python"], "snippet", "exec")
    assert "/v1/" in texts["curl"]
    script = re.sub(r"^import .*$", "", texts["javascript"], flags=re.MULTILINE)
    page.evaluate(
        "code => { new (Object.getPrototypeOf(async () => {}).constructor)(code); }", script
    )
