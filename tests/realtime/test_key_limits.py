"""`rate_limits.updated`: what is left of the limits of a key, before each answer."""

from __future__ import annotations

import json

import httpx
import pytest
from openai.types.realtime import RateLimitsUpdatedEvent
from websockets.sync.client import connect

from izwi_api.http.app import create_app
from izwi_api.http.keys import add_key
from izwi_api.http.limits import KeyLimits
from izwi_api.settings import Access, Settings
from tests.api.conftest import (
    FakeChat,
    FakeEngine,
    FakeRegistry,
    FakeSpeech,
    FakeTranscription,
    listening,
)

LIMITS = KeyLimits(requests_per_minute=60, characters_per_day=4000, audio_seconds_per_day=100)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    file = home / "keys.toml"
    keys = {
        "limited": add_key(file, "limited", LIMITS),
        "free": add_key(file, "free", KeyLimits(sessions=3)),
    }
    registry = FakeRegistry(chat=FakeChat(), tts=FakeSpeech(), asr=FakeTranscription())
    app = create_app(FakeEngine(), registry, Settings(home=home, access=Access(api_keys_file=file)))
    with listening(app, ws="auto") as port:
        yield port, keys


def answers(server, key, *responses):
    """Ask for responses in text, one after the other; all events of them."""
    port, keys = server
    head = {"authorization": f"Bearer {keys[key]}"}
    url = f"ws://127.0.0.1:{port}/v1/realtime?model=chat"
    events = []
    with connect(url, additional_headers=head) as socket:
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
    port, keys = server
    head = {"authorization": f"Bearer {keys['free']}"}
    shown = httpx.get(f"http://127.0.0.1:{port}/metrics", headers=head).text
    assert "# TYPE izwi_live_prepared_answers_total counter" in shown
