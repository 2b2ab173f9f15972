"""The supervisor with scripted processes: no models, no HTTP."""

from __future__ import annotations

import logging
import re
import socket

import pytest

from izwi.config import EngineConfig
from izwi.errors import StartFailed
from izwi_api.runtime_options import RuntimeOptions
from izwi_api.serve.options import ServeOptions
from izwi_api.serve.supervisor import Supervisor
from izwi_api.settings import Settings

# What both kinds of process begin with; `number` counts the starts of a kind.
START = """
import os, select, signal, sys, time
from pathlib import Path
from izwi_api.serve.control import Control, ApiServerSpec, EngineSpec, Failed, Ready
control = Control.of_this_process()
while not (messages := control.receive()):
    pass
spec = messages[0]
kind = "engine" if isinstance(spec, EngineSpec) else "API server"
counter = Path(__file__).with_name(kind + ".count")
number = int(counter.read_text()) if counter.exists() else 0
counter.write_text(str(number + 1))

def stay():
    try:
        while True:
            control.beat()
            if not select.select([control.fileno()], [], [], 0.1)[0]:
                continue
            for message in control.receive():
                print(kind, number, type(message).__name__, flush=True)
    except EOFError:
        sys.exit(0)

def leave_all():
    os.kill(os.getppid(), signal.SIGTERM)
    stay()

def die_when_all_are_ready():
    while not Path(__file__).with_name("API server.ready").exists():
        time.sleep(0.01)
    os._exit(7)
"""
API_SERVER = """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
control.send(Ready())
Path(__file__).with_name("API server.ready").touch()
stay()
"""


@pytest.fixture
def run(tmp_path, monkeypatch, caplog):
    """Run a supervisor over an engine and an API server of these programs; what it logged."""
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")

    def run_once(engine, api_server=API_SERVER, **settings):
        for name, body in (("izwi_test_engine", engine), ("izwi_test_door", api_server)):
            (tmp_path / f"{name}.py").write_text(START + body)
        plan = ServeOptions(
            (), RuntimeOptions("cpu", "float32"), EngineConfig(), Settings(**settings), 1.0
        )
        with socket.create_server(("127.0.0.1", 0)) as listener:
            programs = ("izwi_test_engine", "izwi_test_door")
            assert Supervisor(plan, {}, [listener], "http://here", programs).run() == 0
        return caplog.text

    return run_once


def waits_of(log):
    return [float(wait) for wait in re.findall(r"engine-\d+ ended .* next in ([\d.]+) s", log)]


@pytest.mark.slow  # test_supervisor_times.py has it without processes
def test_an_engine_that_never_is_ready_again_is_started_less_and_less_often(run):
    log = run(
        "if number == 0:\n"
        "    control.send(Ready())\n"
        "    die_when_all_are_ready()\n"
        "if number < 4:\n"
        "    os._exit(7)\n"
        "leave_all()\n"
    )
    assert waits_of(log) == [0.25, 0.5, 1.0, 2.0]
    assert "status 7" in log


@pytest.mark.slow  # test_supervisor_times.py has it without processes
def test_an_engine_that_loads_for_long_does_not_hang(run):
    """Only a process that has reported ready is expected to send heartbeats."""
    log = run(
        "time.sleep(6)\n"
        "control.send(Ready())\n"
        "while not Path(__file__).with_name('API server.ready').exists():\n"
        "    time.sleep(0.01)\n"
        "leave_all()\n",
        hung_after_s=4.0,
    )
    assert "has hung" not in log
    assert "ended with status" not in log


def test_what_fails_before_all_are_ready_ends_the_server_with_its_reason(run):
    with pytest.raises(StartFailed, match="no such model") as failed:
        run("control.send(Failed('no such model', 2))\nsys.exit(2)\n")
    assert failed.value.exit_code == 2


def test_a_process_that_dies_without_a_reason_before_all_are_ready_ends_the_server(run):
    with pytest.raises(StartFailed, match=r"engine-\d+ ended with status 7"):
        run("os._exit(7)\n")


@pytest.mark.slow  # test_supervisor_times.py has it without processes
def test_a_reason_that_comes_later_is_logged_and_the_process_starts_again(run):
    log = run(
        "if number == 0:\n"
        "    control.send(Ready())\n"
        "    die_when_all_are_ready()\n"
        "if number == 1:\n"
        "    control.send(Failed('out of memory', 1))\n"
        "    sys.exit(1)\n"
        "leave_all()\n"
    )
    assert re.search(r"engine-\d+: out of memory", log)
    assert waits_of(log) == [0.25, 0.5]


@pytest.mark.slow  # test_supervisor_times.py has it without processes
def test_supervisor_announces_new_engines_and_dead_api_servers(run, capfd):
    run(
        "control.send(Ready())\nif number == 0:\n    die_when_all_are_ready()\nstay()\n",
        API_SERVER.replace(
            "stay()",
            "count = 0\n"
            "while count < (4 if number == 0 else 1):\n"
            "    for message in control.receive():\n"  # several where this process was slow
            "        print('API server', number, type(message).__name__, flush=True)\n"
            "        count += 1\n"
            "if number == 0:\n"
            "    os._exit(9)\n"
            "leave_all()\n",
        ),
    )
    reported = capfd.readouterr().out.split("\n")
    first = [line for line in reported if line.startswith("API server 0")]
    heard = ("EngineUp", "EngineGone", "Restarted", "EngineUp")
    assert first == [f"API server 0 {name}" for name in heard]
    assert "API server 1 EngineUp" in reported
    assert "engine 1 ApiServerGone" in reported
