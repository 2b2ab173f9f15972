"""`izwi replicas` over a supervisor that answers as a test says."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from izwi.errors import EngineStopped, IzwiError
from izwi_api.cli import replicas
from izwi_api.cli.main import app
from izwi_api.serve.operator_socket import (
    DrainReplica,
    ListReplicas,
    ReplicaInfo,
    Report,
    RestartReplicas,
    ResumeReplica,
)


def info(number, status="ready", num_starts=1):
    pid = None if status == "failed" else 70 + number
    ready_s = 12.4 if status == "ready" else None
    reason = "no memory" if status == "failed" else ""
    return ReplicaInfo(number, f"cuda:{number}", status, pid, ready_s, num_starts, reason)


@pytest.fixture
def run(monkeypatch):
    """Run a command; its result, and what the supervisor was asked."""

    def once(*words, reports):
        asked, answers = [], iter(reports)

        def ask(port, command):
            asked.append((port, command))
            answer = next(answers)
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr(replicas, "ask_supervisor", ask)
        monkeypatch.setattr(replicas, "_LOOK_S", 0.0)
        return CliRunner().invoke(app, ["replicas", *words]), asked

    return once


def test_replicas_are_listed_also_those_that_failed(run):
    report = Report([info(0), info(1, "failed", 3)])
    result, asked = run(reports=[report])
    assert result.exit_code == 0
    assert asked == [(8000, ListReplicas())]
    assert result.stdout.splitlines() == [
        "0\tcuda:0\tready\tprocess 70\tready for 12 s",
        "1\tcuda:1\tfailed\tno memory",
    ]
    result, _ = run("list", "--json", reports=[report])
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["status"] for line in lines] == ["ready", "failed"]
    assert lines[1]["num_starts"] == 3


@pytest.mark.parametrize(
    ("words", "command"),
    [(("drain", "1"), DrainReplica(1)), (("resume", "0"), ResumeReplica(0))],
)
def test_a_replica_is_drained_and_resumed(run, words, command):
    result, asked = run(*words, "--port", "8123", reports=[Report([info(0)])])
    assert result.exit_code == 0
    assert asked == [(8123, command)]


def test_restart_waits_until_every_process_is_new_and_ready(run):
    steps = [
        [info(0), info(1)],
        [info(0, "draining"), info(1)],
        [info(0, "starting", 2), info(1)],
        [info(0, num_starts=2), info(1)],
        [info(0, num_starts=2), info(1, "failed", 2)],
        [info(0, num_starts=2), info(1, num_starts=3)],
    ]
    result, asked = run("restart", reports=[Report(step) for step in steps])
    assert result.exit_code == 0
    assert [command for _, command in asked] == [
        ListReplicas(),
        RestartReplicas(),
        *[ListReplicas()] * 4,
    ]
    assert "to be replaced: 0 draining, 1 ready" in result.stderr
    assert result.stdout.splitlines()[1].startswith("1\tcuda:1\tready")


def test_restart_of_one_waits_for_that_one(run):
    steps = [[info(0), info(1, "failed")], [info(0), info(1)], [info(0, num_starts=2), info(1)]]
    result, asked = run("restart", "0", reports=[Report(step) for step in steps])
    assert result.exit_code == 0
    assert asked[1][1] == RestartReplicas((0,))


@pytest.mark.parametrize("error", [EngineStopped("no server"), IzwiError("cannot be drained")])
def test_a_refusal_is_one_line_and_an_exit_code(run, error):
    result, _ = run("drain", "0", reports=[error])
    assert result.exit_code == 1
    assert str(error) in result.stderr
    assert len(result.stderr.splitlines()) == 1
