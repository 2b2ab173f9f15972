"""A queue that draws without diffusers, and a socket for it."""

from __future__ import annotations

import asyncio
import socket
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from izwi.errors import DeviceFull, InvalidValue
from izwi_api.drawing.job_server import JobServer
from izwi_api.drawing.jobs import Drawn, Partial, Step
from tests.api.conftest import wait_for


class Runner:
    """Draws when it may, until its client leaves."""

    def __init__(self):
        self.may_draw, self.began, self.left, self.jobs = threading.Event(), [], [], []

    def run(self, job, report, has_left):
        self.began.append(job.prompt)
        self.jobs.append(job)
        if job.prompt == "full":
            raise DeviceFull("no memory")
        if job.prompt == "wrong":
            raise InvalidValue("no such size", param="size")
        while not self.may_draw.wait(0.002):
            if has_left():
                self.left.append(job.prompt)
                return
        for place in range(job.count):
            report(Step(place + 1, job.count))
            for number in range(job.num_partials):
                preview = f"{job.prompt} {job.seed + place} as yet".encode()
                report(Partial(preview, 64, 32, number))
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
