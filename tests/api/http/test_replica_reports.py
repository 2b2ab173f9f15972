"""What a server with several engines says of each: /readyz, /metrics and /v1/models."""

from __future__ import annotations

import httpx
import pytest
from starlette.testclient import TestClient

from izwi.engine_client.protocol import ReplicaReport, ReplicaStatus
from izwi.metrics import LOAD_KEYS
from izwi_api.serve.app import create_app
from izwi_api.settings import Settings
from tests.api.conftest import FakeEngine, FakeRegistry, FakeSpeech


class TwoEngines(FakeEngine):
    """One engine that gets requests, one that is down."""

    replicas = (
        ReplicaReport(0, ReplicaStatus.READY, {"tts": dict.fromkeys(LOAD_KEYS, 3.0)}),
        ReplicaReport(1, ReplicaStatus.DOWN, {}),
    )


class BrokenEngine(FakeEngine):
    """A model keeps failing on the second of two engines."""

    replicas = (
        ReplicaReport(0, ReplicaStatus.READY, {"tts": dict.fromkeys(LOAD_KEYS, 3.0)}),
        ReplicaReport(
            1, ReplicaStatus.READY, {"tts": dict.fromkeys(LOAD_KEYS, 3.0)}, {"tts": "open"}
        ),
    )


@pytest.fixture
def ask(tmp_path):
    def get(engine, path) -> httpx.Response:
        registry = FakeRegistry(tts=FakeSpeech())
        with TestClient(create_app(engine, registry, Settings(home=tmp_path))) as client:
            return client.get(path)

    return get


def test_an_engine_that_is_down_is_shown_in_readyz(ask):
    response = ask(TwoEngines(), "/readyz")
    assert response.status_code == 200
    assert response.json() == {
        "status": "ok",
        "models": ["tts"],
        "replicas": [{"replica": 0, "status": "ready"}, {"replica": 1, "status": "down"}],
    }
    assert ask(FakeEngine(), "/readyz").json() == {"status": "ok", "models": ["tts"]}


def test_metrics_have_the_number_of_the_engine(ask):
    lines = ask(TwoEngines(), "/metrics").text.splitlines()
    assert 'izwi_engine_running{model="tts",replica="0"} 3.0' in lines
    assert 'izwi_replica{replica="0",status="ready"} 1.0' in lines
    assert 'izwi_replica{replica="1",status="ready"} 0.0' in lines
    assert 'izwi_replica{replica="1",status="down"} 1.0' in lines
    alone = ask(FakeEngine(), "/metrics").text
    assert 'izwi_engine_running{model="tts"} 7.0' in alone.splitlines()
    named = [line for line in alone.splitlines() if 'replica="' in line]
    assert [line.partition("{")[0] for line in named] == ["izwi_restarts_total"] * 2


def test_models_have_the_memory_of_each_engine(ask):
    entry = ask(TwoEngines(), "/v1/models/tts").json()
    first, second = entry["replicas"]
    assert (first["replica"], first["status"], first["memory"]["kv_bytes"]) == (0, "ready", 9)
    assert first["memory"]["weight_bytes"] == 3
    assert (second["status"], second["memory"]) == ("down", {"kv_bytes": 0})
    assert "replicas" not in ask(FakeEngine(), "/v1/models/tts").json()


def test_a_model_that_keeps_failing_on_an_engine_is_shown(ask):
    shown = ask(BrokenEngine(), "/readyz").json()["replicas"]
    assert shown[1] == {"replica": 1, "status": "ready", "circuits": {"tts": "open"}}
    lines = ask(BrokenEngine(), "/metrics").text.splitlines()
    assert 'izwi_replica_circuit{model="tts",replica="0"} 0.0' in lines
    assert 'izwi_replica_circuit{model="tts",replica="1"} 1.0' in lines
