"""The supervisor with several engines, in virtual time: who is seen what, and what is replaced."""

from __future__ import annotations

import signal
import socket
import stat
import tempfile
from functools import partial
from pathlib import Path

import msgspec
import pytest

from izwi.errors import EngineStopped, IzwiError
from izwi.router.breaker import CircuitEvent
from izwi_api.serve.control import (
    ApiServerGone,
    CircuitChanged,
    Drained,
    EngineAccepts,
    EngineDraining,
    EngineGone,
    EngineUp,
    Failed,
    Operate,
    Operated,
    Ready,
    Restarted,
)
from izwi_api.serve.operator_socket import (
    ListReplicas,
    LoadServed,
    Report,
    UnloadServed,
    ask_supervisor,
    socket_path,
)
from izwi_api.serve.options import ReplicaOptions
from tests.serve.virtual_processes import World

TWO = ReplicaOptions(("cuda:0", "cuda:1"))


class Replicated(World):
    """A supervisor of several engines, and an operator; all processes send heartbeats."""

    def __init__(self, monkeypatch, **options):
        super().__init__(monkeypatch, **{"replicas": TWO, **options})
        self.silent_s = {}  # engine's number in order of starts -> when it stops sending heartbeats
        self.drains_after_s = 0.1
        self.reports = []
        self.on_begin = self.begin_one

    def begin_one(self, process):
        process.say(Ready())
        number = len(self.engines) - 1 if process.is_engine else None
        process.beat(self.silent_s.get(number, 1e9))
        if not process.is_engine:
            process.num_answered = 0
            self.answer(process)

    def answer(self, process):
        """Say that requests have moved, a while after being asked to move them."""
        if process.status is None:
            for message in process.heard[process.num_answered :]:
                process.num_answered += 1
                if isinstance(message, EngineDraining):
                    done = partial(process.say, Drained(message.replica))
                    self.later(self.drains_after_s, done)
            self.later(0.01, lambda: self.answer(process))

    def ask(self, at_s, **command):
        """Send a command at a time; its report is in `reports` with the time of its arrival."""

        def send():
            stream = socket.socket(socket.AF_UNIX)
            stream.connect(str(socket_path(self.listener.getsockname()[1])))
            stream.sendall(msgspec.json.encode(command) + b"\n")
            stream.setblocking(False)
            look(stream)

        def look(stream):
            try:
                received = stream.recv(1 << 16)
            except BlockingIOError:
                self.later(0.01, lambda: look(stream))
                return
            stream.close()
            report = msgspec.json.decode(received, type=Report)
            self.reports.append((round(self.now_s - at_s - 1000.0, 1), report))

        self.later(at_s, send)

    def leave_at(self, at_s):
        self.later(at_s, lambda: signal.raise_signal(signal.SIGTERM))
        assert self.run() == 0

    def statuses(self, index=-1):
        return [one.status for one in self.reports[index][1].replicas]


@pytest.fixture(autouse=True)
def runtime_folder(monkeypatch):
    with tempfile.TemporaryDirectory(prefix="izwi-") as folder:  # paths of sockets must be short
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield folder


def heard(world, kind=object):
    """What each API server was seen, in order."""
    return [[one for one in server.heard if isinstance(one, kind)] for server in world.api_servers]


def test_each_engine_has_its_device_and_api_servers_learn_of_each(monkeypatch):
    world = Replicated(monkeypatch, num_api_servers=2)
    begin = world.begin_one

    def begin_late(process):
        is_late = process.is_engine and len(world.engines) == 2
        world.later(5.0 if is_late else 0.0, lambda: begin(process))

    world.on_begin = begin_late
    world.leave_at(20.0)
    first, second = world.engines
    assert [one.spec.runtime.device for one in world.engines] == ["cuda:0", "cuda:1"]
    assert [one.spec.replica for one in world.engines] == [0, 1]
    assert all(one.spec.publishes_prefixes for one in world.engines)
    assert first.spec.address != second.spec.address
    ups = [EngineUp(first.spec.address, 0), EngineUp(second.spec.address, 1)]
    assert heard(world) == [ups, ups]
    assert [server.spec.replicas for server in world.api_servers] == [TWO, TWO]
    assert world.announced == [("http://here", 1005.0)]  # once all are ready


