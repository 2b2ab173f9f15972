"""The Images tab in a browser. The test is its server."""

from __future__ import annotations

import base64
import json

import pytest

from tests.images import png_of
from tests.models.tiny_vl import drawn_image
from tests.web.browser import CHROMIUM
from tests.web.page_server import ANSWERS

pytest.importorskip("PIL")
pytest.importorskip("playwright.sync_api", reason="pip install playwright")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="apt-get install chromium")

PICTURE = base64.b64encode(png_of(drawn_image(96, 64, 7))).decode()


def stream(*kinds):
    fields = {"b64_json": PICTURE, "output_format": "png"}
    events = [fields | {"type": f"image_generation.{kind}"} for kind in kinds]
    return ": step 1 of 2\n\n" + "".join(f"data: {json.dumps(one)}\n\n" for one in events)


@pytest.fixture
def page(bare_page):
    """The page of a server that draws."""
    listed = ANSWERS["/v1/models"] | {"images": "tiny-sd"}
    bare_page.route("**/v1/models", lambda route: route.fulfill(json=listed))
    bare_page.reload()
    bare_page.locator("#tab-images:not([hidden])").wait_for()
    return bare_page


def test_tab_is_hidden_where_nothing_draws(bare_page):
    bare_page.locator("#talk-start:enabled").wait_for()
    assert bare_page.locator("#tab-images").is_hidden()
    bare_page.locator("#tab-transcribe").focus()
    bare_page.keyboard.press("ArrowRight")
    assert bare_page.locator("#tab-voices").get_attribute("aria-selected") == "true"


def test_image_is_drawn_and_downloaded(page):
    asked = []

    def answer(route):
        asked.append(route.request.post_data_json)
        kind = "text/event-stream"
        route.fulfill(body=stream("partial_image", "completed"), content_type=kind)

    page.route("**/v1/images/generations", answer)
    page.locator("#tab-images").click()
    page.locator("#images-prompt").fill("a red cat")
    page.locator("#images-size").select_option("512x512")
    page.locator("#images-seed").fill("7")
    page.locator("#images-go").click()
    image = page.locator("#images-list img")
    image.wait_for()
    assert image.get_attribute("alt") == "a red cat"
    page.wait_for_function("document.querySelector('#images-list img').naturalWidth === 96")
    (body,) = asked
    assert body == {
        "prompt": "a red cat",
        "model": "tiny-sd",
        "size": "512x512",
        "quality": "auto",
        "stream": True,
        "seed": 7,
        "partial_images": 3,
    }
    with page.expect_download() as download:
        page.locator("#images-list button").click()
    assert download.value.suggested_filename == "image.png"


def test_model_without_previews_is_asked_without(page):
    asked = []

    def answer(route):
        asked.append(route.request.post_data_json)
        if "partial_images" in asked[-1]:
            error = {"message": "this model has no partial images", "param": "partial_images"}
            route.fulfill(status=400, json={"error": error})
        else:
            route.fulfill(body=stream("completed"), content_type="text/event-stream")

    page.route("**/v1/images/generations", answer)
    page.locator("#tab-images").click()
    page.locator("#images-go").click()
    page.locator("#images-list img").wait_for()
    assert len(asked) == 2
    assert page.locator("#images-note").inner_text() == ""


def test_refusal_is_shown(page):
    error = {"message": "8 requests for images wait already", "param": None}
    page.route(
        "**/v1/images/generations",
        lambda route: route.fulfill(status=503, json={"error": error}),
    )
    page.locator("#tab-images").click()
    page.locator("#images-go").click()
    page.get_by_text("8 requests for images wait already").wait_for()
    assert page.locator("#images-list li").count() == 0
    assert page.locator("#images-go").is_enabled()
