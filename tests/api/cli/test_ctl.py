"""`izwi ctl` over a supervisor that answers as a test says."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from izwi.errors import IzwiError
from izwi_api.cli import ctl, replicas
from izwi_api.cli.main import app
from izwi_api.schemas.warm_file import WarmFile, WarmPrompt
from izwi_api.serve.operator_socket import (
    DrainReplica,
    ListReplicas,
    LoadServed,
    ReadMetrics,
    ReplicaInfo,
    Report,
    UnloadServed,
    WarmReplicas,
)


@pytest.fixture
def run(monkeypatch):
    """Run a command; its result, and what the supervisor was asked."""

    def once(*words, answer):
        asked = []

        def ask(port, command, patience_s=0.0):
            asked.append((port, command))
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr(ctl, "ask_supervisor", ask)
        monkeypatch.setattr(replicas, "ask_supervisor", ask)
        return CliRunner().invoke(app, ["ctl", *words]), asked

    return once


def test_metrics_are_printed_as_they_are(run):
    result, asked = run("metrics", "--port", "9000", answer=Report([], text="izwi_up 1.0\n"))
    assert result.stdout == "izwi_up 1.0\n"
    assert asked == [(9000, ReadMetrics())]


def test_circuits_that_are_not_closed_are_listed(run):
    infos = [
        ReplicaInfo(number, "cpu", "ready", 70, 1.0, 1, "", circuits)
        for number, circuits in enumerate(({}, {"tts": "open", "chat": "half_open"}))
    ]
    result, asked = run("circuits", answer=Report(infos))
    assert result.stdout.splitlines() == ["1\ttts\topen", "1\tchat\thalf_open"]
    assert asked == [(8000, ListReplicas())]
    result, _ = run("circuits", "--json", answer=Report(infos))
    assert json.loads(result.stdout.splitlines()[0]) == {
        "replica": 1,
        "model": "tts",
        "state": "open",
    }


def test_a_file_is_warmed_and_one_that_is_wrong_is_refused_here(run, tmp_path):
    path = tmp_path / "warm.toml"
    path.write_text("[[prompt]]\nmodel = 'chat'\nsystem = 'Be kind.'\n")
    result, asked = run("warm", str(path), "--replica", "1", answer=Report([], text="1 of 1"))
    assert result.stdout == "1 of 1\n"
    wanted = WarmFile((WarmPrompt("chat", "Be kind."),))
    assert asked == [(8000, WarmReplicas(wanted, 1))]
    path.write_text("[[prompts]]")
    result, asked = run("warm", str(path), answer=Report([]))
    assert (result.exit_code, asked) == (2, [])


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (("load", "a/b"), LoadServed("a/b")),
        (("unload", "a/b"), UnloadServed("a/b")),
        (("drain", "1"), DrainReplica(1)),
    ],
)
def test_models_and_replicas_come_and_go(run, words, command):
    result, asked = run(*words, answer=Report([], text="done"))
    assert (result.exit_code, asked) == (0, [(8000, command)])
    result, _ = run(*words, answer=IzwiError("not now"))
    assert result.exit_code == 1
    assert "not now" in result.stderr