def test_one_engine_publishes_nothing_and_opens_no_socket(monkeypatch):
    world = Replicated(monkeypatch, replicas=ReplicaOptions())
    seen = []
    world.later(1.0, lambda: seen.append(socket_path(world.listener.getsockname()[1]).exists()))
    world.leave_at(2.0)
    assert seen == [False]
    assert not world.engines[0].spec.publishes_prefixes


def test_circuits_are_shared_by_api_servers_and_shown_until_their_engine_ends(monkeypatch):
    world = Replicated(monkeypatch, num_api_servers=2)
    failed = CircuitChanged(1, "tts", CircuitEvent.FAILED)
    for number in range(5):  # of two API servers in turn
        world.later(2.0, partial(lambda n: world.api_servers[n % 2].say(failed), number))
    world.later(2.0, lambda: world.api_servers[0].say(CircuitChanged(7, "tts", failed.event)))
    world.ask(2.5, type="list")
    world.ask(8.5, type="list")
    world.later(9.0, lambda: world.api_servers[1].die(1))
    world.later(12.0, lambda: world.engines[1].die(7))
    world.ask(14.0, type="list")
    world.leave_at(15.0)
    first, second, new = heard(world, CircuitChanged)
    assert (len(first), len(second), len(new)) == (2, 3, 5)
    assert {*first, *second, *new} == {failed}
    shown = [[one.circuits for one in report.replicas] for _, report in world.reports]
    assert shown == [[{}, {"tts": "open"}], [{}, {"tts": "half_open"}], [{}, {}]]


def test_a_server_of_one_engine_obeys_operators_if_wanted_and_an_api_server_answers(monkeypatch):
    world = Replicated(monkeypatch, replicas=ReplicaOptions(), operators=True, num_api_servers=2)

    def answer(server, *said):
        (asked,) = [one for one in server.heard if isinstance(one, Operate)]
        server.say(Operated(asked.number, *said))

    world.ask(2.0, type="metrics")
    world.later(2.5, lambda: answer(world.api_servers[0], "izwi_up 1.0\n"))
    world.later(3.0, lambda: world.api_servers[0].heard.clear())
    world.ask(3.0, type="load", name="tts")
    world.later(3.5, lambda: answer(world.api_servers[0], "", "no room"))
    world.ask(4.0, type="unload", name="tts")
    world.later(4.5, lambda: world.api_servers[0].die(1))
    world.leave_at(20.0)
    assert [heard.command for heard in heard(world, Operate)[0]] == [
        LoadServed("tts"),
        UnloadServed("tts"),
    ]
    reports = [(report.text, report.error) for _, report in world.reports]
    assert reports == [
        ("izwi_up 1.0\n", ""),
        ("", "no room"),
        ("", "its API server has ended"),
    ]


def test_without_an_api_server_nothing_is_passed_on(monkeypatch):
    world = Replicated(monkeypatch, num_api_servers=1)
    world.later(2.0, lambda: world.api_servers[0].die(1))
    world.ask(2.1, type="metrics")
    world.leave_at(5.0)
    assert [report.error for _, report in world.reports] == ["no API server is ready; retry later"]


def test_an_engine_that_dies_is_shown_and_replaced_and_the_other_is_left_alone(monkeypatch):
    world = Replicated(monkeypatch)
    world.later(5.0, lambda: world.engines[1].die(7))
    world.ask(4.0, type="list")
    world.ask(5.1, type="list")
    world.ask(9.0, type="list")
    world.leave_at(10.0)
    first, dead, new = world.engines
    assert [type(one) for one in first.heard] == [ApiServerGone]  # at the end
    assert new.begun_s == pytest.approx(1005.25)
    assert new.spec.runtime.device == "cuda:1"
    assert heard(world)[0][2:] == [EngineGone(1), EngineUp(new.spec.address, 1)]
    assert [world.statuses(n) for n in range(3)] == [
        ["ready", "ready"],
        ["ready", "failed"],
        ["ready", "ready"],
    ]
    before, failed, after = (report.replicas[1] for _, report in world.reports)
    assert (before.pid, failed.pid, after.pid) == (dead.pid, None, new.pid)
    assert failed.reason == "ended with status 7"
    assert (after.reason, after.num_starts) == ("", 2)
    assert before.ready_s == pytest.approx(4.0)


