"""An engine dies and the next one resumes: readers get the same output."""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from izwi.backends.torch.backend import torch_backend
from izwi.checkpoints.registry import Registry
from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi.errors import EngineStopped
from izwi.request.request import Reason
from izwi.request.sequence import PauseReason
from izwi_api.serve.remote_engine import RemoteEngine
from izwi_api.serve.wire import RequestCodec
from tests.engine.toy import toy_request
from tests.serve.over_sockets import EngineSide, OverSockets, toy_engine, until
from tests.serve.test_remote_engine import ASR, TTS, embedded_requests, endless, entries, read


class Dying:
    """An API server, and one engine after the other behind it."""

    def __init__(self, make, codec=None, patience_s=60.0):
        self.make, self.codec = make, codec
        self.api_server = OverSockets(make(), codec, patience_s=patience_s)
        self.sides = [self.api_server.side]

    async def __aenter__(self):
        await self.api_server.open()
        return self

    async def __aexit__(self, *_):
        await self.api_server.stop()
        for side in self.sides:
            if side.lines.thread.alive:
                await asyncio.to_thread(side.stop)

    def die(self):
        """Messages of the engine are lost from now on."""
        self.api_server.disconnect()

    def hang(self):
        """The engine hangs: it neither reads nor sends."""
        self.api_server._loop.remove_reader(self.api_server._engine_messages.fileno())
        self.api_server._send_command = lambda _: None

    async def follow(self):
        side = EngineSide(self.make(), self.codec or self.api_server._codec)
        self.sides.append(side)
        self.api_server.__dict__.pop("_send_command", None)  # what `hang` put there
        side.start()
        self.api_server.connect(side.address)
        await until(lambda: self.api_server.alive)


def sequence_of(side, request_id):
    return side.lines._engine._live.get(request_id, (None, None))[1]


def is_paused(side, request_id):
    sequence = sequence_of(side, request_id)
    return sequence is not None and sequence.status.paused is PauseReason.TURN


def is_held(side, request_id):
    sequence = sequence_of(side, request_id)
    return sequence is not None and sequence.status.backpressured


def given(chunks):
    """All that a reader was given, but for where it was cut."""
    return (
        entries(chunks),
        b"".join(chunk.pcm.tobytes() for chunk in chunks if chunk.pcm is not None),
        [array.tobytes() for chunk in chunks for array in chunk.encoded],
        [p for c in chunks if c.logprobs is not None for p in c.logprobs.tolist()],
        chunks[-1].reason,
    )


@pytest.mark.parametrize(
    "num_delivered",
    [pytest.param(0, marks=pytest.mark.slow), 1, pytest.param(3, marks=pytest.mark.slow)],
)
async def test_speech_text_and_voices_are_the_same_as_without_a_death(num_delivered):
    backend = torch_backend("cpu", "float32")
    registry = Registry(backend)
    for name in (TTS, ASR):
        registry.load(name)

    def make():
        return Engine(registry.models, backend, EngineConfig(kv_bytes=1 << 26))

    def requests():
        found = list(embedded_requests(registry))
        return [replace(one, logprobs=one.request_id[0] == "t") for one in found]

    logs = []
    for dies in (False, True):
        async with Dying(make, RequestCodec()) as world:
            streams = world.api_server.submit_all(requests())
            firsts = [[] for _ in streams]
            if dies:
                speaking = [s for s in streams if s.request_id[0] == "s"]
                heard = {s: [await anext(s) for _ in range(num_delivered)] for s in speaking}
                firsts = [heard.get(stream, []) for stream in streams]
                world.die()
                await world.follow()
            is_idle = await asyncio.wait_for(asyncio.gather(*map(read, streams)), 60)
            logs.append([given(a + b) for a, b in zip(firsts, is_idle, strict=True)])
    for whole, mended in zip(*logs, strict=True):
        assert mended[0] == whole[0]
        clips = [np.frombuffer(audio, np.float32) for audio in (mended[1], whole[1])]
        assert len(clips[0]) == len(clips[1])
        np.testing.assert_allclose(*clips, rtol=0, atol=1e-4)
        assert mended[2] == whole[2]
        np.testing.assert_allclose(mended[3], whole[3], rtol=0, atol=1e-4)
        assert mended[4] == whole[4] in (Reason.STOP, Reason.LENGTH)


async def test_text_that_is_still_written_and_a_pause_survive():
    request = toy_request("a", 4, seed=1, frames=30, open_input=True)
    logs = []
    for dies in (False, True):
        async with Dying(toy_engine) as world:
            stream = world.api_server.submit(request)
            world.api_server.write("a", [3, 1, 4], False)
            chunks = [await anext(stream)]
            world.api_server.pause("a")
            if dies:
                world.die()
                world.api_server.write("a", [1, 5], False)  # while there is none
                await world.follow()
                await until(partial(is_paused, world.sides[-1], "a"))
            else:
                world.api_server.write("a", [1, 5], False)
            world.api_server.resume("a")
            world.api_server.write("a", [9, 2, 6], True)
            chunks += await asyncio.wait_for(read(stream), 60)
            logs.append(entries(chunks))
    assert logs[0] == logs[1]
    assert logs[0]


