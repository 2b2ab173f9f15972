"""A request in flight without an engine: its log, and how long an API server keeps it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest
import zmq
from msgspec.structs import replace

from izwi.errors import EngineStopped, InvalidMessage
from izwi.request.log import Log
from izwi.request.request import Chunk, Reason
from izwi_api.serve import remote_engine, wire
from izwi_api.serve.remote_engine import ACKNOWLEDGE_EVERY, RemoteEngine
from izwi_api.serve.resumable_request import ResumableRequest
from izwi_api.serve.sockets import open_socket, receive, send
from izwi_api.serve.wire import RequestCodec
from tests.engine.toy import ToyPrompt, toy_request
from tests.serve.over_sockets import until

CODEC = RequestCodec([ToyPrompt])
PATIENCE_S = 60.0


class Stream(list):
    put = list.append


def test_the_log_of_a_request_is_what_its_chunks_brought():
    stream = Stream()
    request = ResumableRequest(toy_request("a", 4, seed=1, frames=9), lambda: stream)
    assert_log(request.log(0.0), np.zeros((0, 0), np.int64), None, ())
    assert (request.log(0.0).written, request.log(0.0).closed, request.log(0.0).paused) == (
        (),
        False,
        False,
    )
    audio = np.zeros(240, np.float32)
    entries = np.arange(6, dtype=np.int64).reshape(3, 2)
    chunks = [
        Chunk("a", entries=entries[:2], pcm=audio),
        Chunk("a", entries[:0], pcm=audio[:100]),
        Chunk("a", entries=entries[2:], logprobs=np.array([-0.5], np.float32)),
        Chunk("a", entries[:0], logprobs=np.zeros(0, np.float32), reason=Reason.LENGTH),
    ]
    for chunk in chunks:
        request.give(chunk, 0.0)
    assert stream == chunks
    assert_log(request.log(0.0), entries, [-0.5], (240, 100))
    request.written, request.closed, request.paused = [3, 1], True, True
    log = request.log(0.0)
    assert (log.written, log.closed, log.paused) == ((3, 1), True, True)
    gone = ResumableRequest(request.request, lambda: None)
    gone.give(chunks[0], 0.0)  # its reader left
    assert gone.log(0.0).num_samples == 240


def test_pauses_do_not_make_delivered_audio_older():
    request = ResumableRequest(toy_request("a", 4, seed=1, frames=9), lambda: None)
    chunk = Chunk("a", np.zeros((1, 3), np.int64), pcm=np.zeros(240, np.float32))
    request.give(chunk, 10.0)
    request.give(chunk, 12.0)
    assert request.log(13.0).chunk_ages_s == (3.0, 1.0)
    request.set_paused(True, 13.0)
    request.set_paused(True, 14.0)  # again, which changes nothing
    assert request.log(20.0).chunk_ages_s == (3.0, 1.0)
    request.set_paused(False, 23.0)
    request.set_paused(False, 24.0)
    request.give(chunk, 24.0)
    assert request.log(24.5).chunk_ages_s == (4.5, 2.5, 0.5)


def assert_log(log: Log, entries, logprobs, chunk_samples: tuple[int, ...]) -> None:
    assert log.entries.tolist() == entries.tolist()
    assert log.entries.shape == entries.shape
    assert (None if log.logprobs is None else log.logprobs.tolist()) == logprobs
    assert log.chunk_samples == chunk_samples
    assert log.num_samples == sum(chunk_samples)


class Timer:
    def __init__(self, due_s, action):
        self.due_s, self.action, self.is_cancelled = due_s, action, False

    def cancel(self):
        self.is_cancelled = True


class World:
    """An API server's engine, engines that only listen, and a clock that a test moves."""

    def __init__(self, folder, monkeypatch):
        self.now_s, self.timers = 1000.0, []
        loop = asyncio.get_running_loop()
        clock = SimpleNamespace(
            time=lambda: self.now_s,
            call_later=self._call_later,
            **{name: getattr(loop, name) for name in ("call_soon", "call_soon_threadsafe")},
            **{name: getattr(loop, name) for name in ("add_reader", "remove_reader")},
        )
        monkeypatch.setattr(
            remote_engine, "asyncio", SimpleNamespace(get_running_loop=lambda: clock)
        )
        self._folder, self._context = folder, zmq.Context.instance()
        self.api_server = RemoteEngine("s", folder, CODEC, patience_s=PATIENCE_S)
        self._commands = self._answers = None
        self._num_engines = 0

    def _call_later(self, wait_s, action):
        self.timers.append(Timer(self.now_s + wait_s, action))
        return self.timers[-1]

    def pass_time(self, seconds):
        self.now_s += seconds
        for timer in [timer for timer in self.timers if timer.due_s <= self.now_s]:
            self.timers.remove(timer)
            if not timer.is_cancelled:
                timer.action()

    async def follow(self):
        """Let another engine come."""
        self.close()
        self._num_engines += 1
        address = f"ipc://{self._folder / f'e{self._num_engines}'}"
        self._commands = open_socket(self._context, zmq.PULL)
        self._commands.bind(address)
        self.api_server.connect(address)
        (hello,) = await self.heard(1)
        self._answers = open_socket(self._context, zmq.PUSH)
        self._answers.connect(hello.address)
        self.say(wire.Welcome(5, {"toy": {"running": 0.0}}))
        await until(lambda: self.api_server.alive)

    def say(self, message):
        send(self._answers, wire.encode_engine_message(message))

    async def heard(self, num):
        """So many commands of the API server, once they have come."""
        found = []
        while len(found) < num:
            frames = await asyncio.to_thread(self._next)
            found.append(CODEC.decode(frames).command)
        return found

    def _next(self):
        assert self._commands.poll(60_000)
        return receive(self._commands)

    def is_silent(self):
        """Whether nothing more was said to the engine."""
        return not self._commands.poll(50)

    def close(self):
        for one in (self._commands, self._answers):
            if one is not None:
                one.close(linger=0)


