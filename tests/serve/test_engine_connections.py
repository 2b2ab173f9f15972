"""The engine's side of its connections to API servers, without an engine and without sockets."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import numpy as np
import pytest
import zmq
from msgspec.structs import replace

from izwi.request.correlation import Correlation
from izwi.request.request import Chunk, Reason
from izwi_api.serve import engine_process, wire
from izwi_api.serve.control import BEAT_S, ApiServerGone, Control
from izwi_api.serve.engine_process import MAX_UNACKNOWLEDGED, ApiServerConnections, pass_on
from izwi_api.serve.wire import RequestCodec
from tests.engine.toy import ToyPrompt, toy_request

CODEC = RequestCodec([ToyPrompt])
IDLE, BUSY = {"toy": {"running": 0.0}}, {"toy": {"running": 2.0}}


class Engine:
    """Records its calls."""

    def __init__(self):
        self.config = SimpleNamespace(max_backlog=7)
        self.load, self.has_work = IDLE, False
        self.backpressured = {}

    def set_backpressure(self, request_id, backpressured):
        self.backpressured[request_id] = backpressured

    def submit(self, request, log):
        pass

    def unread_adapters(self, requests):
        return []

    def abort(self, request_id):
        return [Chunk(request_id, np.zeros((0, 0), np.int64), reason=Reason.ABORTED)]


class Socket:
    """Keeps what is sent over it."""

    def __init__(self):
        self.messages = []

    def connect(self, address):
        pass

    def close(self):
        pass


class World:
    def __init__(self, monkeypatch):
        self.now_s, self.engine = 100.0, Engine()
        monkeypatch.setattr(engine_process, "open_socket", lambda *_: Socket())
        monkeypatch.setattr(engine_process, "send", lambda to, message: to.messages.append(message))
        monkeypatch.setattr(engine_process, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        self.connections = ApiServerConnections(self.engine, CODEC, None)

    def receive(self, frames):
        self.connections.receive(frames)
        self.run()

    def run(self):
        """Run on this thread what is queued for the step thread."""
        commands = self.connections.thread._commands
        while commands:
            commands.popleft()()

    def say(self, api_server, *commands):
        for command in commands:
            self.receive(wire.encode_command(api_server, command))

    def submit(self, api_server, *names):
        self.receive(CODEC.submit(api_server, [toy_request(n, 4, 1, 9) for n in names]))

    def heard(self, api_server):
        """Messages to an API server since the last call."""
        messages = self.connections._lines[api_server].socket.messages
        found = [wire.decode_engine_message(frames) for frames in messages]
        messages.clear()
        return found

    def step(self, *names, seconds=1.0):
        """Send a chunk for each of some requests, and end the step."""
        entries = np.ones((1, 3), np.int64)
        self.connections.deliver([Chunk(name, entries) for name in names])
        self.now_s += seconds
        self.connections.stepped()


@pytest.fixture
def world(monkeypatch):
    found = World(monkeypatch)
    found.say("s", wire.Hello("ipc://s"))
    return found


def test_an_api_server_is_welcomed_with_figures_and_gets_others_when_they_change(world):
    assert world.heard("s") == [wire.Welcome(7, IDLE)]
    world.step()
    assert world.heard("s") == []  # it has these
    world.engine.load = BUSY
    world.step()
    world.step()
    assert world.heard("s") == [wire.Figures(BUSY)]
    world.say("t", wire.Hello("ipc://t"))
    world.engine.load = IDLE
    world.step()
    assert world.heard("s") == [wire.Figures(IDLE)]
    assert world.heard("t") == [wire.Welcome(7, BUSY), wire.Figures(IDLE)]


def test_figures_are_sent_now_and_then_during_work_and_at_once_when_it_ends(world):
    world.heard("s")
    world.engine.has_work, world.engine.load = True, BUSY
    world.step()
    assert world.heard("s") == [wire.Figures(BUSY)]
    world.engine.load = {"toy": {"running": 1.0}}
    world.step(seconds=0.01)
    assert world.heard("s") == []
    world.step(seconds=0.2)
    assert world.heard("s") == [wire.Figures(world.engine.load)]
    world.engine.has_work, world.engine.load = False, IDLE
    world.step(seconds=0.01)
    assert world.heard("s") == [wire.Figures(IDLE)]


def test_an_api_server_that_reads_nothing_is_behind_until_it_has_read_half(world):
    world.submit("s", "a", "b")
    world.say("s", wire.Backpressure("b", True))
    world.heard("s")
    for _ in range(MAX_UNACKNOWLEDGED - 1):
        world.step("a")
    assert world.engine.backpressured == {"b": True}
    world.step("a")
    assert world.engine.backpressured == {"a": True, "b": True}
    assert len(world.heard("s")) == MAX_UNACKNOWLEDGED
    world.engine.load = BUSY
    world.step()
    assert world.heard("s") == []  # figures would only add to what it has not read
    world.say("s", wire.Acknowledge(MAX_UNACKNOWLEDGED // 2 - 1))
    assert world.engine.backpressured["a"]
    world.say("s", wire.Backpressure("a", False))  # its reader is not behind; the server still is
    assert world.engine.backpressured["a"]
    world.say("s", wire.Acknowledge(1))
    assert world.engine.backpressured == {"a": False, "b": True}
    world.step()
    assert world.heard("s") == [wire.Figures(BUSY)]


def test_other_api_servers_are_not_behind_with_one_that_is(world):
    world.say("t", wire.Hello("ipc://t"))
    world.submit("s", "a")
    world.submit("t", "b")
    for _ in range(MAX_UNACKNOWLEDGED):
        world.step("a")
    world.step("b")
    assert world.engine.backpressured == {"a": True}


def test_log_lines_of_a_request_name_the_call_that_it_is_part_of(world, caplog):
    calls = {"a": Correlation("call-1"), "b": Correlation("call-2"), "c": None}
    requests = [replace(toy_request(n, 4, 1, 9), correlation=call) for n, call in calls.items()]
    world.receive(CODEC.submit("s", requests))
    nothing = np.zeros((0, 0), np.int64)
    with caplog.at_level("DEBUG", engine_process.logger.name):
        failed = Chunk("a", nothing, reason=Reason.ERROR, error=RuntimeError("broken"))
        world.connections.deliver([failed, *(Chunk(n, nothing, reason=Reason.STOP) for n in "bc")])
    named = [(record.levelname, record.correlation) for record in caplog.records]
    assert named == [("ERROR", calls["a"]), ("DEBUG", calls["b"]), ("DEBUG", None)]
    assert not world.connections._calls, "what has ended is forgotten"


def test_requests_of_an_api_server_that_died_end_and_its_late_commands_do_nothing(world):
    world.say("t", wire.Hello("ipc://t"))
    world.submit("s", "a")
    world.submit("t", "b")
    world.connections.forget("s")
    world.run()
    assert set(world.connections._owners) == {"b"}
    world.submit("s", "c")
    assert set(world.connections._owners) == {"b"}


@pytest.mark.parametrize(
    ("alive", "busy_s", "beats"),
    [(True, 0.0, True), (True, BEAT_S, False), (False, 0.0, False)],
)
def test_heartbeats_stop_with_the_step_thread(alive, busy_s, beats, monkeypatch):
    ours, theirs = (Control(end) for end in socket.socketpair())
    commands = zmq.Context.instance().socket(zmq.PULL)
    num_beats, gone = [], []
    monkeypatch.setattr(theirs, "beat", lambda: num_beats.append(1))
    lines = SimpleNamespace(
        thread=SimpleNamespace(alive=alive, busy_s=busy_s), forget=gone.append, receive=None
    )
    ours.send(ApiServerGone("s"))
    ours.finish()
    pass_on(theirs, commands, lines, None)
    assert bool(num_beats) == beats
    assert gone == ["s"]
    commands.close()
    ours.close()
    theirs.close()