def test_an_engine_that_cannot_start_again_is_shown_with_its_reason(monkeypatch):
    world = Replicated(monkeypatch)

    def begin(process):
        if process.is_engine and len(world.engines) > 2:
            process.say(Failed("no memory", 1))
            process.die(1)
        else:
            world.begin_one(process)

    world.on_begin = begin
    world.later(5.0, lambda: world.engines[0].die(-9))
    world.ask(9.0, type="list")
    world.leave_at(10.0)
    assert world.statuses() == ["failed", "ready"]
    assert world.reports[0][1].replicas[0].reason == "no memory"


def test_requests_of_an_engine_that_hangs_move_long_before_it_is_killed(monkeypatch):
    world = Replicated(monkeypatch, hung_after_s=60.0)
    world.silent_s[1] = 1010.0
    world.later(30.0, lambda: world.engines[1].beat(1e9))  # it responds again
    world.ask(20.0, type="list")
    seen = {}
    world.later(14.6, lambda: seen.update(at=heard(world, EngineDraining)[0]))
    world.leave_at(40.0)
    assert seen["at"] == [EngineDraining(1, is_hung=True)]
    assert world.statuses() == ["ready", "unresponsive"]
    assert heard(world)[0][2:] == [EngineDraining(1, is_hung=True), EngineAccepts(1)]
    assert [one.asked[0][0] for one in world.engines] == ["finish"] * 2  # none was killed


def test_the_last_engine_that_accepts_keeps_its_requests_though_it_is_silent(monkeypatch):
    world = Replicated(monkeypatch)
    world.silent_s.update({0: 1010.0, 1: 1020.0})
    world.leave_at(40.0)
    assert heard(world, EngineDraining)[0] == [EngineDraining(0, is_hung=True)]


def test_a_drain_ends_when_every_api_server_has_moved_its_requests(monkeypatch):
    world = Replicated(monkeypatch, num_api_servers=2)
    world.drains_after_s = 2.0
    world.ask(5.0, type="drain", replica=1)
    world.ask(6.0, type="list")
    world.later(10.0, lambda: world.api_servers[0].die(1))  # its successor is seen, too
    world.ask(14.0, type="resume", replica=1)
    world.leave_at(20.0)
    (listed_s, listed), (drained_s, drained), (_, resumed) = world.reports
    assert (listed_s, drained_s) == (0.0, 2.0)
    assert [report.replicas[1].status for report in (listed, drained, resumed)] == [
        "draining",
        "drained",
        "ready",
    ]
    assert heard(world, EngineDraining) == [[EngineDraining(1)]] * 3
    assert heard(world, EngineAccepts) == [[], [EngineAccepts(1)], [EngineAccepts(1)]]
    assert len(world.engines) == 2


def test_an_api_server_that_dies_or_says_nothing_does_not_hold_a_drain_up(monkeypatch):
    world = Replicated(monkeypatch, num_api_servers=2)
    world.drains_after_s = 1e6
    world.ask(5.0, type="drain", replica=0)
    world.later(7.0, lambda: world.api_servers[0].die(1))
    world.leave_at(30.0)
    ((drained_s, report),) = world.reports
    assert drained_s == 10.0
    assert report.replicas[0].status == "drained"


def test_the_last_engine_that_accepts_is_not_drained(monkeypatch):
    world = Replicated(monkeypatch)
    world.ask(5.0, type="drain", replica=1)
    world.ask(6.0, type="drain", replica=0)
    world.ask(7.0, type="drain", replica=2)
    world.leave_at(10.0)
    assert [report.error for _, report in world.reports] == [
        "",
        "replica 0 cannot be drained: no other one accepts requests for all of its models",
        "there is no replica 2; there are 0, 1",
    ]
    assert world.statuses() == ["ready", "drained"]


def test_engines_serve_the_models_that_are_placed_on_them(monkeypatch):
    placed = ReplicaOptions(("cpu", "cpu"), places={"asr": (0,)})
    world = Replicated(monkeypatch, replicas=placed)
    world.models = {"tts": Path("tts"), "asr": Path("asr")}
    world.ask(5.0, type="drain", replica=0)  # no other engine has its model
    world.ask(6.0, type="drain", replica=1)
    world.leave_at(10.0)
    assert [list(one.spec.models) for one in world.engines] == [["tts", "asr"], ["tts"]]
    assert list(world.api_servers[0].spec.models) == ["tts", "asr"]
    (_, refused), (_, drained) = world.reports
    assert "for all of its models" in refused.error
    assert [one.status for one in drained.replicas] == ["ready", "drained"]


