"""The queue of the process that draws, its replacement, and the endpoint, without diffusers."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from izwi.errors import DeviceFull, EngineStopped, InvalidRequest, InvalidValue, Overloaded
from izwi_api.drawing.client import draw
from izwi_api.drawing.job_server import JobServer
from izwi_api.drawing.jobs import DrawJob, Drawn
from izwi_api.drawing.supervised import SupervisedProcess
from izwi_api.serve.app import create_app
from izwi_api.settings import ImageModel, Settings, read_image_model
from tests.api.conftest import FakeEngine, FakeRegistry, wait_for

# Answers each job with the id of its process, or never, or ends before it has accepted one.
PROGRAM = """
import os, socket, sys, threading
threading.Thread(target=lambda: (os.read(0, 1), os._exit(0)), daemon=True).start()
if sys.argv[2] == "broken":
    sys.exit(3)
from izwi_api.drawing.jobs import Drawn, Ended, encode_frame
os.write(0, b"R")
listener = socket.socket(fileno=int(sys.argv[1]))
while True:
    stream = listener.accept()[0]
    if b"hang" in stream.recv(4096):
        os.kill(os.getpid(), 9)
    stream.sendall(encode_frame(Drawn(str(os.getpid()).encode(), 1, 1)) + encode_frame(Ended()))
    stream.close()
"""


class Runner:
    """Draws when it may, until its client leaves."""

    def __init__(self):
        self.may_draw, self.began, self.left = threading.Event(), [], []

    def run(self, job, report, has_left):
        self.began.append(job.prompt)
        if job.prompt == "full":
            raise DeviceFull("no memory")
        if job.prompt == "wrong":
            raise InvalidValue("no such size", param="size")
        while not self.may_draw.wait(0.002):
            if has_left():
                self.left.append(job.prompt)
                return
        for place in range(job.count):
            report(Drawn(f"{job.prompt} {job.seed + place}".encode(), 64, 32))


async def until(condition):
    await asyncio.to_thread(wait_for, condition)


@pytest.fixture
def path():
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # paths of sockets are short
        yield Path(folder, "drawing")


@pytest.fixture
def listener(path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(16)
        yield listener


@pytest.fixture
async def drawing(path, listener):
    runner = Runner()
    server = asyncio.create_task(JobServer(runner, 1).serve(listener))
    yield path, runner, server
    runner.may_draw.set()
    server.cancel()
    with suppress(asyncio.CancelledError):
        await server


async def test_jobs_run_one_by_one_and_no_more_wait_than_may(drawing):
    path, runner, _ = drawing
    first = asyncio.create_task(draw(path, DrawJob(prompt="a", count=2, seed=5)))
    await until(lambda: runner.began)
    waiting = [asyncio.create_task(draw(path, DrawJob(prompt=name))) for name in "bc"]
    done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    with pytest.raises(Overloaded) as refused:
        await done.pop()
    assert refused.value.retry_after_s == 10
    assert runner.began == ["a"]
    runner.may_draw.set()
    assert [image.content for image in await first] == [b"a 5", b"a 6"]
    await asyncio.wait(waiting)
    assert len(runner.began) == 2


async def test_client_that_leaves_cancels_its_job(drawing):
    path, runner, _ = drawing
    first = asyncio.create_task(draw(path, DrawJob(prompt="a")))
    await until(lambda: runner.began)
    second = asyncio.create_task(draw(path, DrawJob(prompt="b")))
    await asyncio.sleep(0.01)
    second.cancel()
    first.cancel()
    await until(lambda: runner.left == ["a"])
    runner.may_draw.set()
    assert (await draw(path, DrawJob(prompt="c")))[0].content == b"c 0"
    assert runner.began[-1] == "c"
    assert "b" not in runner.left


async def test_errors_are_those_of_the_process(drawing):
    path, _, server = drawing
    with pytest.raises(InvalidValue, match="no such size") as wrong:
        await draw(path, DrawJob(prompt="wrong"))
    assert wrong.value.param == "size"
    assert not server.done()
    with pytest.raises(DeviceFull):
        await draw(path, DrawJob(prompt="full"))
    async with asyncio.timeout(60):
        await server  # another process draws from here on


@pytest.fixture
def supervised(listener, request):
    command = (sys.executable, "-c", PROGRAM)
    kind = getattr(request, "param", "")
    process = SupervisedProcess(listener, lambda number: (*command, str(number), kind))
    process.start()
    yield
    process.stop()


async def test_killed_process_is_an_error_and_the_next_job_gets_another(path, supervised):
    first = (await draw(path, DrawJob(prompt="a")))[0].content
    assert (await draw(path, DrawJob(prompt="a")))[0].content == first
    with pytest.raises(EngineStopped):
        await draw(path, DrawJob(prompt="hang"))
    assert (await draw(path, DrawJob(prompt="a")))[0].content != first


@pytest.mark.parametrize("supervised", ["broken"], indirect=True)
async def test_process_that_does_not_start_is_an_error(path, supervised):
    for _ in range(2):
        with pytest.raises(EngineStopped):
            await draw(path, DrawJob(prompt="a"))


async def post(settings, body):
    app = create_app(FakeEngine(), FakeRegistry(), settings)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        answer = await client.post("/v1/images/generations", json=body)
    return answer.status_code, answer.json()


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


@pytest.mark.parametrize(
    ("more", "status", "param"),
    [
        ({"model": "other"}, 404, "model"),
        ({"size": "64x33"}, 400, "size"),
        ({"size": "4096x4096"}, 400, "size"),
        ({"size": "large"}, 400, "size"),
        ({"n": 11}, 400, "n"),
        ({"response_format": "url"}, 400, "response_format"),
        ({"output_compression": 5}, 400, "output_compression"),
        ({"stream": True}, 400, "stream"),
        ({"style": "vivid"}, 400, "style"),
        ({"prompt": ""}, 400, "prompt"),
    ],
)
async def test_what_is_refused(tmp_path, more, status, param):
    model = ImageModel("tiny", tmp_path, tmp_path / "nobody")
    answered, answer = await post(
        Settings(home=tmp_path, image_model=model), {"prompt": "a"} | more
    )
    assert (answered, answer["error"]["param"]) == (status, param)


async def test_server_without_the_option_draws_nothing(tmp_path):
    status, answer = await post(Settings(home=tmp_path), {"prompt": "a"})
    assert (status, answer["error"]["code"]) == (404, "model_not_found")


def test_server_without_the_option_imports_nothing():
    names = "('diffusers', 'izwi_api.drawing', 'torch')"
    check = f"import sys, izwi_api.serve.app; print([n for n in {names} if n in sys.modules])"
    found = subprocess.run([sys.executable, "-c", check], capture_output=True, check=True)
    assert found.stdout.strip() == b"[]"


def test_folder_without_a_pipeline_is_refused(tmp_path):
    with pytest.raises(InvalidRequest, match="no pipeline of diffusers"):
        read_image_model(str(tmp_path))
