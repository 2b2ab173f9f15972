"""Engines of a cluster come, hang, die and leave; an API server follows over encrypted TCP."""

from __future__ import annotations

import asyncio

import pytest
import zmq

from izwi.engine_client.protocol import ReplicaStatus, replicas_of
from izwi.request.request import Reason
from izwi.router.options import RouterOptions
from izwi_api.serve import ray_directory, ray_members
from izwi_api.serve.ray_members import Member, Members
from izwi_api.serve.remote_engine import RemoteEngine
from izwi_api.serve.replica_router import ReplicaRouter
from izwi_api.serve.sockets import bind, connect, open_socket
from izwi_api.serve.wire import RequestCodec
from tests.engine.toy import ToyPrompt
from tests.serve.over_sockets import EngineSide, toy_engine, until
from tests.serve.test_remote_engine import endless, entries, read

HOST = "tcp://127.0.0.1"


class World:
    """Engines that listen on TCP, and one API server."""

    def __init__(self, num_places=3):
        self.codec = RequestCodec([ToyPrompt])
        self.sides = {}
        clients = [
            RemoteEngine("api-server", HOST, self.codec, patience_s=60.0, replica=number)
            for number in range(num_places)
        ]
        self.router = ReplicaRouter(clients, RouterOptions("round_robin", page_size=4))
        self.members = Members(self.router, num_places)

    def start(self, name):
        side = self.sides[name] = EngineSide(toy_engine(max_backlog=4), self.codec, publishes=True)
        side._commands.close(linger=0)
        side._commands = open_socket(zmq.Context.instance(), zmq.PULL)
        side.address = bind(side._commands, HOST)
        control, _, *rest = side._receiving._args
        side._receiving._args = control, side._commands, *rest
        side.start()
        return Member(side.address)

    async def kill(self, name):
        """End an engine as the death of its process does: it sends nothing, and is cut off."""
        side = self.sides.pop(name)
        side.lines.thread.enqueue(side.lines._owners.clear)
        await asyncio.to_thread(side.stop)

    def statuses(self):
        return [str(one.status) for one in replicas_of(self.router)]

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.router.stop()
        for side in self.sides.values():
            await asyncio.to_thread(side.stop)


async def test_engines_are_listed_only_while_they_are_members():
    async with World() as world:
        assert world.statuses() == []
        one = world.start("one")
        world.members.update({"one": one})
        await until(lambda: world.statuses() == [ReplicaStatus.READY])
        world.members.update({"one": one, "two": world.start("two")})
        await until(lambda: world.statuses() == [ReplicaStatus.READY] * 2)
        world.members.update({"two": Member(world.sides["two"].address)})
        await until(lambda: world.statuses() == [ReplicaStatus.READY])


async def test_a_request_outlives_the_engine_that_dies():
    async with World() as world:
        members = {name: world.start(name) for name in ("one", "two")}
        world.members.update(members)
        await until(lambda: world.statuses() == [ReplicaStatus.READY] * 2)
        request = endless("r", 1, 60)
        undisturbed = entries(await read(world.router.submit(request)))
        stream = world.router.submit(request)
        chunks = [await anext(stream)]
        place = next(n for n in range(3) if world.router._engines[n].runs("r"))
        names = {world.members._places[name]: name for name in members}
        await world.kill(names[place])
        await until(lambda: not world.router._engines[place].runs("r"), 15)
        chunks += [chunk async for chunk in stream]
        assert chunks[-1].reason is Reason.LENGTH
        assert entries(chunks) == undisturbed


async def test_an_engine_that_leaves_gives_its_requests_away_first():
    async with World() as world:
        members = {name: world.start(name) for name in ("one", "two")}
        world.members.update(members)
        await until(lambda: world.statuses() == [ReplicaStatus.READY] * 2)
        stream = world.router.submit(endless("r", 1, 10_000))
        await anext(stream)
        place = next(n for n in range(3) if world.router._engines[n].runs("r"))
        names = {world.members._places[name]: name for name in members}
        del members[names[place]]
        world.members.update(members)
        await until(lambda: world.statuses() == [ReplicaStatus.READY])
        assert any(engine.runs("r") for engine in world.router._engines)
        await anext(stream)
        stream.abort()


async def test_an_engine_that_hangs_gets_no_requests_until_it_responds():
    async with World() as world:
        member = world.start("one")
        world.members.update({"one": member})
        await until(lambda: world.statuses() == [ReplicaStatus.READY])
        world.members.update({"one": member._replace(is_hung=True)})
        assert world.statuses() == [ReplicaStatus.UNRESPONSIVE]
        world.members.update({"one": member})
        assert world.statuses() == [ReplicaStatus.READY]


async def test_a_lost_connection_is_made_again(monkeypatch):
    monkeypatch.setattr(ray_members, "_RETRY_S", 0.01)
    async with World() as world:
        world.members.update({"one": world.start("one")})
        await until(lambda: world.statuses() == [ReplicaStatus.READY])
        world.router.lost(world.router._engines[0])
        assert world.statuses() == [ReplicaStatus.DOWN]
        await until(lambda: world.statuses() == [ReplicaStatus.READY])


async def test_an_engine_forgets_an_api_server_whose_connection_is_lost():
    async with World() as world:
        world.members.update({"one": world.start("one")})
        await until(lambda: world.statuses() == [ReplicaStatus.READY])
        stream = world.router.submit(endless("r", 1, 10_000))
        await anext(stream)
        engine = world.sides["one"].lines._engine
        assert engine.has_work
        world.router._engines[0].disconnect()  # as the death of the API server's process
        await until(lambda: not engine.has_work)


def test_nobody_connects_without_the_key():
    context = zmq.Context.instance()
    pull, push, stranger = (open_socket(context, kind) for kind in (zmq.PULL, zmq.PUSH, zmq.PUSH))
    try:
        address = bind(pull, HOST)
        stranger.connect(address.rpartition("/")[0])
        stranger.send(b"no key")
        wrong = open_socket(context, zmq.PUSH)
        connect(wrong, address.rpartition("/")[0] + "/" + "ab" * 32)
        wrong.send(b"wrong key")
        assert not pull.poll(300)
        connect(push, address)
        push.send(b"the key")
        assert pull.poll(60_000)
        assert pull.recv() == b"the key"
        assert not pull.poll(100)
        wrong.close()
    finally:
        for one in (pull, push, stranger):
            one.close(linger=0)


def test_a_listener_hears_of_engines_that_were_published_before_it_subscribed():
    heard = []
    ray_directory.publish("d", {"a": Member("x")})
    ray_directory.subscribe("d", heard.append)
    ray_directory.publish("d", {"a": Member("x")})
    ray_directory.publish("d", {})
    assert heard == [{"a": Member("x")}, {}]


async def test_more_engines_than_places_are_refused():
    async with World(num_places=1) as world:
        with pytest.raises(RuntimeError, match="more engines than places"):
            world.members.update({"one": Member(f"{HOST}:1/{'ab' * 32}"), "two": Member("x")})
