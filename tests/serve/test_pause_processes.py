"""Pause, resume and priorities, in one process and over real ones; a killed engine is a pause."""

from __future__ import annotations

import asyncio
import itertools
import select
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from izwi.backends.torch.backend import torch_backend
from izwi.checkpoints.registry import Registry, find
from izwi.config import EngineConfig
from izwi.engine.async_engine import AsyncEngine
from izwi.engine.engine import Engine
from izwi.engine_client.protocol import Answer
from izwi.errors import InvalidRequest, ModelNotFound
from izwi.inputs.speech import SpeechInput
from izwi.request.request import Chunk, Reason, Request
from izwi_api.runtime_options import RuntimeOptions
from izwi_api.serve.control import ApiServerGone, Control, EngineSpec, Ready
from izwi_api.serve.remote_engine import RemoteEngine
from izwi_api.serve.wire import RequestCodec
from tests.serve.over_sockets import until

pytestmark = pytest.mark.slow  # tests/engine/test_pause.py has it without processes
TTS = "izwi-tiny-tts"
# one request at a time: what runs while another is paused has got its place
NUMBERS = itertools.count()  # of API servers
CONFIG = EngineConfig(max_running=1, policy="priority", kv_bytes=1 << 24, host_bytes=0)


class EngineProcess:
    """A real engine process, as a supervisor starts it."""

    def __init__(self, folder: Path, number: int):
        self.address = f"ipc://{folder / f'engine-{number}'}"
        self._spec = EngineSpec(
            folder, self.address, {TTS: find(TTS)}, RuntimeOptions("cpu", "float32"), CONFIG, None
        )
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "izwi_api.serve.engine_process"], stdin=theirs.fileno()
            )
        self.control = Control(ours)

    def wait_until_ready(self) -> None:
        self.control.send(self._spec)
        while not any(isinstance(message, Ready) for message in self.control.receive()):
            continue

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.control.close()


class OverProcesses(RemoteEngine):
    """An engine client with an engine process that can be killed and followed by another."""

    def __init__(self, folder: Path):
        super().__init__("api-server-0", folder, RequestCodec(), patience_s=600.0)
        self._root, self._numbers = folder, itertools.count()

    async def follow(self) -> None:
        self.engine = EngineProcess(self._root, next(self._numbers))
        await asyncio.to_thread(self.engine.wait_until_ready)
        self.connect(self.engine.address)
        await until(lambda: self.alive, 300.0)

    def die(self) -> None:
        self.engine.kill()  # SIGKILL
        self.disconnect()  # as the supervisor says


@asynccontextmanager
async def in_process() -> AsyncIterator[AsyncEngine]:
    backend = torch_backend("cpu", "float32")
    registry = Registry(backend)
    registry.load(TTS)
    client = AsyncEngine(Engine(registry.models, backend, CONFIG))
    client.start()
    yield client
    await client.stop()


@asynccontextmanager
async def over_processes(folder: Path) -> AsyncIterator[OverProcesses]:
    remote = OverProcesses(folder)
    await remote.follow()
    yield remote
    await remote.stop()
    remote.engine.kill()


@pytest.fixture(scope="module")
def engine(tmp_path_factory) -> Iterator[EngineProcess]:
    """An engine process that several API servers use, one after the other."""
    process = EngineProcess(tmp_path_factory.mktemp("engine"), 0)
    process.wait_until_ready()
    yield process
    process.kill()


@asynccontextmanager
async def beside(engine: EngineProcess, folder: Path) -> AsyncIterator[RemoteEngine]:
    name = f"api-server-{next(NUMBERS)}"
    while select.select([engine.control.fileno()], [], [], 0)[0]:
        engine.control.receive()  # its heartbeats, or it would wait until they are read
    remote = RemoteEngine(name, folder, RequestCodec(), patience_s=600.0)
    remote.connect(engine.address)
    await until(lambda: remote.alive, 300.0)
    yield remote
    await remote.stop()
    engine.control.send(ApiServerGone(name))


# tests/engine pauses in one process, too
@pytest.fixture(
    params=[pytest.param("one process", marks=pytest.mark.slow), "two processes"],
)
def opened(request, tmp_path):
    """A client of an engine in this process, or in another."""
    if request.param == "one process":
        return in_process()
    return beside(request.getfixturevalue("engine"), tmp_path)


