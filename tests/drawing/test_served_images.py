"""`izwi serve --images`: openai-python, a process that is killed, and speech beside it."""

from __future__ import annotations

import base64
import os
import signal
import threading
import time
from io import BytesIO
from pathlib import Path

import httpx
import openai
import pytest
from PIL import Image

from izwi_api.drawing.jobs import DrawJob
from tests.api.served import served
from tests.drawing.tiny_pipeline import SIDE, write_tiny_pipeline

pytestmark = pytest.mark.slow
pytest.importorskip("diffusers")

# Some 2,000 steps.
LONG = {"prompt": "a long story", "extra_body": {"steps": 200}, "size": "128x128", "n": 10}


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pipelines") / "tiny-sd"
    write_tiny_pipeline(folder)
    return folder


@pytest.fixture(scope="module", params=["2", "0"], ids="{}-api-servers".format)
def server(request, pipeline, tmp_path_factory):
    options = ("--images", str(pipeline), "--api-servers", request.param)
    with served(tmp_path_factory.mktemp("server"), *options) as server:
        yield server


@pytest.fixture
def images(server):
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120)
    with client:
        yield client.images


def picture(entry):
    return Image.open(BytesIO(base64.b64decode(entry.b64_json)))


def drawing_pid(server):
    """The id of the process that draws, or None."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_text()
            parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        if "izwi_api.drawing.process" in command and int(parent) == server.process.pid:
            return int(entry.name)
    return None


def until(condition, within_s=60.0):
    end_s = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < end_s
        time.sleep(0.02)
    return found


def speech(server):
    body = {
        "model": "izwi-tiny-tts",
        "voice": "hugo",
        "input": "Good morning.",
        "response_format": "pcm",
    }
    return httpx.post(f"{server.url}/v1/audio/speech", json=body, timeout=120)


def test_openai_python_draws(server, images):
    first = images.generate(prompt="a red cat", size="64x32", n=2, extra_body={"seed": 7})
    assert [picture(entry).size for entry in first.data] == [(64, 32)] * 2
    assert picture(first.data[0]).format == "PNG"
    assert first.data[0].b64_json != first.data[1].b64_json
    # the second of two images has the next seed
    other = images.generate(prompt="a red cat", size="64x32", extra_body={"seed": 8})
    assert other.data[0].b64_json == first.data[1].b64_json
    assert images.generate(prompt="a red cat", model="tiny-sd", quality="low").size == "64x64"


def test_steps_and_formats(images):
    ask = {"prompt": "a red cat"}
    one = images.generate(**ask, extra_body={"seed": 1, "steps": 25})
    low = images.generate(**ask, quality="low", extra_body={"seed": 1})
    assert one.data[0].b64_json == low.data[0].b64_json  # this pipeline takes 50 by itself
    assert one.data[0].b64_json != images.generate(**ask, extra_body={"seed": 1}).data[0].b64_json
    webp = images.generate(**ask, output_format="webp", output_compression=30)
    assert picture(webp.data[0]).format == "WEBP"
    assert picture(webp.data[0]).size == (SIDE, SIDE)


def test_killed_process_is_replaced_and_speech_goes_on(server, images):
    images.generate(prompt="a", extra_body={"steps": 1})
    before, errors = drawing_pid(server), []

    def ask():
        try:
            images.generate(**LONG)
        except openai.APIStatusError as error:
            errors.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    time.sleep(1.0)  # it draws, or waits for it; either is answered
    assert speech(server).status_code == 200
    os.kill(before, signal.SIGKILL)
    asking.join(60)
    assert [(error.status_code, error.code) for error in errors] == [(503, "engine_stopped")]
    assert errors[0].response.headers["retry-after"]
    assert speech(server).status_code == 200
    assert len(images.generate(prompt="a", extra_body={"steps": 1}).data) == 1
    assert drawing_pid(server) not in (before, None)


def test_client_that_leaves_ends_the_pipeline_after_a_step(pipeline):
    from izwi_api.drawing.pipeline import Pipeline

    asked, drawn = [], []

    def has_left():
        asked.append(True)
        return len(asked) > 3

    Pipeline(pipeline, "cpu").run(DrawJob(prompt="a", count=2, steps=9), drawn.append, has_left)
    assert (len(asked), drawn) == (4, [])


def test_process_starts_with_the_first_image_and_ends_with_the_server(pipeline, tmp_path):
    with served(tmp_path, "--images", f"gpt-image-1={pipeline}") as server:
        assert drawing_pid(server) is None
        body = {"model": "gpt-image-1", "prompt": "a", "steps": 1}
        answer = httpx.post(f"{server.url}/v1/images/generations", json=body, timeout=120)
        assert answer.status_code == 200, answer.text
        pid = drawing_pid(server)
        assert pid is not None
    until(lambda: not Path(f"/proc/{pid}").exists())


def test_broken_pipeline_is_an_error_of_the_server(pipeline, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "model_index.json").write_text('{"_class_name": "NoSuchPipeline"}')
    with served(tmp_path, "--images", str(broken)) as server:
        answer = httpx.post(
            f"{server.url}/v1/images/generations", json={"prompt": "a"}, timeout=120
        )
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "invalid_checkpoint")
        assert speech(server).status_code == 200
