"""The endpoints of images, without diffusers."""

from __future__ import annotations

import json
import os
import time
from base64 import b64encode
from contextlib import suppress
from dataclasses import replace
from io import BytesIO

import httpx
import numpy as np
import pytest
from PIL import Image

from izwi_api.drawing.results import ResultFiles
from izwi_api.serve.app import create_app
from izwi_api.settings import Access, ImageModel, Settings, key_digest
from tests.api.conftest import FakeEngine, FakeRegistry
from tests.drawing.conftest import until
from tests.images import png_of
from tests.models.tiny_vl import drawn_image

GENERATIONS, EDITS = "/v1/images/generations", "/v1/images/edits"


def app_client(settings):
    app = create_app(FakeEngine(), FakeRegistry(), settings)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1")


async def post(settings, body):
    async with app_client(settings) as client:
        answer = await client.post(GENERATIONS, json=body)
    return answer.status_code, answer.json()


@pytest.fixture
def served(drawing, tmp_path):
    path, runner, _ = drawing
    runner.may_draw.set()
    return Settings(home=tmp_path, image_model=ImageModel("tiny", tmp_path, path), decode_workers=0)


def edit(**more):
    """What httpx sends for an edit of an image of 96 x 64 pixels."""
    files = {"image": ("a.png", png_of(drawn_image(96, 64, 7))), **more.pop("files", {})}
    return {"files": files, "data": {"prompt": "a", **more}}