async def test_a_backpressured_reader_loses_nothing_across_a_restart():
    logs = []
    for dies in (False, True):
        async with Dying(lambda: toy_engine(max_backlog=6)) as world:
            stream = world.api_server.submit(endless("a", 4, 60))
            await until(lambda: world.api_server._resumables["a"].backpressured)
            if dies:
                world.die()
                await world.follow()
                await until(partial(is_held, world.sides[-1], "a"))
            logs.append(entries(await asyncio.wait_for(read(stream), 60)))
    assert logs[0] == logs[1]
    assert len(logs[0]) == 60


async def test_a_delivered_entry_is_not_delivered_again():
    """When the engine dies, all frames are there, and their last audio has not been sent."""
    async with Dying(toy_engine) as world:
        whole = given(await read(world.api_server.submit(endless("a", 4, 21))))
        stream = world.api_server.submit(endless("a", 4, 21))
        chunks = [await anext(stream)]
        while len(entries(chunks)) < 20:
            chunks.append(await anext(stream))
        if chunks[-1].reason is None:
            world.die()
            await world.follow()
            chunks += await asyncio.wait_for(read(stream), 60)
    assert given(chunks) == whole


async def test_a_request_survives_one_engine_death_only():
    async with Dying(toy_engine) as world:
        old = world.api_server.submit(endless("old", 1, 4000))
        await anext(old)
        world.die()
        await world.follow()
        young = world.api_server.submit(endless("young", 2, 60))
        await anext(young)
        world.die()
        assert isinstance((await asyncio.wait_for(read(old), 60))[-1].error, EngineStopped)
        await world.follow()
        assert (await asyncio.wait_for(read(young), 60))[-1].reason is Reason.LENGTH


async def test_a_paused_request_outlives_any_number_of_engines():
    """It is paused, so it does not cause the crashes; and no step runs it before it is resumed."""
    async with Dying(toy_engine) as world:
        whole = given(await read(world.api_server.submit(endless("a", 4, 60))))
        stream = world.api_server.submit(endless("a", 4, 60))
        chunks = [await anext(stream)]
        world.api_server.pause("a")
        await until(partial(is_paused, world.sides[-1], "a"))
        for _ in range(3):
            world.die()
            await world.follow()
            await until(lambda: sequence_of(world.sides[-1], "a") is not None)
            other = await asyncio.wait_for(read(world.api_server.submit(endless("b", 2, 9))), 60)
            assert other[-1].reason is Reason.LENGTH
            assert is_paused(world.sides[-1], "a")
            assert sequence_of(world.sides[-1], "a").kv.num_computed == 0, "it ran while paused"
        world.api_server.resume("a")
        chunks += await asyncio.wait_for(read(stream), 60)
        assert given(chunks) == whole


async def test_a_request_paused_while_there_is_no_engine_stays_paused():
    async with Dying(toy_engine) as world:
        stream = world.api_server.submit(endless("a", 4, 60))
        chunks = [await anext(stream)]
        world.die()
        world.api_server.pause("a")
        await world.follow()
        await until(partial(is_paused, world.sides[-1], "a"))
        world.die()
        world.api_server.resume("a")
        await world.follow()
        chunks += await asyncio.wait_for(read(stream), 60)
        assert len(entries(chunks)) == 60


async def test_waiting_for_an_engine_has_a_limit():
    async with Dying(toy_engine, patience_s=0.2) as world:
        stream = world.api_server.submit(endless("a", 1, 4000))
        await anext(stream)
        world.die()
        assert isinstance((await asyncio.wait_for(read(stream), 60))[-1].error, EngineStopped)
        await world.follow()
        assert not world.api_server._resumables


async def test_an_abort_without_an_engine_ends_the_request():
    async with Dying(toy_engine) as world:
        stream = world.api_server.submit(endless("a", 1, 4000))
        await anext(stream)
        world.die()
        stream.abort()
        assert (await asyncio.wait_for(read(stream), 60))[-1].reason is Reason.ABORTED
        await world.follow()
        assert not world.sides[-1].lines._engine._live


