"""Pictures in the Talk tab in a browser: dropped, pasted and chosen. The test is its server."""

from __future__ import annotations

import base64
import json

import pytest

from tests.images import png_of
from tests.models.tiny_vl import drawn_image
from tests.web.browser import CHROMIUM
from tests.web.page_server import ANSWERS, MODELS

pytest.importorskip("PIL")
pytest.importorskip("playwright.sync_api", reason="pip install playwright")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="apt-get install chromium")

SEES = [MODELS[0] | {"capabilities": ["chat", "vision"]}, *MODELS[1:]]
PNG = png_of(drawn_image(96, 64, 7))
LARGE = png_of(drawn_image(2400, 1200, 7))
TRANSFER = """([file, type, name]) => {
const bytes = Uint8Array.from(atob(file), (letter) => letter.charCodeAt(0));
const transfer = new DataTransfer();
transfer.items.add(new File([bytes], name, { type }));
return transfer;
}"""


class Live:
    """The server's side of the page's sessions; `items` is what they were sent."""

    def __init__(self, page):
        self.items = []
        page.route_web_socket("**/v1/realtime?*", lambda socket: socket.on_message(self._hear))

    def _hear(self, text):
        event = json.loads(text)
        if event["type"] == "conversation.item.create":
            self.items.append(event["item"])

    def pictures(self):
        """The files of all pictures, as they came."""
        parts = [part for item in self.items for part in item["content"]]
        urls = [part["image_url"] for part in parts if part["type"] == "input_image"]
        assert all(url.startswith("data:image/jpeg;base64,") for url in urls)
        return [base64.b64decode(url.partition(",")[2]) for url in urls]


@pytest.fixture
def page(bare_page):
    """The page of a server whose chat model sees."""
    listed = ANSWERS["/v1/models"] | {"data": SEES}
    bare_page.route("**/v1/models", lambda route: route.fulfill(json=listed))
    bare_page.reload()
    bare_page.locator("#talk-start:enabled").wait_for()
    return bare_page


@pytest.fixture
def live(page):
    return Live(page)


def transfer(page, content=PNG, kind="image/png", name="cat.png"):
    return page.evaluate_handle(TRANSFER, [base64.b64encode(content).decode(), kind, name])


def drop(page, moved):
    for kind in ("dragenter", "dragover", "drop"):
        page.dispatch_event("#talk-said", kind, {"dataTransfer": moved})


def until(page, condition):
    for _ in range(1200):
        if condition():
            return
        page.wait_for_timeout(50)
    raise AssertionError("it did not come")


def size_of(content):
    import io

    from PIL import Image

    with Image.open(io.BytesIO(content)) as image:
        return image.size


def test_a_dropped_picture_opens_a_session_and_is_sent_and_shown(page, live):
    drop(page, transfer(page))
    until(page, live.pictures)
    assert [size_of(picture) for picture in live.pictures()] == [(96, 64)]
    page.locator("#captions canvas").wait_for()
    assert page.locator("#captions canvas").count() == 1
    assert not page.locator("#talk-note.bad").is_visible()


def test_a_large_picture_is_made_small_enough_for_webrtc(page, live):
    drop(page, transfer(page, LARGE))
    until(page, live.pictures)
    (picture,) = live.pictures()
    width, height = size_of(picture)
    assert width == 2 * height <= 1280
    assert len(picture) * 4 // 3 < 256 << 10
    shown, line = (page.locator(one).bounding_box() for one in ("#captions canvas", "#captions li"))
    assert shown["width"] == 240
    assert line["width"] < 300, "the line is as wide as the picture"


def test_a_pasted_picture_is_sent(page, live):
    page.evaluate(
        """(clipboardData) => document.getElementById("typed").dispatchEvent(
        new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true }))""",
        transfer(page),
    )
    until(page, live.pictures)


def test_a_chosen_picture_is_sent_and_can_be_chosen_again(page, live):
    file = {"name": "cat.png", "mimeType": "image/png", "buffer": PNG}
    for number in (1, 2):
        with page.expect_file_chooser() as chooser:
            page.locator("#talk-picture").click()
        chooser.value.set_files(file)
        until(page, lambda number=number: len(live.pictures()) == number)
    until(page, lambda: page.locator("#captions canvas").count() == 2)


def test_a_file_that_is_no_picture_says_so(page, live):
    drop(page, transfer(page, b"not a picture", "text/plain", "notes.txt"))
    page.locator("#talk-note.bad", has_text="notes.txt is no picture").wait_for()
    assert live.items == []


def test_a_model_that_does_not_see_has_no_button_and_says_so_of_a_dropped_picture(bare_page):
    assert bare_page.locator("#talk-picture").is_hidden()
    drop(bare_page, transfer(bare_page))
    bare_page.locator("#talk-note.bad", has_text="chat cannot see pictures").wait_for()