def mask(width, height):
    """Transparent in its left half."""
    alpha = np.full((height, width, 1), 255, np.uint8)
    alpha[:, : width // 2] = 0
    file = BytesIO()
    rgba = np.concatenate([np.full((height, width, 3), 90, np.uint8), alpha], 2)
    Image.fromarray(rgba, "RGBA").save(file, "PNG")
    return file.getvalue()


async def test_endpoint_answers_as_openai_does(drawing, tmp_path):
    path, runner, _ = drawing
    runner.may_draw.set()
    settings = Settings(home=tmp_path, image_model=ImageModel("tiny", tmp_path, path))
    body = {"prompt": "a", "n": 2, "seed": 3, "size": "64x32", "model": "tiny", "quality": None}
    status, answer = await post(settings, body)
    assert (status, answer["size"]) == (200, "64x32")
    assert answer["data"] == [{"b64_json": "YSAz"}, {"b64_json": "YSA0"}]
    status, answer = await post(settings, {"prompt": "wrong"})
    assert (status, answer["error"]["code"]) == (400, "invalid_value")


REFUSED = [
    ({"model": "other"}, 404, "model"),
    ({"size": "64x33"}, 400, "size"),
    ({"size": "4096x4096"}, 400, "size"),
    ({"size": "large"}, 400, "size"),
    ({"n": 11}, 400, "n"),
    ({"response_format": "link"}, 400, "response_format"),
    ({"response_format": "url", "stream": True}, 400, "response_format"),
    ({"output_compression": 5}, 400, "output_compression"),
    ({"partial_images": 1}, 400, "partial_images"),
    ({"partial_images": 4, "stream": True}, 400, "partial_images"),
    ({"style": "vivid"}, 400, "style"),
    ({"prompt": ""}, 400, "prompt"),
]


async def test_what_is_refused(tmp_path):
    model = ImageModel("tiny", tmp_path, tmp_path / "nobody")
    async with app_client(Settings(home=tmp_path, image_model=model)) as client:
        for more, status, param in REFUSED:
            answer = await client.post(GENERATIONS, json={"prompt": "a"} | more)
            assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


async def test_server_without_the_option_draws_nothing(tmp_path):
    status, answer = await post(Settings(home=tmp_path), {"prompt": "a"})
    assert (status, answer["error"]["code"]) == (404, "model_not_found")


async def test_stream_has_previews_and_images_in_openais_events(served):
    body = {"prompt": "a", "seed": 3, "stream": True, "partial_images": 1, "quality": "low"}
    async with app_client(served) as client:
        answer = await client.post(GENERATIONS, json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    note, partial, completed = answer.text.strip().split("\n\n")
    assert note == ": step 1 of 1"
    name, data = partial.split("\n")
    assert name == "event: image_generation.partial_image"
    fields = json.loads(data.removeprefix("data: "))
    assert fields.pop("created_at") > 0
    assert fields == {
        "type": "image_generation.partial_image",
        "b64_json": b64encode(b"a 3 as yet").decode(),
        "background": "opaque",
        "output_format": "png",
        "quality": "low",
        "size": "64x32",
        "partial_image_index": 0,
    }
    last = json.loads(completed.split("\n")[1].removeprefix("data: "))
    assert (last["type"], last["b64_json"]) == ("image_generation.completed", "YSAz")


async def test_stream_that_fails_at_once_is_an_http_error(served):
    status, answer = await post(served, {"prompt": "wrong", "stream": True})
    assert (status, answer["error"]["param"]) == (400, "size")


@pytest.mark.parametrize("stream", [False, True])
async def test_client_that_leaves_cancels_its_job(drawing, tmp_path, stream):
    path, runner, _ = drawing
    settings = Settings(home=tmp_path, image_model=ImageModel("tiny", tmp_path, path))
    app = create_app(FakeEngine(), FakeRegistry(), settings)
    body = json.dumps({"prompt": "a", "stream": stream}).encode()
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive():
        if messages:
            return messages.pop()
        await until(lambda: runner.began)
        return {"type": "http.disconnect"}

    async def send(_):
        raise AssertionError("it has left")

    scope = {
        "type": "http",
        "method": "POST",
        "path": GENERATIONS,
        "raw_path": GENERATIONS.encode(),
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "scheme": "http",
        "http_version": "1.1",
    }
    with suppress(AssertionError):  # a status for the log of this server
        await app(scope, receive, send)
    await until(lambda: runner.left == ["a"])


async def test_url_results_are_read_without_a_key_and_expire(served, drawing):
    served = replace(served, access=Access(api_key_digest=key_digest("k" * 32, "key")))
    headers = {"authorization": f"Bearer {'k' * 32}"}
    body = {"prompt": "a", "seed": 3, "response_format": "url", "output_format": "webp"}
    async with app_client(served) as client:
        answer = await client.post(GENERATIONS, json=body, headers=headers)
        (entry,) = answer.json()["data"]
        file = await client.get(entry["url"])
        assert (file.content, file.headers["content-type"]) == (b"a 3", "image/webp")
        (path,) = (drawing[0].parent / "results").iterdir()
        os.utime(path, (1, 1))
        assert (await client.get(entry["url"])).status_code == 404
        assert (await client.get(entry["url"].replace(".webp", "/../drawing"))).status_code != 200
        await client.post(GENERATIONS, json=body, headers=headers)
    assert not path.exists()


def test_old_results_make_room(tmp_path):
    files = ResultFiles(tmp_path / "results", max_bytes=10)
    old = files.add(b"12345678", "png")
    os.utime(files.find(old), (time.time() - 60, time.time() - 60))
    new = files.add(b"123", "png")
    assert files.find(old) is None
    assert files.find(new).read_bytes() == b"123"
    assert files.find("../drawing") is None


async def test_edit_sends_pixels_and_mask(served, drawing):
    async with app_client(served) as client:
        files = {"mask": ("m.png", mask(96, 64))}
        request = edit(files=files, strength="0.5", n="2", seed="4")
        answer = await client.post(EDITS, **request)
    assert answer.status_code == 200, answer.text
    assert [entry["b64_json"] for entry in answer.json()["data"]] == ["YSA0", "YSA1"]
    (job,) = drawing[1].jobs
    assert (job.picture.width, job.picture.height) == (96, 64) == (job.mask.width, job.mask.height)
    assert len(job.picture.pixels) == 96 * 64 * 3
    row = np.frombuffer(job.mask.pixels, np.uint8).reshape(64, 96, 3)[9]
    assert (row[:48] == 255).all()
    assert (row[48:] == 0).all()
    assert (job.strength, job.count) == (0.5, 2)


REFUSED_EDITS = [
    (edit(files={"image": ("a.png", b"GIF89a, or not")}), "image"),
    (edit(files={"mask": ("m.png", png_of(drawn_image(96, 64, 7)))}), "mask"),
    (edit(files={"mask": ("m.png", mask(64, 64))}), "mask"),
    (edit(files={"markup": ("m.png", mask(96, 64))}), "markup"),
    (edit(strength="much"), "strength"),
    (edit(n="11"), "n"),
    (edit(style="vivid"), "style"),
    ({"files": {"mask": ("m.png", mask(96, 64))}, "data": {"prompt": "a"}}, "image"),
    ({"files": [("image[]", b"1"), ("image[]", b"2")], "data": {"prompt": "a"}}, "image"),
]


async def test_edits_that_are_refused(served):
    async with app_client(served) as client:
        for request, param in REFUSED_EDITS:
            answer = await client.post(EDITS, **request)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
