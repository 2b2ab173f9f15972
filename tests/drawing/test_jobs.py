"""The queue of the process that draws, its replacement, and the endpoint, without diffusers."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from izwi.errors import DeviceFull, EngineStopped, InvalidRequest, InvalidValue, Overloaded
from izwi_api.drawing.client import draw, follow
from izwi_api.drawing.job_server import JobServer
from izwi_api.drawing.jobs import DrawJob, Drawn, Partial, Step
from izwi_api.drawing.previews import preview_steps
from izwi_api.drawing.process import BUSY, GivesSigns
from izwi_api.drawing.supervised import IDLE, SupervisedProcess
from izwi_api.settings import read_image_model
from tests.drawing.conftest import Runner, until

# Answers each job with the id of its process, or never, or dies, or ends before it accepts any.
PROGRAM = """
import os, socket, sys, threading
threading.Thread(target=lambda: (os.read(0, 1), os._exit(0)), daemon=True).start()
if sys.argv[2] == "broken":
    sys.exit(3)
from izwi_api.drawing.jobs import Begun, Drawn, Ended, encode_frame
os.write(0, b"I")
listener = socket.socket(fileno=int(sys.argv[1]))
while True:
    stream = listener.accept()[0]
    job = stream.recv(4096)
    if b"unbegun" in job and not os.path.exists(sys.argv[3]):
        open(sys.argv[3], "w").close()
        os.kill(os.getpid(), 9)
    stream.sendall(encode_frame(Begun()))
    if b"die" in job:
        os.kill(os.getpid(), 9)
    if b"hang" in job:
        os.write(0, b"B")
        threading.Event().wait()
    stream.sendall(encode_frame(Drawn(str(os.getpid()).encode(), 1, 1)) + encode_frame(Ended()))
    stream.close()
"""


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


async def test_callers_draw_in_turn_and_none_is_kept_out(path, listener):
    runner = Runner()
    server = asyncio.create_task(JobServer(runner, 4).serve(listener))
    greedy = [
        asyncio.create_task(draw(path, DrawJob(prompt=f"a{n}", caller="a"))) for n in range(12)
    ]
    await asyncio.wait(greedy, return_when=asyncio.FIRST_COMPLETED)
    await until(lambda: sum(task.done() for task in greedy) == 7)  # one is drawn, four wait
    other = asyncio.create_task(draw(path, DrawJob(prompt="b", caller="b")))
    leaving = asyncio.create_task(draw(path, DrawJob(prompt="c", caller="c")))
    await asyncio.sleep(0.05)
    leaving.cancel()
    await asyncio.sleep(0.05)
    runner.may_draw.set()
    assert (await other)[0].content == b"b 0"
    ends = await asyncio.gather(*greedy, return_exceptions=True)
    assert sum(isinstance(end, Overloaded) for end in ends) == 7
    assert len(runner.began) == 6
    assert runner.began.index("b") <= 2  # behind one that came before it at the most
    server.cancel()


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
def supervised(listener, request, tmp_path):
    command = (sys.executable, "-c", PROGRAM)
    kind, mark = getattr(request, "param", ""), str(tmp_path / "died")
    process = SupervisedProcess(listener, lambda number: (*command, str(number), kind, mark), 60.0)
    process.start()
    yield process
    process.stop()


async def test_killed_process_is_an_error_and_the_next_job_gets_another(path, supervised):
    first = (await draw(path, DrawJob(prompt="a")))[0].content
    assert (await draw(path, DrawJob(prompt="a")))[0].content == first
    with pytest.raises(EngineStopped):
        await draw(path, DrawJob(prompt="die"))
    assert (await draw(path, DrawJob(prompt="a")))[0].content != first


async def test_job_that_had_not_begun_is_run_by_the_next_process(path, supervised, tmp_path):
    first = (await draw(path, DrawJob(prompt="a")))[0].content
    assert (await draw(path, DrawJob(prompt="unbegun")))[0].content != first
    assert (tmp_path / "died").exists()


async def test_jobs_that_waited_while_the_device_was_full_are_run_by_the_next_process(
    path, listener
):
    runner = Runner()
    server = asyncio.create_task(JobServer(runner, 3).serve(listener))
    first = asyncio.create_task(draw(path, DrawJob(prompt="a")))
    await until(lambda: runner.began)
    full = asyncio.create_task(draw(path, DrawJob(prompt="full")))
    await asyncio.sleep(0.05)
    behind = asyncio.create_task(draw(path, DrawJob(prompt="b")))
    await asyncio.sleep(0.05)
    runner.may_draw.set()
    with pytest.raises(DeviceFull):
        await full
    await server
    following = asyncio.create_task(JobServer(runner, 3).serve(listener))
    assert (await first)[0].content == b"a 0"
    assert (await behind)[0].content == b"b 0"
    following.cancel()


async def test_process_that_hangs_is_killed_and_replaced(path, supervised, monkeypatch):
    wait, limits = supervised._wait, iter([60.0, 0.05])  # to start, and to draw

    def watched(stream, limit_s=None):
        return wait(stream, None if limit_s is None else next(limits, 60.0))

    monkeypatch.setattr(supervised, "_wait", watched)
    first = (await draw(path, DrawJob(prompt="a")))[0].content
    with pytest.raises(EngineStopped):
        await draw(path, DrawJob(prompt="hang"))
    assert (await draw(path, DrawJob(prompt="a")))[0].content != first


def test_process_gives_signs_of_life_while_it_draws():
    signs, runner = [], Runner()
    runner.may_draw.set()
    GivesSigns(runner, signs.append).run(DrawJob(prompt="a", count=2), lambda _: None, bool)
    assert signs == [BUSY] * 5 + [IDLE]
    with pytest.raises(InvalidValue):
        GivesSigns(runner, signs.append).run(DrawJob(prompt="wrong"), lambda _: None, bool)
    assert signs[-2:] == [BUSY, IDLE]


async def test_previews_and_steps_come_while_it_draws(drawing):
    path, runner, _ = drawing
    runner.may_draw.set()
    events = [event async for event in follow(path, DrawJob(prompt="a", num_partials=2))]
    assert events == [
        Step(1, 1),
        Partial(b"a 0 as yet", 64, 32, 0),
        Partial(b"a 0 as yet", 64, 32, 1),
        Drawn(b"a 0", 64, 32),
    ]


def test_previews_are_spread_evenly_before_the_end():
    assert preview_steps(3, 8) == {2: 0, 4: 1, 6: 2}
    assert preview_steps(3, 2) == {1: 0}
    assert preview_steps(0, 8) == preview_steps(3, 1) == {}


@pytest.mark.parametrize("supervised", ["broken"], indirect=True)
async def test_process_that_does_not_start_is_an_error(path, supervised):
    for _ in range(2):
        with pytest.raises(EngineStopped):
            await draw(path, DrawJob(prompt="a"))


def test_server_without_the_option_imports_nothing():
    names = "('diffusers', 'izwi_api.drawing', 'PIL', 'torch', 'transformers')"
    check = f"import sys, izwi_api.serve.app; print([n for n in {names} if n in sys.modules])"
    found = subprocess.run([sys.executable, "-c", check], capture_output=True, check=True)
    assert found.stdout.strip() == b"[]"


def test_folder_without_a_pipeline_is_refused(tmp_path):
    with pytest.raises(InvalidRequest, match="no pipeline of diffusers"):
        read_image_model(str(tmp_path))
