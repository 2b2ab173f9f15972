"""Several engines behind one client: requests of one that fails go on at another, unchanged."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from izwi.cache.radix import page_chain
from izwi.engine_client.protocol import ReplicaStatus, replicas_of
from izwi.errors import EngineStopped, InvalidRequest, Overloaded
from izwi.request.request import Reason
from izwi.router.options import RouterOptions
from izwi_api.serve.remote_engine import RemoteEngine
from izwi_api.serve.replica_router import ReplicaRouter
from izwi_api.serve.wire import RequestCodec
from tests.engine.toy import ToyPrompt, toy_request
from tests.serve.over_sockets import EngineSide, toy_engine, until
from tests.serve.test_engine_restart import given, is_held, is_paused
from tests.serve.test_remote_engine import endless, entries, read


class Replicas:
    """Engines, and one API server that uses them all."""

    def __init__(self, num=2, *, options=None, patience_s=60.0, num_needed=1, **settings):
        self.codec, self.settings = RequestCodec([ToyPrompt]), settings
        self.folder = tempfile.TemporaryDirectory(prefix="izwi-")
        self.sides = [self._side() for _ in range(num)]
        self.all_sides = list(self.sides)
        engines = [
            RemoteEngine(
                *("api-server-1", Path(self.folder.name), self.codec),
                patience_s=patience_s,
                replica=number,
            )
            for number in range(num)
        ]
        self.engines = engines
        options = options or RouterOptions("round_robin", page_size=4)
        self.router = ReplicaRouter(engines, options, num_needed)

    def _side(self):
        return EngineSide(toy_engine(**self.settings), self.codec, publishes=True)

    async def __aenter__(self):
        for number, side in enumerate(self.sides):
            side.start()
            self.router.connect(number, side.address)
        await until(lambda: all(engine.alive for engine in self.engines))
        return self

    async def __aexit__(self, *_):
        await self.router.stop()
        for side in self.all_sides:
            await asyncio.to_thread(side.stop)
        self.folder.cleanup()

    def die(self, number):
        """Messages of the engine are lost from now on."""
        self.router.disconnect(number)

    async def restart(self, number):
        self.sides[number] = self._side()
        self.all_sides.append(self.sides[number])
        self.sides[number].start()
        self.router.connect(number, self.sides[number].address)
        await until(lambda: self.engines[number].alive)

    def running(self, number):
        return set(self.engines[number]._resumables)

    def where(self, name):
        (number,) = [n for n, engine in enumerate(self.engines) if engine.runs(name)]
        return number


async def undisturbed(requests):
    async with Replicas(1) as world:
        return await asyncio.gather(*map(read, world.router.submit_all(requests)))


def counts(world):
    return [(load.num_in_flight, load.work) for load in world.router._loads]


# -- dying, hanging, draining --------------------------------------------------------------------
def lose(world, number, how):
    """Disturb an engine; returns what makes it whole again."""
    if how == "dies":
        world.die(number)
    elif how == "hangs":
        loop = asyncio.get_running_loop()
        socket = world.engines[number]._engine_messages
        loop.remove_reader(socket.fileno())
        world.router.drain(number, is_hung=True)
        loop.add_reader(socket.fileno(), world.engines[number]._read)
        loop.call_soon(world.engines[number]._read)  # it wakes: what it had sent is late
    else:
        world.router.drain(number)


@pytest.mark.parametrize("how", ["dies", "hangs", "drains"])
async def test_streams_of_a_lost_engine_go_on_at_another_unchanged(how):
    requests = [endless(f"s{n}", n, 40) for n in range(12)]
    expected = [given(chunks) for chunks in await undisturbed(requests)]
    async with Replicas() as world:
        streams = [world.router.submit(request) for request in requests]
        firsts = [[await anext(stream)] for stream in streams]
        moved = world.running(0)
        assert len(moved) >= 3
        lose(world, 0, how)
        assert world.running(0) == set()
        assert moved <= world.running(1)  # at once
        rests = await asyncio.wait_for(asyncio.gather(*map(read, streams)), 60)
        heard = [given(first + rest) for first, rest in zip(firsts, rests, strict=True)]
        assert heard == expected
        assert counts(world) == [(0, 0.0), (0, 0.0)]
        if how != "dies":  # it has let go of them
            await until(lambda: not world.sides[0].lines._owners)
            await until(lambda: not world.engines[0]._moved)


async def test_a_stream_that_moves_back_and_forth_is_unchanged():
    """Late output of an engine that had the request before is not taken for new output."""
    (expected,) = await undisturbed([endless("a", 3, 100)])
    async with Replicas() as world:
        stream = world.router.submit(endless("a", 3, 100))
        chunks = []
        for _ in range(6):
            chunks.append(await anext(stream))
            for _ in range(2):  # it is back before the engine's last output of the first time
                number = world.where("a")
                world.router.drain(number)
                world.router.accept(number)
                assert world.where("a") == 1 - number
        chunks += await asyncio.wait_for(read(stream), 60)
        assert given(chunks) == given(expected)


async def test_the_last_chunk_says_when_its_request_moved():
    async with Replicas() as world:
        now_s = asyncio.get_running_loop().time
        before_s = now_s()
        stream = world.router.submit(endless("a", 3, 100))
        submitted_s = now_s()
        first = await anext(stream)
        drained_s = now_s()
        world.router.drain(world.where("a"))
        moved_s = now_s()
        last = (await asyncio.wait_for(read(stream), 60))[-1]
    assert not first.timing.is_resumed
    assert last.timing.is_resumed
    ((found_s, lasted_s),) = [rest for event, *rest in last.timing.events if event == "moved"]
    assert drained_s - submitted_s <= found_s <= moved_s - before_s
    assert lasted_s == 0.0
    assert last.timing.admitted_s > found_s  # it counts from the first submission, too


async def test_written_text_a_pause_and_backpressure_move_along():
    request = toy_request("a", 4, seed=1, frames=30, open_input=True)
    unread = endless("b", 4, 60)
    logs = []
    for moves in (False, True):
        async with Replicas(max_backlog=6) as world:
            stream, slow = world.router.submit(request), world.router.submit(unread)
            stream.write([3, 1, 4], False)
            chunks = [await anext(stream)]
            stream.pause()
            stream.write([1, 5], False)
            await until(lambda: world.engines[world.where("b")]._resumables["b"].backpressured)
            if moves:
                for _ in range(2):  # wherever they are, they move
                    for number in range(2):
                        world.router.drain(number)
                        world.router.accept(number)
                side = world.sides[world.where("a")]
                await until(lambda: is_paused(side, "a"))  # noqa: B023
                side = world.sides[world.where("b")]
                await until(lambda: is_held(side, "b"))  # noqa: B023
            stream.resume()
            stream.write([9, 2, 6], True)
            rest = await asyncio.wait_for(asyncio.gather(read(stream), read(slow)), 60)
            logs.append((entries(chunks + rest[0]), entries(rest[1])))
    assert logs[0] == logs[1]
    assert len(logs[0][1]) == 60


async def test_with_no_engine_left_requests_wait_for_the_first_that_comes():
    (expected,) = await undisturbed([endless("a", 3, 60)])
    async with Replicas() as world:
        stream = world.router.submit(endless("a", 3, 60))
        chunks = [await anext(stream)]
        first = world.where("a")
        world.die(1 - first)
        world.die(first)
        assert not world.router.alive
        with pytest.raises(EngineStopped):
            world.router.submit(endless("b", 3, 60))
        late = world.router.submit(replace(endless("c", 3, 60), awaits_engine=True))
        await world.restart(1 - first)
        chunks += await asyncio.wait_for(read(stream), 60)
        assert given(chunks) == given(expected)
        assert entries(await asyncio.wait_for(read(late), 60)) == entries(expected)


@pytest.mark.parametrize("how", ["dies", "hangs"])
async def test_a_request_that_two_engines_died_of_ends_and_the_third_engine_serves(how):
    async with Replicas(3) as world:
        stream = world.router.submit(endless("a", 1, 4000))
        await anext(stream)
        first = world.where("a")
        lose(world, first, how)
        assert world.where("a") != first
        world.die(world.where("a"))
        assert isinstance((await asyncio.wait_for(read(stream), 60))[-1].error, EngineStopped)
        other = await asyncio.wait_for(read(world.router.submit(endless("b", 2, 9))), 60)
        assert other[-1].reason is Reason.LENGTH


async def test_the_last_engine_that_accepts_keeps_its_requests_when_it_drains():
    async with Replicas() as world:
        world.router.drain(1)
        stream = world.router.submit(endless("a", 1, 60))
        await anext(stream)
        world.router.drain(0)
        assert world.where("a") == 0
        with pytest.raises(EngineStopped):
            world.router.submit(endless("b", 1, 60))
        world.router.accept(1)
        assert world.where("a") == 1
        assert (await asyncio.wait_for(read(stream), 60))[-1].reason is Reason.LENGTH


async def test_a_request_whose_reader_left_does_not_move():
    async with Replicas() as world:
        streams = [world.router.submit(replace(endless(n, 1, 450))) for n in "ab"]
        for stream in streams:
            await anext(stream)
        number = world.where("a")
        streams[0].abort()
        world.die(number)
        assert world.running(1 - number) == {"b"}
        assert (await read(streams[0]))[-1].reason is Reason.ABORTED
        streams[1].abort()
        world.router.drain(1 - number)
        del streams[1]  # dropped by its reader, wherever it is
        await until(lambda: not world.running(1 - number))


# -- placing -------------------------------------------------------------------------------------
async def test_a_full_queue_sends_requests_to_the_other_engine_and_two_refuse():
    async with Replicas(options=RouterOptions("fcfs", 4), max_running=2, max_waiting=2) as world:
        world.router._update_figures = lambda: None  # the router learns of no queue
        running = []
        for n in range(2):
            running.append(world.router.submit(endless(f"a{n}", n, 400)))
            await anext(running[-1])
        running += [world.router.submit(endless(f"a{n}", n, 400)) for n in (2, 3)]
        assert world.running(0) == {"a0", "a1", "a2", "a3"}
        group = world.router.submit_all([endless(f"b{n}", n, 40) for n in range(2)])
        await until(lambda: world.running(1) == {"b0", "b1"})
        ends = await asyncio.wait_for(asyncio.gather(*map(read, group)), 60)
        assert [chunks[-1].reason for chunks in ends] == [Reason.LENGTH] * 2
        world.router.drain(1)  # now there is no other
        refused = await asyncio.wait_for(read(world.router.submit(endless("c", 1, 40))), 60)
        assert isinstance(refused[-1].error, Overloaded)
        world.router.accept(1)
        filled = []
        for n in range(2):
            filled.append(world.router.submit(endless(f"d{n}", n, 400)))
            await anext(filled[-1])
        filled += [world.router.submit(endless(f"d{n}", n, 400)) for n in (2, 3)]
        await until(lambda: len(world.running(1)) == 4)
        refused = await asyncio.wait_for(read(world.router.submit(endless("e", 1, 40))), 60)
        assert isinstance(refused[-1].error, Overloaded)
        for stream in running + filled:
            stream.abort()
        await until(lambda: counts(world) == [(0, 0.0)] * 2)


async def test_streams_that_play_move_to_a_full_engine():
    """A full queue refuses what is new, and not the rest of an answer."""
    requests = [endless(f"a{n}", n, 60) for n in range(6)]
    expected = [entries(chunks) for chunks in await undisturbed(requests)]
    async with Replicas(max_running=3, max_waiting=1) as world:
        streams, firsts = [], []
        for request in requests:
            streams.append(world.router.submit(request))
            firsts.append(await anext(streams[-1]))
        world.die(0)
        rests = await asyncio.wait_for(asyncio.gather(*map(read, streams)), 60)
        heard = [entries([f, *rest]) for f, rest in zip(firsts, rests, strict=True)]
        assert heard == expected


async def test_a_conversation_goes_to_the_engine_that_holds_its_prefix():
    """Also from another API server, which learns of the prefix from the engine."""
    options = RouterOptions("prefix", page_size=4)
    history = ToyPrompt(tuple(range(1, 17)))
    async with Replicas(3, options=options) as world:
        first = replace(endless("a", 1, 5), prompt=history)
        number = 2
        await asyncio.wait_for(read(world.engines[number].submit(first)), 60)
        chain = page_chain(list(range(1, 17)), 4)
        prefixes = [load.prefixes for load in world.router._loads]
        await until(lambda: prefixes[number]._published.get("toy"))
        await until(lambda: set(chain) <= prefixes[number]._published["toy"])
        # it may say so before it says that the request has ended
        await until(lambda: not world.engines[number].load["toy"]["running"])
        for one in prefixes:
            one._placed.clear()  # as in an API server that has placed nothing
        turn = replace(endless("b", 1, 5), prompt=ToyPrompt((*range(1, 17), 30, 31)))
        stream = world.router.submit(turn)
        assert world.where("b") == number
        await asyncio.wait_for(read(stream), 60)
        world.die(number)
        assert prefixes[number].num_known("toy", chain) == 0


async def test_requests_of_a_model_that_one_engine_serves_wait_for_that_engine():
    async with Replicas() as world:
        for engine, names in zip(world.engines, (["toy", "asr"], ["toy"]), strict=True):
            engine.load = dict.fromkeys(names, engine.load["toy"])
            world.router.welcomed(engine)
        assert set(world.router.load) == {"toy", "asr"}
        for number in range(2):  # though engines take turns
            request = replace(endless(f"a{number}", 1, 5), model="asr")
            assert world.router._placement.choose([request]) == 0
            world.router._placement.place_request(0, request)
        moves = world.router.submit(endless("moves", 1, 60))
        world.die(0)
        assert world.where("moves") == 1
        asked = replace(endless("stays", 1, 5), model="asr", awaits_engine=True)
        stays = world.router.submit(asked)
        assert world.where("stays") == 0
        world.router.welcomed(world.engines[1])
        assert world.where("stays") == 0
        with pytest.raises(EngineStopped):
            world.router.submit(replace(asked, request_id="other", awaits_engine=False))
        assert (await asyncio.wait_for(read(moves), 60))[-1].reason is Reason.LENGTH
        stays.abort()


async def test_limits_of_requests_in_flight_refuse_before_anything_is_sent():
    options = RouterOptions("least_load", 4, max_in_flight=3)
    async with Replicas(options=options) as world:
        streams = [world.router.submit(endless(f"a{n}", n, 200)) for n in range(3)]
        with pytest.raises(Overloaded, match="3 requests are in flight"):
            world.router.submit(endless("b", 1, 5))
        streams[0].abort()
        await read(streams[0])
        await until(lambda: sum(load.num_in_flight for load in world.router._loads) == 2)
        await until(lambda: sum(load.num_elsewhere for load in world.router._loads) == 0)


async def test_waits_for_first_outputs_are_learned_and_limit_what_is_accepted():
    options = RouterOptions("least_load", 4, max_wait_s=60.0)
    async with Replicas(1, options=options) as world:
        for number in range(10):
            await read(world.router.submit(endless(f"a{number}", number, 3)))
        (known,) = (load.first_outputs["toy"] for load in world.router._loads)
        assert 0.0 < known.predict_s(1.0, time.monotonic()) < 60.0
        paused = world.router.submit(endless("paused", 1, 200))
        paused.pause()
        assert not known._pending, "its caller may pause it for long"
        paused.abort()
        stays = world.router.submit(endless("stays", 1, 200))
        async with stays:
            await anext(stays)
            # as if all others had waited for long
            for number in range(300):
                known.place(f"slow-{number}", 0.0, time.monotonic() - 90.0)
                known.come(f"slow-{number}", time.monotonic())
            with pytest.raises(Overloaded, match="--max-wait-ms") as refused:
                world.router.submit(endless("b", 1, 5))
            assert 30 <= refused.value.retry_after_s <= 90
            assert not any(engine.runs("b") for engine in world.engines)


async def test_an_id_that_runs_on_another_engine_is_refused():
    async with Replicas() as world:
        stream = world.router.submit(endless("same", 1, 100))
        with pytest.raises(InvalidRequest, match="'same' is running already"):
            world.router.submit(endless("same", 1, 100))
        assert (await asyncio.wait_for(read(stream), 60))[-1].reason is Reason.LENGTH


async def test_every_engine_is_reported_and_readiness_needs_enough_of_them():
    async with Replicas(3, num_needed=2) as world:
        assert world.router.alive
        world.router.drain(0, is_hung=True)
        assert replicas_of(world.router)[0].status is ReplicaStatus.UNRESPONSIVE
        world.router.accept(0)
        assert replicas_of(world.router)[0].status is ReplicaStatus.READY
        world.router.drain(0)
        world.die(2)
        reports = replicas_of(world.router)
        assert [report.status for report in reports] == [
            ReplicaStatus.DRAINED,
            ReplicaStatus.READY,
            ReplicaStatus.DOWN,
        ]
        assert [bool(report.load) for report in reports] == [True, True, False]
        assert not world.router.alive
        await world.restart(2)
        assert world.router.alive
        assert set(world.router.load) == {"toy"}
    async with Replicas(1) as world:
        assert replicas_of(world.router) == ()


async def test_each_engine_that_starts_is_reported_also_one_that_replaces_another():
    world, started = Replicas(), []
    world.router.on_start(started.append)
    async with world:
        assert sorted(engine.replica for engine in started) == [0, 1]
        world.die(1)
        await world.restart(1)
        assert [engine.replica for engine in started[2:]] == [1]
