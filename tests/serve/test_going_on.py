"""An engine dies, and the next one goes on: readers are given what they would have been given."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from izwi.config import EngineConfig
from izwi.engine import Engine
from izwi.errors import EngineStopped
from izwi.registry import Registry
from izwi.request import Reason
from izwi.runner.device import torch_backend
from izwi_api.serve.wire import RequestCodec
from tests.engine.toy import toy_request
from tests.serve.over_sockets import EngineSide, OverSockets, toy_engine, until
from tests.serve.test_remote_engine import ASR, TTS, embedded_requests, endless, entries, read


class Dying:
    """A door, and one engine after the other behind it."""

    def __init__(self, make, codec=None, patience_s=20.0):
        self.make, self.codec = make, codec
        self.door = OverSockets(make(), codec, patience_s=patience_s)
        self.sides = [self.door.side]

    async def __aenter__(self):
        await self.door.open()
        return self

    async def __aexit__(self, *_):
        await self.door.stop()
        for side in self.sides:
            if side.lines.thread.alive:
                await asyncio.to_thread(side.stop)

    def die(self):
        """What the engine says from now on reaches nobody."""
        self.door.disconnect()

    async def follow(self):
        side = EngineSide(self.make(), self.codec or self.door._codec)
        self.sides.append(side)
        side.start()
        self.door.connect(side.address)
        await until(lambda: self.door.alive)


def is_paused(side, request_id):
    _, sequence = side.lines._engine._live.get(request_id, (None, None))
    return sequence is not None and sequence.paused is not None


def given(chunks):
    """All that a reader was given, but for where it was cut."""
    return (
        entries(chunks),
        b"".join(chunk.pcm.tobytes() for chunk in chunks if chunk.pcm is not None),
        [array.tobytes() for chunk in chunks for array in chunk.encoded],
        [p for c in chunks if c.logprobs is not None for p in c.logprobs.tolist()],
        chunks[-1].reason,
    )


@pytest.mark.parametrize("num_heard", [0, 1, 3])
async def test_speech_text_and_voices_are_the_same_as_without_a_death(num_heard):
    backend = torch_backend("cpu", "float32")
    registry = Registry(backend)
    for name in (TTS, ASR):
        registry.load(name)

    def make():
        return Engine(registry.models, backend.ops, EngineConfig(kv_bytes=1 << 26))

    def requests():
        found = list(embedded_requests(registry))
        return [replace(one, logprobs=one.request_id[0] == "t") for one in found]

    logs = []
    for dies in (False, True):
        async with Dying(make, RequestCodec()) as world:
            streams = world.door.submit_all(requests())
            firsts = [[] for _ in streams]
            if dies:
                speaking = [s for s in streams if s.request_id[0] == "s"]
                heard = {s: [await anext(s) for _ in range(num_heard)] for s in speaking}
                firsts = [heard.get(stream, []) for stream in streams]
                world.die()
                await world.follow()
            rests = await asyncio.wait_for(asyncio.gather(*map(read, streams)), 60)
            logs.append([given(a + b) for a, b in zip(firsts, rests, strict=True)])
    for whole, mended in zip(*logs, strict=True):
        assert mended[0] == whole[0]
        sounds = [np.frombuffer(sound, np.float32) for sound in (mended[1], whole[1])]
        assert len(sounds[0]) == len(sounds[1])
        np.testing.assert_allclose(*sounds, rtol=0, atol=1e-4)
        assert mended[2] == whole[2]
        np.testing.assert_allclose(mended[3], whole[3], rtol=0, atol=1e-4)
        assert mended[4] == whole[4] in (Reason.STOP, Reason.LENGTH)


async def test_text_that_is_still_written_and_a_pause_survive():
    request = toy_request("a", 4, seed=1, frames=30, open_input=True)
    logs = []
    for dies in (False, True):
        async with Dying(toy_engine) as world:
            stream = world.door.submit(request)
            world.door.write("a", [3, 1, 4], False)
            chunks = [await anext(stream)]
            world.door.pause("a")
            if dies:
                world.die()
                world.door.write("a", [1, 5], False)  # while there is none
                await world.follow()
                await until(partial(is_paused, world.sides[-1], "a"))
            else:
                world.door.write("a", [1, 5], False)
            world.door.resume("a")
            world.door.write("a", [9, 2, 6], True)
            chunks += await asyncio.wait_for(read(stream), 5)
            logs.append(entries(chunks))
    assert logs[0] == logs[1]
    assert logs[0]


async def test_a_reader_who_is_behind_stays_behind_and_loses_nothing():
    logs = []
    for dies in (False, True):
        async with Dying(lambda: toy_engine(max_backlog=6)) as world:
            stream = world.door.submit(endless("a", 4, 60))
            await until(lambda: world.door._lives["a"].held)
            if dies:
                world.die()
                await world.follow()
            logs.append(entries(await asyncio.wait_for(read(stream), 5)))
    assert logs[0] == logs[1]
    assert len(logs[0]) == 60


async def test_the_last_entry_that_was_told_is_not_told_again():
    """All frames are there, and their last sound is owed, when the engine dies."""
    async with Dying(toy_engine) as world:
        whole = given(await read(world.door.submit(endless("a", 4, 21))))
        stream = world.door.submit(endless("a", 4, 21))
        chunks = [await anext(stream)]
        while len(entries(chunks)) < 20:
            chunks.append(await anext(stream))
        if chunks[-1].reason is None:
            world.die()
            await world.follow()
            chunks += await asyncio.wait_for(read(stream), 5)
    assert given(chunks) == whole


async def test_who_outlives_one_engine_does_not_outlive_the_next():
    async with Dying(toy_engine) as world:
        old = world.door.submit(endless("old", 1, 4000))
        await anext(old)
        world.die()
        await world.follow()
        young = world.door.submit(endless("young", 2, 60))
        await anext(young)
        world.die()
        assert isinstance((await asyncio.wait_for(read(old), 5))[-1].error, EngineStopped)
        await world.follow()
        assert (await asyncio.wait_for(read(young), 5))[-1].reason is Reason.LENGTH


async def test_nobody_waits_for_ever():
    async with Dying(toy_engine, patience_s=0.2) as world:
        stream = world.door.submit(endless("a", 1, 4000))
        await anext(stream)
        world.die()
        assert isinstance((await asyncio.wait_for(read(stream), 5))[-1].error, EngineStopped)
        await world.follow()
        assert not world.door._lives


async def test_who_leaves_while_there_is_no_engine_has_left():
    async with Dying(toy_engine) as world:
        stream = world.door.submit(endless("a", 1, 4000))
        await anext(stream)
        world.die()
        stream.abort()
        assert (await asyncio.wait_for(read(stream), 5))[-1].reason is Reason.ABORTED
        await world.follow()
        assert not world.sides[-1].lines._engine._live


async def test_a_server_that_leaves_waits_for_no_engine():
    async with Dying(toy_engine) as world:
        stream = world.door.submit(endless("a", 1, 4000))
        await anext(stream)
        world.die()
        world.door.give_up()
        assert isinstance((await asyncio.wait_for(read(stream), 5))[-1].error, EngineStopped)
