"""An API server without supervisor and engine: its messages and actions."""

from __future__ import annotations

import asyncio
import logging
import socket
from types import SimpleNamespace

import pytest
import uvicorn
from prometheus_client import CollectorRegistry

from izwi.checkpoints.registry import Registry
from izwi.host.allocator import IDLE_S
from izwi.router.breaker import CircuitEvent
from izwi_api.http.metrics import Restarts
from izwi_api.http.server import Server
from izwi_api.serve import api_server_process
from izwi_api.serve.api_server_process import ApiServer, Targets
from izwi_api.serve.changing_models import ChangingModels
from izwi_api.serve.control import (
    Alive,
    CircuitChanged,
    Control,
    Drained,
    EngineAccepts,
    EngineDraining,
    EngineGone,
    EngineUp,
    Operate,
    Ready,
    Restarted,
)
from izwi_api.serve.listen_sockets import url_of
from izwi_api.serve.operator_socket import ReadMetrics
from izwi_api.serve.process_log import log_memory


class Engine:
    """Records its calls."""

    def __init__(self):
        self.notes = []

    def connect(self, replica, address):
        self.notes.append(address if replica == 0 else (replica, address))

    def disconnect(self, replica):
        self.notes.append("disconnect" if replica == 0 else ("disconnect", replica))

    def drain(self, replica, *, is_hung):
        self.notes.append(("drain", replica, is_hung))

    def accept(self, replica):
        self.notes.append(("accept", replica))

    def change_circuit(self, replica, model, event):
        self.notes.append(("circuit", replica, model, event))

    def give_up(self):
        self.notes.append("give up")


@pytest.fixture
async def world(monkeypatch):
    ours, theirs = socket.socketpair()
    found = SimpleNamespace(supervisor=Control(ours), engine=Engine(), trims=[], now_s=1000.0)
    found.restarts = Restarts()
    found.drain = SimpleNamespace(is_begun=False, num_running=0)
    clock = SimpleNamespace(monotonic=lambda: found.now_s)
    monkeypatch.setattr(api_server_process, "time", clock)
    monkeypatch.setattr(api_server_process, "trim", lambda: found.trims.append(found.now_s))
    control = Control(theirs)
    config = uvicorn.Config(lambda: None)
    found.models = ChangingModels(control, Registry(), found.engine)
    found.operations = SimpleNamespace(start=lambda message: found.engine.notes.append(message))
    targets = Targets(found.engine, found.models, found.restarts, found.operations)
    found.server = ApiServer(config, found.drain, 1.0, control, targets)
    yield found
    asyncio.get_running_loop().remove_reader(control.fileno())
    control.close()
    ours.close()


async def turns(num=5):
    for _ in range(num):
        await asyncio.sleep(0)


async def test_it_learns_of_the_engine_once_it_listens(world, monkeypatch):
    begun = []

    async def listen(self, sockets=None):
        begun.append(sockets)

    monkeypatch.setattr(Server, "startup", listen)
    world.supervisor.send(EngineUp("ipc://one"))
    await turns()
    assert world.engine.notes == []
    await world.server.startup(["listening"])
    assert begun == [["listening"]]
    assert world.supervisor.receive() == [Ready()]
    await turns()
    assert world.engine.notes == ["ipc://one"]
    world.supervisor.send(EngineGone())
    world.supervisor.send(EngineUp("ipc://two"))
    await turns()
    assert world.engine.notes == ["ipc://one", "disconnect", "ipc://two"]
    assert not world.server.should_exit


async def test_its_metrics_count_what_the_supervisor_has_restarted(world):
    registry = CollectorRegistry()
    registry.register(world.restarts)
    world.supervisor.send(Restarted({0: 0, 1: 3}, 2))
    world.server._read_messages()

    def count(process, replica):
        labels = {"process": process, "replica": replica}
        return registry.get_sample_value("izwi_restarts_total", labels)

    assert [count("engine", "0"), count("engine", "1"), count("api_server", "")] == [0, 3, 2]