def test_engines_are_replaced_one_after_the_other_each_once_its_requests_have_moved(monkeypatch):
    world = Replicated(monkeypatch)

    def begin(process):
        wait_s = 5.0 if process.is_engine and len(world.engines) > 2 else 0.0
        world.later(wait_s, lambda: world.begin_one(process))

    world.on_begin = begin
    world.ask(10.0, type="restart")
    for at_s in (12.0, 40.0):
        world.ask(at_s, type="list")
    world.leave_at(50.0)
    first, second, third, fourth = world.engines
    assert [how for how, _ in first.asked] == [how for how, _ in second.asked] == ["terminate"]
    assert first.asked[0][1] == pytest.approx(1010.1, abs=0.05)  # when its requests had moved
    assert third.begun_s == pytest.approx(1010.1, abs=0.05)  # at once
    assert second.asked[0][1] == pytest.approx(1016.2, abs=0.05)  # when the first was back
    assert [one.spec.replica for one in world.engines] == [0, 1, 0, 1]
    assert world.statuses(0) == ["draining", "ready"]
    assert world.statuses(1) == ["restarting", "ready"]
    assert world.statuses(2) == ["ready", "ready"]
    assert heard(world)[0][2:] == [
        EngineDraining(0),
        EngineGone(0),
        EngineUp(third.spec.address, 0),
        EngineDraining(1),
        EngineGone(1),
        EngineUp(fourth.spec.address, 1),
    ]


@pytest.mark.parametrize("sent", [b"nonsense\n", b'{"type":"drain"}\n', b"x" * 10_000, b""])
def test_an_operator_that_sends_nonsense_disturbs_nothing(monkeypatch, sent):
    world = Replicated(monkeypatch)
    came = []

    def send():
        with socket.socket(socket.AF_UNIX) as stream:
            stream.connect(str(socket_path(world.listener.getsockname()[1])))
            stream.sendall(sent)
            stream.shutdown(socket.SHUT_WR)

    world.later(5.0, send)
    world.ask(6.0, type="list")
    world.later(7.0, lambda: came.append(world.statuses()))
    world.leave_at(8.0)
    assert came == [["ready", "ready"]]


def test_the_socket_is_private_and_goes_with_the_server(monkeypatch, runtime_folder):
    world = Replicated(monkeypatch)
    seen = []

    def look():
        path = socket_path(world.listener.getsockname()[1])
        seen.append((stat.S_IMODE(path.parent.stat().st_mode), path))

    world.later(1.0, look)
    world.leave_at(2.0)
    ((mode, path),) = seen
    assert mode == 0o700
    assert str(path).startswith(runtime_folder)
    assert not path.exists()
    with pytest.raises(EngineStopped, match="no server with several replicas"):
        ask_supervisor(world.listener.fileno(), ListReplicas())


def test_a_folder_that_others_can_write_is_not_used(monkeypatch, runtime_folder, caplog):
    world = Replicated(monkeypatch)
    folder = socket_path(1).parent
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    world.leave_at(2.0)
    assert "cannot reach this server" in caplog.text
    assert list(folder.iterdir()) == []
    assert issubclass(EngineStopped, IzwiError)


def test_api_servers_learn_how_often_processes_were_started_again(monkeypatch):
    world = Replicated(monkeypatch, num_api_servers=2)
    world.later(5.0, lambda: world.engines[1].die(7))
    world.later(12.0, lambda: world.api_servers[0].die(7))
    world.leave_at(20.0)
    lost, kept, new = (server.restarted for server in world.api_servers)
    assert lost == [Restarted({0: 0, 1: 1}, 0)]
    assert kept == [Restarted({0: 0, 1: 1}, 0), Restarted({0: 0, 1: 1}, 1)]
    assert new == [Restarted({0: 0, 1: 1}, 1)], "it was not there before"


def test_api_servers_have_equal_parts_of_an_engines_queue_for_files(monkeypatch):
    world = Replicated(monkeypatch, num_api_servers=8)
    world.leave_at(3.0)
    assert [one.spec.settings.max_upload_pieces for one in world.api_servers] == [64] * 8
