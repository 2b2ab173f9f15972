"""`izwi serve --images`: openai-python, a process that is killed, and speech beside it."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
import threading
import time
from io import BytesIO
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest
from PIL import Image

from izwi_api.drawing.jobs import DrawJob, Drawn
from izwi_api.drawing.options import PipelineOptions
from tests.api.served import served
from tests.drawing.tiny_pipeline import SIDE, write_tiny_pipeline
from tests.images import png_of
from tests.models.tiny_vl import drawn_image

pytestmark = pytest.mark.slow
pytest.importorskip("diffusers")

# Some 2,000 steps.
LONG = {"prompt": "a long story", "extra_body": {"steps": 200}, "size": "128x128", "n": 10}
LONG_STREAM = {"steps": 200, "n": 10, "stream": True}
# Enough for the pipeline with small images.
MEMORY_MIB = 1000


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
    options = PipelineOptions(folder=str(pipeline), device="cpu")

    def report(event):
        if isinstance(event, Drawn):
            drawn.append(event)

    def has_left():
        asked.append(True)
        return len(asked) > 3

    Pipeline(options).run(DrawJob(prompt="a", count=2, steps=9), report, has_left)
    assert (len(asked), drawn) == (4, [])


def test_stream_shows_an_image_while_it_is_drawn(images):
    ask = {"prompt": "a red cat", "size": "64x32", "extra_body": {"seed": 7, "steps": 4}}
    events = list(images.generate(**ask, stream=True, partial_images=2))
    assert [one.type for one in events] == [
        "image_generation.partial_image",
        "image_generation.partial_image",
        "image_generation.completed",
    ]
    assert [one.partial_image_index for one in events[:2]] == [0, 1]
    assert [picture(one).size for one in events] == [(64, 32)] * 3
    whole = images.generate(**ask)
    assert events[-1].b64_json == whole.data[0].b64_json
    assert events[-1].usage.output_tokens == whole.usage.output_tokens == 4 * 2
    assert events[-1].usage.input_tokens == whole.usage.input_tokens_details.text_tokens > 2
    assert len({one.b64_json for one in events}) == 3


def test_address_of_an_image(images):
    ask = {"prompt": "a red cat", "extra_body": {"seed": 7, "steps": 2}}
    url = images.generate(**ask, response_format="url").data[0].url
    content = httpx.get(url).raise_for_status().content
    assert base64.b64encode(content).decode() == images.generate(**ask).data[0].b64_json


def test_openai_python_edits(images):
    shown = drawn_image(96, 64, 7)
    ask = {"image": png_of(shown), "prompt": "a blue cat", "extra_body": {"seed": 7, "steps": 4}}
    whole = images.edit(**ask)
    assert picture(whole.data[0]).size == (96, 64)
    alpha = np.full(shown.shape[:2], 255, np.uint8)
    alpha[:, :48] = 0
    part = images.edit(**ask, mask=png_of(np.dstack([shown, alpha])), size="64x32")
    assert picture(part.data[0]).size == (64, 32)
    events = list(images.edit(**ask, stream=True, partial_images=1))
    assert [one.type for one in events] == ["image_edit.partial_image", "image_edit.completed"]
    assert events[-1].b64_json == whole.data[0].b64_json
    with pytest.raises(openai.BadRequestError, match="cannot be read"):
        images.edit(**ask | {"image": png_of(shown)[:300]})


def test_client_that_leaves_lets_the_next_one_draw(images):
    with pytest.raises(openai.APITimeoutError):
        images.generate(**LONG | {"size": "256x256"}, timeout=2)
    assert images.generate(prompt="a", extra_body={"steps": 1}, timeout=60).data


def test_too_large_image_is_refused_and_speech_goes_on(pipeline, tmp_path):
    with served(tmp_path, "--images", str(pipeline), "--images-mib", str(MEMORY_MIB)) as server:
        url = f"{server.url}/v1/images/generations"
        small, large = (
            {"prompt": "a", "steps": 1, "size": size} for size in ("64x64", "2048x2048")
        )
        assert httpx.post(url, json=small, timeout=120).status_code == 200
        before = drawing_pid(server)
        answer = httpx.post(url, json=large, timeout=120)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "device_full")
        assert speech(server).status_code == 200
        assert httpx.post(url, json=small, timeout=120).status_code == 200
        assert drawing_pid(server) != before


def test_stream_of_speech_goes_on_through_a_full_and_a_killed_process(pipeline, tmp_path):
    """The same bytes as of a server that draws nothing."""
    with served(tmp_path, "--images", str(pipeline), "--images-mib", str(MEMORY_MIB)) as server:
        url = f"{server.url}/v1/images/generations"
        small = {"prompt": "a", "steps": 1, "size": "64x64"}
        text = "Good morning, and a long day to all of you. " * 6
        body = {"model": "izwi-tiny-tts", "voice": "hugo", "input": text, "seed": 5}
        body |= {"response_format": "pcm"}

        def read(streamed, began):
            with httpx.stream(
                "POST", f"{server.url}/v1/audio/speech", json=body, timeout=300
            ) as answer:
                for part in answer.iter_raw():
                    streamed.append(part)
                    began.set()

        alone, beside = [], []
        read(alone, threading.Event())
        assert httpx.post(url, json=small, timeout=120).status_code == 200
        began = threading.Event()
        reading = threading.Thread(target=read, args=(beside, began))
        reading.start()
        assert began.wait(120)
        answer = httpx.post(url, json=small | {"size": "2048x2048"}, timeout=120)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "device_full")
        assert httpx.post(url, json=small, timeout=120).status_code == 200
        os.kill(drawing_pid(server), signal.SIGKILL)
        reading.join(300)
        assert b"".join(beside) == b"".join(alone)


def test_pipeline_that_hangs_is_replaced(pipeline, tmp_path, monkeypatch):
    monkeypatch.setenv("IZWI_HUNG_AFTER_S", "100")  # a process may take so long to start
    with served(tmp_path, "--images", str(pipeline)) as server:
        url, small = f"{server.url}/v1/images/generations", {"prompt": "a", "steps": 1}
        assert httpx.post(url, json=small, timeout=120).status_code == 200
        before = drawing_pid(server)
        with httpx.stream("POST", url, json=small | LONG_STREAM, timeout=300) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith(": step")
            os.kill(before, signal.SIGSTOP)
            assert "engine_stopped" in "".join(lines)
        assert speech(server).status_code == 200
        assert httpx.post(url, json=small, timeout=120).status_code == 200
        assert drawing_pid(server) != before


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


def test_draw_with_a_folder(pipeline, tmp_path):
    program = (sys.executable, "-c", "from izwi_api.cli.run import main; main()")
    command = (*program, "draw", "a red cat", "--model", str(pipeline))
    more = ("--size", "64x32", "--steps", "2", "--seed", "7", "--attention-backend", "native")
    done = subprocess.run((*command, *more), cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with Image.open(tmp_path / "image.png") as image:
        assert (image.format, image.size) == ("PNG", (64, 32))
    wrong = (*command, "--out", "other.png", "--attention-backend", "no-such-thing")
    done = subprocess.run(wrong, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert "no-such-thing" in done.stderr
