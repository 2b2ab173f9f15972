"""The supervisor's decisions in virtual time: its messages, and which processes it ends when."""

from __future__ import annotations

import logging
import re
import shutil
import signal
import socket
import stat
from pathlib import Path

import pytest

from izwi.errors import InvalidRequest, StartFailed
from izwi_api.serve import supervisor
from izwi_api.serve.control import (
    ApiServerGone,
    EngineGone,
    EngineUp,
    Failed,
    Ready,
)
from izwi_api.serve.options import ADDRESS_TAKEN
from tests.serve.virtual_processes import World


def leave():
    signal.raise_signal(signal.SIGTERM)


def waits_of(log, kind):
    return [float(s) for s in re.findall(rf"{kind}-\d+ ended .* next in ([\d.]+) s", log)]


def test_processes_receive_their_specifications(monkeypatch):
    world = World(monkeypatch, num_api_servers=2, record=Path("all.jsonl"), drain_s=7.0)
    seen = []

    def look():
        folder = world.engines[0].spec.folder
        seen.append(stat.S_IMODE(folder.stat().st_mode))
        for server in world.api_servers:
            seen.append(server.descriptors == server.spec.listen_sockets)
            seen.append(server.descriptors == (world.listener.fileno(),))
            seen.append((folder / "metrics").is_dir())
        leave()

    world.later(1.0, look)
    assert world.run() == 0
    assert seen == [0o700, *[True] * 6]
    (engine,), servers = world.engines, world.api_servers
    folder = engine.spec.folder
    assert engine.spec.record == Path("all.jsonl")
    assert engine.command[-1] == "izwi_api.serve.engine_process"
    assert "PROMETHEUS_MULTIPROC_DIR" not in engine.environ
    assert len({engine.spec.address, *(server.spec.name for server in servers)}) == 3
    for server in servers:
        assert server.command[-1] == "izwi_api.serve.api_server_process"
        assert (server.spec.drain_s, server.spec.sends_asks) == (7.0, True)
        assert server.spec.metrics == folder / "metrics"
        assert server.spec.kept == folder / "kept.sqlite3"
        assert server.environ["PROMETHEUS_MULTIPROC_DIR"] == str(folder / "metrics")
    assert not folder.exists()


def test_one_api_server_counts_alone_and_records_nothing(monkeypatch):
    world = World(monkeypatch)
    world.later(1.0, leave)
    assert world.run() == 0
    (server,) = world.api_servers
    assert (server.spec.metrics, server.spec.sends_asks) == (None, False)
    assert "PROMETHEUS_MULTIPROC_DIR" not in server.environ
    assert world.forgotten == []


@pytest.mark.parametrize(("engine_s", "servers_s"), [(5.0, (1.0, 3.0)), (1.0, (5.0, 9.0))])
def test_api_servers_learn_of_the_engine_and_the_address_is_printed_once(
    monkeypatch, engine_s, servers_s
):
    world = World(monkeypatch, num_api_servers=2)
    delays = iter(servers_s)

    def begin(process):
        wait_s = engine_s if process.is_engine else next(delays)
        world.later(wait_s, lambda: process.say(Ready()))

    world.on_begin = begin
    world.later(20.0, leave)
    assert world.run() == 0
    up = EngineUp(world.engines[0].spec.address)
    assert [server.heard for server in world.api_servers] == [[up]] * 2
    # as soon as the engine and one of the API servers are ready
    assert world.announced == [("http://here", 1000.0 + max(engine_s, min(servers_s)))]


def test_an_engine_that_says_nothing_is_killed_once_and_replaced(monkeypatch, caplog):
    world = World(monkeypatch, hung_after_s=15.0)
    killed_s = 0.0

    def begin(process):
        process.say(Ready())
        if process.is_engine and len(world.engines) == 1:
            process.stubborn.add("kill")  # its death takes a while
            process.beat(1010.0)
            world.later(30.0, lambda: process.die(-9))
        else:
            process.beat(1100.0)

    world.on_begin = begin
    world.later(60.0, leave)
    assert world.run() == 0
    first, second = world.engines
    ((how, killed_s),) = first.asked
    assert how == "kill"
    assert 1010.0 + 15.0 < killed_s <= 1010.0 + 15.0 + supervisor.BEAT_S
    (server,) = world.api_servers
    assert server.heard == [
        EngineUp(first.spec.address),
        EngineGone(),
        EngineUp(second.spec.address),
    ]
    assert first.spec.address != second.spec.address
    assert second.begun_s == pytest.approx(1030.25)
    assert "killed" in caplog.text
    assert [how for how, _ in server.asked] == ["terminate"]