@pytest.mark.parametrize("open_input", [False, True])
async def test_a_request_aborted_while_the_engine_hangs_is_not_sent_to_the_next(open_input):
    """The engine that is asked to abort never reads it, and dies."""
    async with Dying(toy_engine) as world:
        request = replace(endless("a", 1, 4000), open_input=open_input)
        stays = world.api_server.submit(replace(endless("stays", 2, 30), open_input=True))
        stream = world.api_server.submit(request)
        world.api_server.write("stays", [3, 1, 4], False)
        world.api_server.write("a", [3, 1, 4], False)
        await anext(stream)
        await anext(stays)
        world.hang()
        stream.abort()
        world.die()
        assert (await asyncio.wait_for(read(stream), 60))[-1].reason is Reason.ABORTED
        await world.follow()
        await until(lambda: "stays" in world.sides[-1].lines._engine._live)
        assert "a" not in world.sides[-1].lines._engine._live
        world.api_server.write("stays", [1, 5], True)
        assert (await asyncio.wait_for(read(stays), 60))[-1].reason is Reason.LENGTH
        assert not world.api_server._resumables


async def test_an_aborted_request_ends_with_one_last_chunk():
    async with Dying(toy_engine) as world:
        stream = world.api_server.submit(endless("a", 1, 4000))
        await anext(stream)
        stream.abort()
        stream.abort()
        chunks = await asyncio.wait_for(read(stream), 60)
        assert [chunk.reason for chunk in chunks if chunk.reason] == [Reason.ABORTED]
        assert not world.api_server._resumables
        world.die()


async def test_an_engine_that_dies_before_it_was_given_a_request_does_not_count():
    async with Dying(toy_engine) as world:
        stream = world.api_server.submit(endless("a", 1, 100))
        chunks = [await anext(stream)]
        world.die()
        for _ in range(3):  # they die before they answer the hello
            world.api_server.connect(f"ipc://{world.api_server.side.path / 'nobody'}")
            world.die()
        await world.follow()
        chunks += await asyncio.wait_for(read(stream), 60)
        assert chunks[-1].reason is Reason.LENGTH
        assert len(entries(chunks)) == 100


async def test_a_resumed_request_outlives_the_time_it_may_wait_for_an_engine(monkeypatch):
    """The time limit ends when an engine takes the request, not later in the middle of it."""
    timers, loop = [], asyncio.get_running_loop()

    def call_later(delay_s, callback, *arguments):
        timer = type(loop).call_later(loop, delay_s, callback, *arguments)
        if callback == world.api_server.give_up:
            timers.append(timer)
        return timer

    async with Dying(toy_engine, patience_s=60.0) as world:
        monkeypatch.setattr(loop, "call_later", call_later)
        stream = world.api_server.submit(replace(endless("a", 1, 30), open_input=True))
        chunks = [await anext(stream)]
        world.die()
        # it dies as it starts
        world.api_server.connect(f"ipc://{world.api_server.side.path / 'nobody'}")
        world.die()
        await world.follow()
        assert timers
        assert all(timer.cancelled() for timer in timers)
        world.api_server.write("a", [3, 1, 4], True)
        chunks += await asyncio.wait_for(read(stream), 60)
        assert chunks[-1].reason is Reason.LENGTH


async def test_a_request_whose_text_was_closed_does_not_wait_for_more_from_the_next_engine():
    request = toy_request("a", 4, seed=1, frames=30, open_input=True)
    logs = []
    for dies in (False, True):
        async with Dying(toy_engine) as world:
            stream = world.api_server.submit(request)
            world.api_server.write("a", [3, 1, 4, 1, 5, 9, 2, 6], True)
            chunks = [await anext(stream)]
            if dies:
                world.die()
                await world.follow()
            chunks += await asyncio.wait_for(read(stream), 60)
            logs.append(entries(chunks))
    assert logs[0] == logs[1]
    assert logs[0]


async def test_text_that_is_closed_while_there_is_no_engine_stays_closed():
    request = toy_request("a", 4, seed=1, frames=30, open_input=True)
    async with Dying(toy_engine) as world:
        stream = world.api_server.submit(request)
        world.api_server.write("a", [3, 1, 4], False)
        await anext(stream)
        world.die()
        world.api_server.write("a", [1, 5], True)
        await world.follow()
        assert (await asyncio.wait_for(read(stream), 60))[-1].reason is not None


async def test_a_server_that_leaves_waits_for_no_engine():
    async with Dying(toy_engine) as world:
        stream = world.api_server.submit(endless("a", 1, 4000))
        await anext(stream)
        world.die()
        world.api_server.give_up()
        assert isinstance((await asyncio.wait_for(read(stream), 60))[-1].error, EngineStopped)


@pytest.mark.skipif(sys.platform != "linux", reason="counts files in /proc")
async def test_engines_that_are_gone_leave_no_open_files(tmp_path):
    api_server = RemoteEngine("server", tmp_path, RequestCodec())

    def num_open():
        return sum(1 for _ in Path("/proc/self/fd").iterdir())

    def live_through(engines):
        for number in engines:
            api_server.connect(f"ipc://{tmp_path / f'engine-{number}'}")
            api_server.disconnect()

    live_through(range(1))  # ZeroMQ opens some for its threads
    before = num_open()
    live_through(range(1, 11))
    await until(lambda: num_open() < before + 10)  # they are closed on another thread
    await api_server.stop()