@pytest.fixture(scope="module")
def prepare():
    """Make requests without weights, as an API server does."""
    registry = Registry()
    registry.load(TTS)
    model = registry.speech(TTS)

    def prepare(name: str, seed: int = 1, frames: int = 24, **more) -> Request:
        ask = SpeechInput("The house is near the river.", "amber", seed=seed, temperature=1.0)
        request = model.prepare_speech(name, TTS, ask)
        return replace(request, stop_ids=(), max_entries=frames, streams=True, **more)

    return prepare


async def read(stream: Answer) -> list[Chunk]:
    return [chunk async for chunk in stream]


async def finished(stream: Answer) -> list[Chunk]:
    chunks = await asyncio.wait_for(read(stream), 300)
    assert chunks[-1].reason is Reason.LENGTH, chunks[-1].error
    return chunks


def entries(chunks: Sequence[Chunk]) -> list[list[int]]:
    return [entry for chunk in chunks for entry in chunk.entries.tolist()]


def num_samples(chunks: Sequence[Chunk]) -> int:
    return sum(chunk.pcm.size for chunk in chunks if chunk.pcm is not None)


async def test_a_paused_request_leaves_its_compute_to_others(opened, prepare):
    async with opened as client:
        whole = await finished(client.submit(prepare("whole")))
        stream = client.submit(prepare("paused"))
        chunks = [await anext(stream)]
        client.pause("paused")
        # there is one place, and a request that holds it: this ends only if it has let go
        await finished(client.submit(prepare("other", seed=2, frames=4)))
        await until(lambda: client.load[TTS]["paused"] == 1, 300.0)
        client.resume("paused")
        chunks += await finished(stream)
        assert entries(chunks) == entries(whole)
        assert num_samples(chunks) == num_samples(whole)


async def test_a_paused_request_is_aborted_and_others_do_not_notice(opened, prepare):
    async with opened as client:
        stream = client.submit(prepare("paused"))
        await anext(stream)
        client.pause("paused")
        other = client.submit(prepare("other", seed=2, frames=4))
        client.abort("paused")
        assert (await asyncio.wait_for(read(stream), 300))[-1].reason is Reason.ABORTED
        assert len(entries(await finished(other))) == 4
        for name in ("paused", "never there"):  # nothing happens to what has ended
            client.pause(name)
            client.resume(name)
            client.abort(name)
            client.write(name, [1], True)
        await finished(client.submit(prepare("paused", seed=3, frames=4)))


async def test_a_higher_priority_takes_the_place_of_what_runs(opened, prepare):
    async with opened as client:
        ended: list[str] = []

        async def run(stream: Answer, name: str) -> list[Chunk]:
            chunks = await finished(stream)
            ended.append(name)
            return chunks

        low = client.submit(prepare("low", frames=60))
        first = await anext(low)
        high = client.submit(prepare("high", seed=2, frames=6, priority=5))
        rest, _ = await asyncio.gather(run(low, "low"), run(high, "high"))
        assert ended == ["high", "low"]
        whole = await finished(client.submit(prepare("whole", frames=60)))
        assert entries([first, *rest]) == entries(whole)


@pytest.mark.slow  # test_engine_restart.py has its parts
async def test_a_killed_engine_costs_paused_and_running_requests_a_pause(tmp_path, prepare):
    async with over_processes(tmp_path) as client:
        whole = await finished(client.submit(prepare("whole", frames=60)))
        paused = client.submit(prepare("paused", frames=60))
        before_pause = [await anext(paused)]
        client.pause("paused")
        running = client.submit(prepare("running", frames=60))
        before_death = [await anext(running)]
        for number in range(2):
            client.die()
            await client.follow()
            if number == 0:
                rest = await finished(running)
                assert entries([*before_death, *rest]) == entries(whole)
                assert num_samples([*before_death, *rest]) == num_samples(whole)
            # it takes the only place, so the paused request is still paused
            await finished(client.submit(prepare(f"other-{number}", seed=2)))
        client.resume("paused")
        rest = await finished(paused)
        assert entries([*before_pause, *rest]) == entries(whole)
        assert num_samples([*before_pause, *rest]) == num_samples(whole)


async def test_models_come_and_go_or_the_client_says_that_they_do_not(opened):
    async with opened as client:
        registry = Registry(torch_backend("cpu", "float32"))
        registry.load(TTS)
        with pytest.raises(InvalidRequest):  # the name is taken, or nothing comes at all
            await client.add(TTS, registry.models[TTS], find(TTS))
        with pytest.raises((ModelNotFound, InvalidRequest)):
            await client.remove("not there")