def test_a_process_that_loads_for_long_or_sends_heartbeats_is_left_alone(monkeypatch):
    world = World(monkeypatch, hung_after_s=5.0)

    def begin(process):
        if process.is_engine:
            world.later(100.0, lambda: process.say(Ready()))
            world.later(100.0, lambda: process.beat(1200.0))
        else:
            process.say(Ready())
            process.beat(1200.0)

    world.on_begin = begin
    world.later(150.0, leave)
    assert world.run() == 0
    assert (len(world.engines), len(world.api_servers)) == (1, 1)
    assert [how for how, _ in world.engines[0].asked] == ["finish"]


def test_an_api_server_that_dies_is_forgotten_and_replaced_under_another_name(monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    world = World(monkeypatch, num_api_servers=2)
    world.later(5.0, lambda: world.api_servers[0].die(7))
    world.later(9.0, leave)
    assert world.run() == 0
    dead, other, new = world.api_servers
    (engine,) = world.engines
    assert engine.heard[0] == ApiServerGone(dead.spec.name)
    assert new.begun_s == pytest.approx(1005.25)
    assert new.heard == other.heard == [EngineUp(engine.spec.address)]
    assert new.spec.name not in (dead.spec.name, other.spec.name)
    assert world.forgotten[0] == (dead.pid, engine.spec.folder / "metrics")
    assert "ended with status 7" in caplog.text


def test_a_process_that_dies_again_soon_is_restarted_later_each_by_itself(monkeypatch, caplog):
    world = World(monkeypatch)

    def begin(process):
        process.say(Ready())
        if process.is_engine and len(world.engines) in (1, 2, 3, 5):
            world.later(10.0, lambda: process.die(7))
        elif process.is_engine and len(world.engines) == 4:
            world.later(61.0, lambda: process.die(7))  # it has worked

    world.on_begin = begin
    world.later(70.0, lambda: world.api_servers[0].die(8))
    world.later(150.0, leave)
    assert world.run() == 0
    assert waits_of(caplog.text, "engine") == [0.25, 0.5, 1.0, 0.25, 0.5]
    assert waits_of(caplog.text, "api-server") == [0.25]


def test_process_that_closes_its_control_socket_is_killed(monkeypatch, caplog):
    world = World(monkeypatch)
    world.later(5.0, lambda: world.engines[0].close_control())
    world.later(20.0, leave)
    assert world.run() == 0
    assert world.engines[0].asked == [("kill", 1008.0)]
    assert "ended with status -9" in caplog.text
    assert len(world.engines) == 2


def test_leaving_lets_api_servers_finish_and_then_ends_the_engine(monkeypatch):
    world = World(monkeypatch, num_api_servers=2, drain_s=20.0, hung_after_s=3.0)

    def begin(process):
        process.say(Ready())
        process.beat(1011.0)  # what drains may say nothing
        process.stubborn.add("terminate")

    world.on_begin = begin
    closed = []
    world.later(10.0, leave)
    world.later(10.5, lambda: closed.append(world.listener.fileno() == -1))
    world.later(18.0, lambda: world.api_servers[0].die())
    world.later(19.0, lambda: closed.append(world.engines[0].asked == []))
    world.later(20.0, lambda: world.api_servers[1].die())
    assert world.run() == 0
    assert closed == [True, True]
    assert [server.asked for server in world.api_servers] == [[("terminate", 1010.0)]] * 2
    (engine,) = world.engines
    assert engine.asked == [("finish", 1020.0)]
    assert len(world.api_servers) == 2  # none in their place


def test_a_process_that_does_not_end_is_killed_after_the_time_to_drain(monkeypatch):
    world = World(monkeypatch, drain_s=20.0)

    def begin(process):
        process.say(Ready())
        process.stubborn.update(("terminate", "finish"))

    world.on_begin = begin
    world.later(10.0, leave)
    assert world.run() == 1
    assert world.api_servers[0].asked == [("terminate", 1010.0), ("kill", 1040.0)]
    # all of them: what runs has no time left
    assert world.engines[0].asked[-1] == ("kill", 1040.0)


def test_an_engine_that_does_not_end_is_killed(monkeypatch):
    world = World(monkeypatch, drain_s=300.0)

    def begin(process):
        process.say(Ready())
        process.stubborn.add("finish")

    world.on_begin = begin
    world.later(10.0, leave)
    assert world.run() == 1
    assert world.engines[0].asked == [("finish", 1010.0), ("kill", 1020.0)]


def test_the_second_signal_leaves_little_time(monkeypatch):
    world = World(monkeypatch, drain_s=300.0)

    def begin(process):
        process.say(Ready())
        process.stubborn.add("terminate")

    world.on_begin = begin
    world.later(10.0, leave)
    world.later(15.0, lambda: signal.raise_signal(signal.SIGINT))
    assert world.run() == 1
    how = [("terminate", 1010.0), ("terminate", 1015.0), ("kill", 1018.0)]
    assert world.api_servers[0].asked == how


def test_an_engine_that_still_loads_is_terminated(monkeypatch):
    world = World(monkeypatch)
    world.on_begin = lambda _: None
    world.later(3.0, leave)
    assert world.run() == 0
    assert world.engines[0].asked[0] == ("terminate", 1003.0)


def test_a_process_that_died_before_shutdown_is_not_restarted(monkeypatch):
    world = World(monkeypatch, num_api_servers=2)

    def begin(process):
        process.say(Ready())
        process.stubborn.add("terminate")

    world.on_begin = begin
    world.later(5.0, lambda: (world.api_servers[0].die(7), world.engines[0].die(7)))
    world.later(5.1, leave)
    world.later(9.0, lambda: world.api_servers[1].die())
    assert world.run() == 0
    assert (len(world.engines), len(world.api_servers)) == (1, 2)


def test_the_first_reason_counts_and_all_end(monkeypatch):
    world = World(monkeypatch)

    def begin(process):
        if process.is_engine:
            process.say(Failed("no such model", 2))
            world.later(0.5, lambda: process.die(2))
        else:
            process.say(Failed("a key is too short", 3))

    world.on_begin = begin
    with pytest.raises(StartFailed, match="no such model") as failed:
        world.run()
    assert failed.value.exit_code == 2
    assert [how for how, _ in world.api_servers[0].asked] == ["terminate"]
    assert world.announced == []


def test_an_error_of_the_supervisor_leaves_no_process(monkeypatch):
    world = World(monkeypatch)

    def fail():
        raise MemoryError

    world.later(3.0, fail)
    before = signal.signal(signal.SIGTERM, mine := lambda *_: None)
    try:
        with pytest.raises(MemoryError):
            world.run()
        assert signal.getsignal(signal.SIGTERM) is mine
        assert signal.set_wakeup_fd(-1) == -1
    finally:
        signal.signal(signal.SIGTERM, before)
    started = [*world.engines, *world.api_servers]
    assert [process.status for process in started] == [-9, -9]


def test_a_folder_that_was_tidied_away_is_made_again(monkeypatch):
    world = World(monkeypatch, num_api_servers=2)
    found = []

    def tidy(process):
        shutil.rmtree(world.engines[0].spec.folder)
        process.die(7)

    world.later(5.0, lambda: tidy(world.engines[0]))
    world.later(6.0, lambda: found.append(world.engines[1].spec.folder.is_dir()))
    world.later(6.5, lambda: tidy(world.api_servers[0]))
    world.later(8.0, lambda: found.append(world.api_servers[2].spec.metrics.is_dir()))
    world.later(9.0, leave)
    assert world.run() == 0
    assert found == [True, True]


def test_paths_of_sockets_stay_short(monkeypatch, tmp_path):
    world = World(monkeypatch)
    world.later(1.0, leave)
    long = tmp_path / ("x" * 80)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    assert world.run() == 0
    assert world.engines[0].spec.folder.parent == Path("/tmp")


def test_a_port_that_is_taken_and_a_name_that_is_given_twice_are_refused(monkeypatch, caplog):
    world = World(monkeypatch)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code = supervisor.serve_in_processes(world.options, "127.0.0.1", port)
    assert code == ADDRESS_TAKEN
    assert f"port {port}" in caplog.text
    found = iter([("a", Path("1")), ("b", Path("2")), ("b", Path("3"))])
    monkeypatch.setattr(supervisor, "named", lambda _, **__: next(found))
    options = world.options.__class__(
        ("x", "y", "z"), world.options.runtime, world.options.config, world.options.settings, 1.0
    )
    monkeypatch.setattr(supervisor, "open_listen_sockets", lambda *_: [])
    with pytest.raises(InvalidRequest, match="two models are called 'b'"):
        supervisor.serve_in_processes(options, "127.0.0.1", 0)
    found = iter([("a", Path("1")), ("b", Path("2")), ("c", Path("3"))])
    monkeypatch.setattr(supervisor, "url_of", lambda *_: "http://here")
    world.later(1.0, leave)
    assert supervisor.serve_in_processes(options, "127.0.0.1", 0) == 0
    assert dict(world.engines[0].spec.models) == {"a": Path("1"), "b": Path("2"), "c": Path("3")}
