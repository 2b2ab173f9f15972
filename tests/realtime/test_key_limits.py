"""`rate_limits.updated`: what is left of the limits of a key, before each answer."""

from __future__ import annotations

import json
from contextlib import suppress
from types import SimpleNamespace

import httpx
import pytest
from openai.types.realtime import RateLimitsUpdatedEvent
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from izwi_api.serve.app import create_app
from izwi_api.settings import Access, Settings
from izwi_api.usage.keys import add_key, remove_key
from izwi_api.usage.limits import KeyLimits
from tests.api.conftest import (
    FakeChat,
    FakeEngine,
    FakeRegistry,
    FakeSpeech,
    FakeTranscription,
    listening,
)

LIMITS = KeyLimits(requests_per_minute=60, characters_per_day=4000, audio_seconds_per_day=100)


SOCKETS = (
    "/v1/realtime?model=chat",
    "/v1/realtime?intent=transcription&model=asr",
    "/v1/audio/speech/stream",
    "/v1/audio/transcriptions/stream",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    file = home / "keys.toml"
    limits = {
        "limited": LIMITS,
        "free": KeyLimits(sessions=3),
        **{f"leaving{n}": KeyLimits() for n in range(len(SOCKETS))},
        "again": KeyLimits(),
        "fewer": KeyLimits(sessions=2),
        "spender": KeyLimits(characters_per_day=4000),
    }
    keys = {name: add_key(file, name, limits) for name, limits in limits.items()}
    registry = FakeRegistry(chat=FakeChat(), tts=FakeSpeech(), asr=FakeTranscription())
    app = create_app(FakeEngine(), registry, Settings(home=home, access=Access(api_keys_file=file)))
    with listening(app, ws="auto") as port:
        yield SimpleNamespace(port=port, keys=keys, file=file)


def opened(server, key, path="/v1/realtime?model=chat"):
    head = {"authorization": f"Bearer {server.keys[key]}"}
    return connect(f"ws://127.0.0.1:{server.port}{path}", additional_headers=head, proxy=None)


def end_of(socket):
    """The code of the last error, and of the close frame."""
    errors = [None]
    with suppress(ConnectionClosed):
        while True:
            event = json.loads(socket.recv(60))
            if event["type"] == "error":
                errors.append(event.get("error", event)["code"])
    return errors[-1], socket.close_code


@pytest.mark.parametrize("number", range(len(SOCKETS)))
def test_a_removed_key_closes_its_open_sockets(server, number):
    key = f"leaving{number}"
    with opened(server, "free") as other, opened(server, key, SOCKETS[number]) as socket:
        remove_key(server.file, key)
        assert end_of(socket) == ("invalid_api_key", 1008)
        assert other.ping().wait(60)


def test_a_key_with_another_secret_closes_the_sockets_of_the_first(server):
    with opened(server, "again") as socket:
        remove_key(server.file, "again")
        add_key(server.file, "again", KeyLimits())
        assert end_of(socket) == ("invalid_api_key", 1008)


def test_a_lower_limit_of_sessions_closes_the_later_socket(server):
    with opened(server, "fewer") as first, opened(server, "fewer") as second:
        before, _, after = server.file.read_text().rpartition("sessions = 2")
        server.file.write_text(f"{before}sessions = 1{after}")
        assert end_of(second) == ("rate_limit_exceeded", 1008)
        assert first.ping().wait(60)


def test_a_lower_quota_holds_in_an_open_session(server):
    """It needs no new request of that key."""
    asked = {"type": "response.create", "response": {"output_modalities": ["text"]}}
    item = {"type": "message", "role": "user"}
    item["content"] = [{"type": "input_text", "text": "x" * 96}]
    with opened(server, "spender") as socket:
        socket.send(json.dumps({"type": "conversation.item.create", "item": item}))
        before, _, after = server.file.read_text().rpartition("characters_per_day = 4000")
        server.file.write_text(f"{before}characters_per_day = 50{after}")
        while True:  # the file is read within a second
            socket.send(json.dumps(asked))
            while (event := json.loads(socket.recv(60)))["type"] != "response.done":
                pass
            if event["response"]["status"] == "failed":
                break
        assert event["response"]["status_details"]["error"]["code"] == "insufficient_quota"


def answers(server, key, *responses):
    """Ask for responses in text, one after the other; all events of them."""
    events = []
    with opened(server, key) as socket:
        item = {"type": "message", "role": "user"}
        item["content"] = [{"type": "input_text", "text": "x" * 396}]
        socket.send(json.dumps({"type": "conversation.item.create", "item": item}))
        for response in responses:
            asked = {"output_modalities": ["text"], **response}
            socket.send(json.dumps({"type": "response.create", "response": asked}))
            while not events or events[-1]["type"] != "response.done":
                events.append(json.loads(socket.recv(30)))
            assert events[-1]["response"]["status"] == "completed"
            events[-1]["type"] = "done"
    return events


def test_each_response_reports_the_remaining_limits(server):
    events = answers(server, "limited", {}, {"conversation": "none"})
    kinds = [event["type"] for event in events]
    updates = [event for event in events if event["type"] == "rate_limits.updated"]
    assert len(updates) == 2
    for place in (
        kinds.index("response.created"),
        len(kinds) - kinds[::-1].index("response.created") - 1,
    ):
        assert kinds[place : place + 3] == [
            *("response.created", "rate_limits.updated", "response.output_item.added")
        ]
    for event in updates:
        RateLimitsUpdatedEvent.model_validate(event, strict=True)
    limits = [{one["name"]: one for one in event["rate_limits"]} for event in updates]
    assert [set(one) for one in limits] == [{"requests", "tokens"}] * 2
    requests, tokens = limits[0]["requests"], limits[0]["tokens"]
    assert (requests["limit"], requests["remaining"]) == (60, 59)  # the handshake
    assert 0 < requests["reset_seconds"] <= 1
    # a character is a quarter of a token, and the question is counted before the answer
    assert (tokens["limit"], tokens["remaining"]) == (1000, 901)
    assert 0 < tokens["reset_seconds"] <= 86_400
    assert limits[1]["tokens"]["remaining"] < 810


def test_a_key_without_limits_gets_no_rate_limit_events(server):
    assert "rate_limits.updated" not in [event["type"] for event in answers(server, "free", {})]


def test_the_metrics_count_prepared_answers(server):
    head = {"authorization": f"Bearer {server.keys['free']}"}
    shown = httpx.get(f"http://127.0.0.1:{server.port}/metrics", headers=head).text
    assert "# TYPE izwi_live_prepared_answers_total counter" in shown
    for name in ("izwi_live_answers", "izwi_live_gaps", "izwi_live_gap_seconds"):
        assert f"# TYPE {name}_total counter" in shown
    assert "# TYPE izwi_live_latency_seconds histogram" in shown