@pytest.fixture
async def world(tmp_path_factory, monkeypatch):
    found = World(tmp_path_factory.mktemp("w"), monkeypatch)
    yield found
    await found.api_server.stop()
    found.close()


def request_of(name, **changes):
    return replace(toy_request(name, 4, seed=1, frames=30), **changes)


def end_of(stream):
    """What a stream ended with, None where it goes on."""
    chunks = list(stream._queue._queue)
    return chunks[-1] if chunks and chunks[-1].reason is not None else None


async def test_before_the_first_engine_nothing_is_taken_and_nothing_is_left(world):
    for continues in (False, True):
        with pytest.raises(EngineStopped):
            world.api_server.submit(request_of("a", continues=continues))
    assert world.api_server.load == {}
    world.api_server.abort("a")
    world.api_server.pause("a")
    await world.api_server.stop()
    assert world.timers == []


async def test_a_server_that_stops_ends_what_waits_for_an_engine(world):
    await world.follow()
    stream = world.api_server.submit(request_of("a"))
    await world.api_server.stop()
    assert isinstance(end_of(stream).error, EngineStopped)


async def test_each_engine_that_dies_gives_requests_the_whole_time(world):
    await world.follow()
    stream = world.api_server.submit(request_of("a"))
    world.api_server.pause("a")  # so that it outlives any number of them
    await world.heard(2)
    for _ in range(3):
        world.api_server.disconnect()
        assert world.api_server.load == {}
        world.pass_time(PATIENCE_S - 1.0)
        assert end_of(stream) is None
        await world.follow()
        (submit,) = await world.heard(1)
        assert submit.logs[0].paused
        world.pass_time(10 * PATIENCE_S)  # an engine has it
        assert end_of(stream) is None
    world.api_server.disconnect()
    world.pass_time(PATIENCE_S)
    assert isinstance(end_of(stream).error, EngineStopped)


async def test_a_request_survives_the_death_of_one_engine_and_not_of_two(world):
    await world.follow()
    stream = world.api_server.submit(request_of("a"))
    world.api_server.disconnect()
    assert end_of(stream) is None
    world.api_server.connect(f"ipc://{world._folder / 'nobody'}")
    world.api_server.disconnect()  # this engine died before it had the request
    assert end_of(stream) is None
    await world.follow()
    world.api_server.disconnect()
    assert isinstance(end_of(stream).error, EngineStopped)


