"""What an API server does for an operator who asks the supervisor."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry, Counter

from izwi.checkpoints.hub import DownloadProgress
from izwi.errors import InvalidRequest
from izwi_api.schemas.warm_file import WarmFile, WarmVoice
from izwi_api.serve.control import Control, Operate, Operated
from izwi_api.serve.operations import Operations
from izwi_api.serve.operator_socket import LoadServed, ReadMetrics, UnloadServed, WarmReplicas
from izwi_api.settings import Settings
from tests.api.conftest import FakeEngine, FakeRegistry, FakeSpeech
from tests.api.services.test_warming import services_of


class Changes:
    """Records loads and unloads."""

    def __init__(self):
        self.asked = []

    def load(self, name):
        self.asked.append(("load", name))
        return SimpleNamespace(name=name, follow=lambda: self.follow("ready"))

    def unload(self, name):
        if name != "tts":
            raise InvalidRequest(f"no model {name!r}")
        self.asked.append(("unload", name))
        return SimpleNamespace(name=name, follow=lambda: self.follow("unloaded"))

    async def follow(self, last):
        yield DownloadProgress("resolving")
        yield DownloadProgress(last)


@pytest.fixture
def world(tmp_path):
    ours, theirs = socket.socketpair()
    services = services_of(FakeEngine(), FakeRegistry(tts=FakeSpeech()), tmp_path)
    registry = CollectorRegistry()
    Counter("izwi_asked", "Asked.", registry=registry).inc(3)
    found = SimpleNamespace(supervisor=Control(ours), changes=Changes(), engines=[])
    found.services = SimpleNamespace(
        engine=services.engine,
        registry=services.registry,
        voices=services.voices,
        settings=Settings(home=tmp_path, manage_models=True),
    )
    state = SimpleNamespace(
        metrics=SimpleNamespace(registry=registry),
        changes=found.changes,
        services=found.services,
    )
    for number in range(2):
        engine = FakeEngine()
        engine.replica = number
        found.engines.append(engine)
    found.operations = Operations(Control(theirs), state, lambda: found.engines)
    yield found
    ours.close()
    theirs.close()


async def carried_out(world, command):
    world.operations.start(Operate(5, command))
    await asyncio.gather(*world.operations._tasks)
    (message,) = world.supervisor.receive()
    assert message.number == 5
    return message


async def test_metrics_are_returned(world):
    assert "izwi_asked_total 3.0" in (await carried_out(world, ReadMetrics())).text


async def test_voices_are_computed_on_every_engine_or_on_one(world):
    wanted = WarmFile(voice=(WarmVoice("tts", "Bob"), WarmVoice("tts", "nobody")))
    warmed = await carried_out(world, WarmReplicas(wanted))
    assert warmed.text.splitlines() == ["replica 0: 1 of 2", "replica 1: 1 of 2"]
    assert [one.num_submitted for one in world.engines] == [1, 1]
    await carried_out(world, WarmReplicas(wanted, 1))
    assert [one.num_submitted for one in world.engines] == [1, 2]
    assert (await carried_out(world, WarmReplicas(wanted, 7))).error == "no such replica is running"


async def test_models_come_and_go_if_the_server_manages_them(world):
    assert await carried_out(world, LoadServed("tts")) == Operated(5, "tts: ready")
    assert await carried_out(world, UnloadServed("tts")) == Operated(5, "tts: unloaded")
    assert await carried_out(world, UnloadServed("none")) == Operated(5, "", "no model 'none'")
    world.services.settings = replace(world.services.settings, manage_models=False)
    for command in (LoadServed("tts"), UnloadServed("tts")):
        assert "--manage-models" in (await carried_out(world, command)).error
    assert world.changes.asked == [("load", "tts"), ("unload", "tts")]


async def test_a_fault_of_the_server_is_answered_too(world):
    world.changes.load = lambda _: 1 / 0
    world.operations.start(Operate(5, LoadServed("tts")))
    await asyncio.gather(*world.operations._tasks, return_exceptions=True)
    (message,) = world.supervisor.receive()
    assert "log says why" in message.error
