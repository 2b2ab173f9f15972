"""What the Talk tab says where a session or an answer fails: a real browser, and a server that only
has the page."""

from __future__ import annotations

import json

import pytest

from tests.web.browser import CHROMIUM
from tests.web.page_server import ANSWERS

pytest.importorskip("playwright.sync_api", reason="pip install playwright")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="apt-get install chromium")


@pytest.fixture
def page(bare_page):
    return bare_page


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_without_room_says_why(page, status):
    full = {"error": {"message": "the server has its maximum of 256 live sessions"}}
    listed = ANSWERS["/v1/models"] | {"webrtc": True}
    page.route("**/v1/models", lambda route: route.fulfill(json=listed))
    page.reload()
    page.locator("#talk-start:enabled").wait_for()
    page.route("**/v1/realtime/calls?*", lambda route: route.fulfill(status=status, json=full))
    page.locator("#talk-start").click()
    page.locator("#talk-note.bad", has_text="maximum of 256 live sessions").wait_for()
    assert page.locator("#talk-start").inner_text() == "Start talking"
    assert page.locator("#talk-state").inner_text() == "Ready when you are"


@pytest.fixture
def socket(page):
    """A session over a WebSocket, whose server is this test."""
    sockets = []
    page.route_web_socket("**/v1/realtime?*", lambda opened: sockets.append(opened))
    page.locator("#talk-start").click()
    page.locator("#talk-state[data-state=listening]").wait_for()
    return sockets[0]


def test_webrtc_is_left_alone_where_the_server_has_none(page, socket):
    """It would log an error at each start."""
    asked = page.evaluate("performance.getEntriesByType('resource').map(({ name }) => name)")
    assert any("/v1/models" in name for name in asked)
    assert not any("/v1/realtime/calls" in name for name in asked)


def test_an_answer_that_fails_says_why(page, socket):
    error = {"type": "invalid_request_error", "code": "insufficient_quota", "message": "used up"}
    done = {"status": "failed", "status_details": {"type": "failed", "error": error}}
    socket.send(json.dumps({"type": "response.done", "response": done}))
    page.locator("#talk-note.bad", has_text="used up").wait_for()


def test_speech_that_is_not_transcribed_is_shown_as_that(page, socket):
    socket.send(json.dumps({"type": "input_audio_buffer.speech_started", "item_id": "a"}))
    page.locator("#captions .user").wait_for()
    failed = "conversation.item.input_audio_transcription.failed"
    error = {"message": "this key may transcribe no more today"}
    socket.send(json.dumps({"type": failed, "item_id": "a", "error": error}))
    page.locator("#captions .user", has_text="not understood").wait_for()
    page.locator("#talk-note.bad", has_text="transcribe no more today").wait_for()


def test_a_session_that_cannot_be_opened_says_what_to_do(page):
    page.locator("#talk-start").click()
    page.locator("#talk-note.bad", has_text="enter a key").wait_for()
    assert page.locator("#talk-start").inner_text() == "Start talking"


def test_metrics_show_the_least_audio_in_reserve(page):
    """A model without listeners has infinite slack, which is not shown."""
    lines = ['slack_seconds{model="a"} 2.41', 'slack_seconds{model="b"} +Inf']
    text = "".join(f"izwi_engine_least_{line}\n" for line in lines)
    page.route("**/metrics", lambda route: route.fulfill(body=text, content_type="text/plain"))
    page.locator("#tab-metrics").click()
    page.locator(".tile", has_text="Audio in reserve").locator("b", has_text="2.4 s").wait_for()


def test_metrics_of_live_turns_and_gpus_are_those_between_two_readings(page):
    """The second reading has two more answers, of 0.6 s on average, and steps of three rows."""
    readings = []

    def answer(route):
        count = len(readings)
        readings.append(count)
        lines = [
            f'izwi_live_latency_seconds_sum{{until="audio"}} {7.0 + 1.2 * min(count, 1)}',
            f'izwi_live_latency_seconds_count{{until="audio"}} {9 + 2 * min(count, 1)}',
            "izwi_live_turns_total 14",
            'izwi_live_interruptions_total{outcome="confirmed"} 3',
            'izwi_live_interruptions_total{outcome="refuted"} 5',
            f'izwi_engine_rows_total{{model="a"}} {30 * count}',
            f'izwi_engine_steps_total{{model="a"}} {10 * count}',
            'hw_gpu_utilization_ratio{hw_id="a",hw_name="0 x"} 0.5',
            'hw_gpu_utilization_ratio{hw_id="b",hw_name="1 x"} 0.7',
        ]
        route.fulfill(body="\n".join(lines) + "\n", content_type="text/plain")

    page.route("**/metrics", answer)
    page.locator("#tab-metrics").click()
    for name, value in (
        ("Answer heard after", "600 ms"),
        ("Turns", "14"),
        ("Interruptions", "3"),
        ("Batch", "3.0"),
        ("GPUs busy", "60 %"),
    ):
        tile = page.locator(".tile", has=page.get_by_text(name, exact=True))
        tile.locator("b", has_text=value).wait_for()
        tile.locator("svg.chart").wait_for()
    assert not page.locator(".tile", has_text="Right guesses").count(), "nothing is guessed"