async def test_without_patience_requests_end_with_their_engine(world):
    world.api_server._patience_s = 0.0
    await world.follow()
    stream = world.api_server.submit(request_of("a"))
    world.api_server.disconnect()
    assert isinstance(end_of(stream).error, EngineStopped)


async def test_after_giving_up_it_waits_as_long_for_the_engine_again(world):
    await world.follow()
    first = world.api_server.submit(request_of("a"))
    world.api_server.disconnect()
    world.api_server.give_up()
    assert isinstance(end_of(first).error, EngineStopped)
    world.pass_time(PATIENCE_S / 2)
    await world.follow()
    await world.heard(0)
    second = world.api_server.submit(request_of("b"))
    world.api_server.disconnect()
    world.pass_time(PATIENCE_S - 1.0)
    assert end_of(second) is None
    world.pass_time(1.0)
    assert isinstance(end_of(second).error, EngineStopped)


@pytest.mark.parametrize("waits", [{"continues": True}, {"awaits_engine": True}])
async def test_the_rest_of_an_answer_waits_for_an_engine_and_a_new_one_is_refused(world, waits):
    await world.follow()
    world.api_server.disconnect()
    world.pass_time(PATIENCE_S / 2)
    with pytest.raises(EngineStopped):
        world.api_server.submit(request_of("a"))
    both = [request_of("b", **waits), request_of("c")]
    with pytest.raises(EngineStopped):
        world.api_server.submit_all(both)
    rest = world.api_server.submit(request_of("d", **waits))
    world.pass_time(PATIENCE_S / 2 - 1.0)
    assert end_of(rest) is None
    world.pass_time(1.0)  # counted from the engine's death
    assert isinstance(end_of(rest).error, EngineStopped)
    with pytest.raises(EngineStopped):  # that was long enough
        world.api_server.submit(request_of("e", **waits))
    await world.follow()
    world.api_server.disconnect()
    rest = world.api_server.submit(request_of("f", **waits))
    await world.follow()
    (submit,) = await world.heard(1)
    assert [request.request_id for request in submit.requests] == ["f"]
    world.pass_time(10 * PATIENCE_S)
    assert end_of(rest) is None


async def test_a_resumed_request_gets_backpressure_if_its_reader_is_behind(world):
    await world.follow()
    streams = world.api_server.submit_all([request_of("a"), request_of("b")])
    world.api_server.set_backpressure("b", True)
    await world.heard(2)
    world.api_server.disconnect()
    await world.follow()
    commands = await world.heard(3)
    assert [type(command) for command in commands] == [wire.Submit, wire.Submit, wire.Backpressure]
    assert commands[2] == wire.Backpressure("b", True)
    assert len(streams) == 2


async def test_messages_are_acknowledged_in_groups_and_again_with_each_engine(world):
    nothing = wire.Chunks([])
    await world.follow()
    for num_sent in (ACKNOWLEDGE_EVERY - 1, 3):  # the rest is nobody's
        for _ in range(num_sent):
            world.say(nothing)
        world.say(wire.Figures({"toy": {"running": 2.0}}))
        await until(lambda: world.api_server.load == {"toy": {"running": 2.0}})
        if num_sent > 3:
            assert world.is_silent()
            await world.follow()
    assert world.is_silent()
    for _ in range(3 * ACKNOWLEDGE_EVERY - 4):
        world.say(nothing)
    acknowledged = wire.Acknowledge(ACKNOWLEDGE_EVERY)
    assert await world.heard(2) == [acknowledged] * 2
    world.say(wire.Figures({"toy": {"running": 3.0}}))
    await until(lambda: world.api_server.load == {"toy": {"running": 3.0}})
    assert world.is_silent()
    world.say(nothing)
    assert await world.heard(1) == [acknowledged]


async def test_unreadable_engine_message_fails_all_requests(world):
    await world.follow()
    streams = world.api_server.submit_all([request_of("a"), request_of("b")])
    await world.heard(1)
    send(world._answers, [b"what?"])
    assert await world.heard(2) == [wire.Abort("a"), wire.Abort("b")]
    assert all(isinstance(end_of(stream).error, InvalidMessage) for stream in streams)
