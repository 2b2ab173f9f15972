"""What the Talk tab says where a session or an answer fails: a real browser, and a server that only
has the page."""

from __future__ import annotations

import json
import mimetypes
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

import izwi_web
from tests.web.browser import CHROMIUM, FLAGS, WAIT_MS

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="apt-get install chromium")

FILES = Path(izwi_web.__file__).parent
MODEL = {"id": "chat", "capabilities": ["chat"]}
ANSWERS = {
    "/readyz": {"status": "ready"},
    "/v1/models": {"object": "list", "data": [MODEL]},
    "/v1/audio/voices": {"object": "list", "data": []},
}


class Handler(BaseHTTPRequestHandler):
    """The files of the page, empty lists, and nothing that talks."""

    def do_GET(self):
        path = self.path.partition("?")[0]
        file = FILES / (path.removeprefix("/page/") if path != "/" else "index.html")
        if path in ANSWERS:
            self.answer(200, "application/json", json.dumps(ANSWERS[path]).encode())
        elif file.is_file():
            self.answer(200, mimetypes.guess_type(file.name)[0], file.read_bytes())
        else:
            self.answer(404, "application/json", b"{}")

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.answer(400, "application/json", b"{}")  # no WebRTC

    def answer(self, status, kind, data):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_): ...


@pytest.fixture(scope="module")
def url():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield started
        started.close()


@pytest.fixture
def page(browser, url):
    context = browser.new_context()
    context.set_default_timeout(WAIT_MS)
    opened, failures = context.new_page(), []
    opened.on("pageerror", lambda error: failures.append(str(error)))
    opened.goto(url)
    opened.locator("#talk-start:enabled").wait_for()
    yield opened
    context.close()
    assert failures == []


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_without_room_says_why(page, status):
    full = {"error": {"message": "the server has its maximum of 256 live sessions"}}
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


def test_metrics_show_the_least_slack_of_all_models(page):
    """A model without listeners has infinite slack, which is not shown."""
    lines = ['slack_seconds{model="a"} 2.41', 'slack_seconds{model="b"} +Inf']
    text = "".join(f"izwi_engine_least_{line}\n" for line in lines)
    page.route("**/metrics", lambda route: route.fulfill(body=text, content_type="text/plain"))
    page.locator("#tab-metrics").click()
    page.locator(".tile", has_text="Least slack").locator("b", has_text="2.4 s").wait_for()