async def test_it_reports_that_the_requests_of_a_replica_have_moved(world):
    for message in (
        EngineUp("ipc://one", 1),
        EngineDraining(1),
        EngineAccepts(1),
        EngineDraining(1, is_hung=True),
        EngineGone(1),
    ):
        world.supervisor.send(message)
    world.server._read_messages()
    assert world.engine.notes == [
        (1, "ipc://one"),
        ("drain", 1, False),
        ("accept", 1),
        ("drain", 1, True),
        ("disconnect", 1),
    ]
    assert world.supervisor.receive() == [Drained(1), Drained(1)]


async def test_it_learns_what_others_have_seen_of_an_engine(world):
    world.supervisor.send(CircuitChanged(1, "tts", CircuitEvent.PROBED))
    world.server._read_messages()
    assert world.engine.notes == [("circuit", 1, "tts", CircuitEvent.PROBED)]


async def test_it_carries_out_what_an_operator_asks_the_supervisor(world):
    world.supervisor.send(Operate(3, ReadMetrics()))
    world.server._read_messages()
    assert world.engine.notes == [Operate(3, ReadMetrics())]


@pytest.mark.parametrize("is_begun", [False, True])
async def test_requests_wait_for_another_engine_unless_the_server_leaves(world, is_begun):
    world.drain.is_begun = is_begun
    world.supervisor.send(EngineGone())
    world.server._read_messages()
    assert world.engine.notes == ["disconnect", *["give up"] * is_begun]


async def test_without_its_supervisor_it_ends_at_once(world, monkeypatch):
    timers = []

    class Timer:
        def __init__(self, wait_s, action, arguments):
            timers.append([wait_s, action, arguments])

        def start(self):
            timers[-1].append("started")

    monkeypatch.setattr(api_server_process, "threading", SimpleNamespace(Timer=Timer))
    monkeypatch.setattr(api_server_process, "os", SimpleNamespace(_exit="the end"))
    asyncio.get_running_loop().add_reader(
        world.server._control.fileno(), world.server._read_messages
    )
    world.supervisor.close()
    await turns(20)
    assert (world.server.should_exit, world.server.force_exit) == (True, True)
    # what does not let go by itself; heard of once
    assert timers == [[api_server_process._CUT_OFF_S, "the end", (1,), "started"]]


async def test_it_says_that_it_works_and_is_asked_whether_it_is_time_to_leave(world):
    assert await world.server.on_tick(1) is False
    assert world.supervisor.receive() == [Alive()]
    world.server.should_exit = True
    assert await world.server.on_tick(2) is True


async def test_memory_is_given_back_once_after_work_and_never_during_it(world):
    async def tick(after_s):
        world.now_s += after_s
        await world.server.on_tick(1)
        return len(world.trims)

    state = world.server.server_state
    assert await tick(10 * IDLE_S) == 0  # nothing was done yet
    state.total_requests += 1
    assert await tick(1.0) == 0
    assert await tick(IDLE_S) == 0
    assert await tick(0.01) == 1
    assert await tick(10 * IDLE_S) == 1  # nothing since
    state.total_requests += 1
    world.drain.num_running = 1
    for _ in range(4):
        assert await tick(IDLE_S) == 1
    world.drain.num_running = 0
    assert await tick(IDLE_S + 0.01) == 2
    state.total_requests += 1  # a request between two looks
    assert await tick(100.0) == 2
    assert await tick(IDLE_S + 0.01) == 3


@pytest.mark.parametrize(
    ("host", "tls", "url"),
    [
        ("", None, "http://0.0.0.0:80"),
        ("::1", None, "http://[::1]:80"),
        ("example.org", object(), "https://example.org:80"),
    ],
)
def test_the_address_in_the_log_is_where_it_listens(host, tls, url):
    assert url_of(host, [SimpleNamespace(getsockname=lambda: ("any", 80))], tls) == url


def test_the_memory_of_keys_and_values_is_logged(caplog):
    caplog.set_level(logging.INFO)
    log_memory({"tiny": {"pages": 1024.0, "page_bytes": 4096.0, "shared_bytes": 0.0}})
    assert caplog.messages == ["tiny: 1024 pages of 4 KiB for keys and values, 4 MiB"]
