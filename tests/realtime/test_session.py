"""A session's items, errors as events, transcription, and client mistakes."""

from __future__ import annotations

import base64
import json
import time
from contextlib import suppress
from socket import SHUT_RDWR

import httpx
import pytest
from websockets.exceptions import ConnectionClosedError, InvalidStatus
from websockets.sync.client import connect

from izwi.audio.pcm import to_s16le
from izwi_api.realtime.answering import response_maker
from izwi_api.routes import realtime_calls
from tests.realtime.conftest import Talk


@pytest.fixture
def socket(served):
    with connect(f"ws://127.0.0.1:{served.port}/v1/realtime?model=chat") as made:
        made.kinds = [json.loads(made.recv())["type"], json.loads(made.recv())["type"]]
        assert made.kinds == ["session.created", "conversation.created"]
        yield made


def tell(socket, kind, **fields):
    socket.send(json.dumps({"type": kind, "event_id": "mine", **fields}))
    return json.loads(socket.recv(30))


def message(text, **fields):
    content = [{"type": "input_text", "text": text}]
    return {"type": "message", "role": "user", "content": content, **fields}


@pytest.mark.parametrize(
    ("kind", "fields", "code", "param"),
    [
        ("nonsense", {}, "invalid_value", "type"),
        ("input_audio_buffer.commit", {}, "input_audio_buffer_commit_empty", None),
        ("input_audio_buffer.append", {"audio": "?"}, "invalid_value", "audio"),
        ("response.cancel", {}, "response_cancel_not_active", None),
        ("response.cancel", {"response_id": "r"}, "response_cancel_not_active", None),
        ("session.update", {"session": {"foo": 1}}, "unknown_parameter", "session.foo"),
        ("session.update", {"session": {"audio": {"input": {"foo": 1}}}}, "unknown_parameter",
         "session.audio.input.foo"),
        ("session.update", {"session": {"tool_choice": "unknown field `x`"}}, "invalid_value",
         None),
        ("input_audio_buffer.clear", {"foo": 1}, "unknown_parameter", "foo"),
        ("response.create", {"response": {"foo": 1}}, "unknown_parameter", "response.foo"),
        ("conversation.item.create", {"item": message("x", foo=1)}, "unknown_parameter",
         "item.foo"),
        ("session.update", {"session": {"audio": {"output": {"voice": "nobody"}}}},
         "voice_not_found", None),
        ("conversation.item.retrieve", {"item_id": "x"}, "item_retrieve_invalid_item_id",
         "item_id"),
        ("conversation.item.delete", {"item_id": "x"}, "item_delete_invalid_item_id", "item_id"),
        ("conversation.item.truncate",
         {"item_id": "x", "content_index": 0, "audio_end_ms": 0},
         "item_truncate_invalid_item_id", "item_id"),
        ("conversation.item.create", {"item": {}}, "invalid_value", "item.type"),
        ("conversation.item.create", {"item": message("x"), "previous_item_id": "no"},
         "item_create_invalid_previous_item_id", "item_id"),
        ("response.create", {"response": {"tools": [{"type": "mcp"}]}}, "invalid_value",
         "response.tools[0].type"),
        ("output_audio_buffer.clear", {}, "invalid_event", "type"),
    ],
)  # fmt: skip
def test_an_impossible_event_gets_an_error_and_the_session_continues(
    socket, kind, fields, code, param
):
    answer = tell(socket, kind, **fields)
    assert answer["type"] == "error"
    error = answer["error"]
    assert (error["code"], error["event_id"]) == (code, "mine")
    if param is not None:
        assert error["param"] == param
    # and the session continues
    assert tell(socket, "input_audio_buffer.clear")["type"] == "input_audio_buffer.cleared"


@pytest.mark.parametrize("raw", ["", "{", "[]", "null", b"\x00\x01", "[" * 10_000])
def test_an_invalid_event_gets_an_error_event(socket, raw):
    socket.send(raw)
    assert json.loads(socket.recv(30))["type"] == "error"
    assert tell(socket, "input_audio_buffer.clear")["type"] == "input_audio_buffer.cleared"


def test_a_client_that_sends_only_invalid_events_is_disconnected(socket):
    for _ in range(100):
        socket.send("{")
    codes = []
    with suppress(ConnectionClosedError):
        while True:
            codes.append(json.loads(socket.recv(30))["error"]["code"])
    assert codes[-1] == "too_many_errors"
    assert socket.close_code == 1008


def test_items_are_created_retrieved_and_deleted(socket):
    first = tell(socket, "conversation.item.create", item=message("one", id="a"))
    assert (first["type"], first["previous_item_id"]) == ("conversation.item.added", None)
    assert json.loads(socket.recv())["type"] == "conversation.item.done"
    second = tell(socket, "conversation.item.create", item=message("two", id="b"))
    assert second["previous_item_id"] == "a"
    socket.recv()
    root = tell(
        socket, "conversation.item.create", item=message("nil", id="c"), previous_item_id="root"
    )
    assert root["previous_item_id"] is None
    socket.recv()
    between = tell(
        socket, "conversation.item.create", item=message("1.5", id="d"), previous_item_id="a"
    )
    assert between["previous_item_id"] == "a"
    socket.recv()
    twice = tell(socket, "conversation.item.create", item=message("one", id="a"))
    assert twice["error"]["code"] == "item_create_duplicate_item_id"
    kept = tell(socket, "conversation.item.retrieve", item_id="b")
    assert kept["item"]["content"] == [{"type": "input_text", "text": "two"}]
    refused = tell(
        socket, "conversation.item.truncate", item_id="b", content_index=0, audio_end_ms=0
    )
    assert refused["error"]["code"] == "invalid_value"
    assert tell(socket, "conversation.item.delete", item_id="b")["item_id"] == "b"
    gone = tell(socket, "conversation.item.retrieve", item_id="b")
    assert gone["error"]["code"] == "item_retrieve_invalid_item_id"


def test_a_second_response_is_refused(socket):
    socket.send(json.dumps({"type": "response.create"}))
    socket.send(json.dumps({"type": "response.create"}))
    kinds, codes = [], []
    while not kinds or kinds[-1] != "response.done":
        event = json.loads(socket.recv(60))
        kinds.append(event["type"])
        codes.append(event.get("error", {}).get("code"))
    assert "conversation_already_has_active_response" in codes
    assert kinds.count("response.created") == kinds.count("response.done") == 1


def test_the_users_audio_can_be_retrieved(socket):
    off = {"type": "realtime", "audio": {"input": {"turn_detection": None}}}
    assert tell(socket, "session.update", session=off)["type"] == "session.updated"
    pcm = bytes(range(256)) * 60
    for start in range(0, len(pcm), 1001):
        audio = base64.b64encode(pcm[start : start + 1001]).decode()
        socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": audio}))
    committed = tell(socket, "input_audio_buffer.commit")
    assert committed["type"] == "input_audio_buffer.committed"
    socket.recv()
    socket.recv()
    kept = tell(socket, "conversation.item.retrieve", item_id=committed["item_id"])
    assert base64.b64decode(kept["item"]["content"][0]["audio"]) == pcm


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("model=nope", 404, "model_not_found"),
        ("model=izwi-tiny-tts", 400, "invalid_request"),
        ("intent=fly", 400, "invalid_request"),
        ("intent=transcription&model=nope", 404, "model_not_found"),
    ],
)
def test_an_unsupported_session_is_refused(served, query, status, code):
    with (
        pytest.raises(InvalidStatus) as refused,
        connect(f"ws://127.0.0.1:{served.port}/v1/realtime?{query}"),
    ):
        pass
    assert refused.value.response.status_code == status
    assert json.loads(refused.value.response.body)["error"]["code"] == code


def test_a_browser_gets_the_realtime_subprotocol(served):
    offered = ["realtime", "openai-insecure-api-key.ek_x"]
    url = f"ws://127.0.0.1:{served.port}/v1/realtime"
    with connect(url, subprotocols=offered) as socket:
        assert socket.subprotocol == "realtime"


async def update_transcription(connection, kind="transcription", **fields):
    changes = {"audio": {"input": {"transcription": fields}}}
    await connection.session.update(session={"type": kind, **changes})


async def test_speakers_are_told_apart_in_transcription_sessions_only(client):
    async with client.realtime.connect(model="chat") as connection:
        talk = Talk(connection)
        await update_transcription(connection, "realtime", speakers=True)
        refused = (await talk.until("error")).error
        assert refused.param == "session.audio.input.transcription.speakers"


async def test_a_transcription_session_sends_transcripts_only(client, said):
    async with client.realtime.connect(
        extra_query={"intent": "transcription", "model": "izwi-tiny-asr"}
    ) as connection:
        talk = Talk(connection)
        created = await talk.until("session.created")
        assert created.session.type == "transcription"
        await connection.session.update(
            session={
                "type": "transcription",
                "audio": {"input": {"turn_detection": {"type": "server_vad"}}},
            }
        )
        await talk.until("session.updated")
        for _ in range(2):
            await talk.speak(said("When does the train leave?"))
            await talk.be_silent(0.8)
            heard = await talk.until("conversation.item.input_audio_transcription.completed")
            assert "train" in heard.transcript.lower()
        await update_transcription(connection, known_speaker_names=["ann"], speakers=True)
        param = "session.audio.input.transcription.known_speaker_references"
        assert (await talk.until("error")).error.param == param
        await update_transcription(connection, speakers=True)
        await talk.speak(said("When does the train leave?"))
        await talk.be_silent(0.8)
        segment = await talk.until("conversation.item.input_audio_transcription.segment")
        heard = await talk.until("conversation.item.input_audio_transcription.completed")
        assert (segment.speaker, segment.text) == ("A", heard.transcript)
        assert segment.item_id == heard.item_id
        await connection.response.create()
        assert (await talk.until("error")).error.code == "invalid_event"
    assert not [kind for kind in talk.types() if kind.startswith("response")]


def test_a_closed_session_leaves_no_request_running(served):
    def running():
        figures = httpx.get(f"http://127.0.0.1:{served.port}/metrics").text.splitlines()
        return [line for line in figures if "izwi_engine_running{" in line]

    with connect(f"ws://127.0.0.1:{served.port}/v1/realtime?model=chat") as socket:
        socket.send(json.dumps({"type": "response.create"}))
        while json.loads(socket.recv(60))["type"] != "response.output_audio.delta":
            pass
    for _ in range(400):
        if all(line.endswith(" 0.0") for line in running()):
            break
    assert all(line.endswith(" 0.0") for line in running())


async def test_requests_of_live_sessions_have_priority(served, client, monkeypatch):
    asked = []
    submit_all = type(served.engine).submit_all

    def seen(engine, requests):
        asked.extend(requests)
        return submit_all(engine, requests)

    monkeypatch.setattr(type(served.engine), "submit_all", seen)
    async with client.realtime.connect(model="chat") as connection:
        await connection.response.create(response={"output_modalities": ["text"]})
        await Talk(connection).until("response.done")
    assert asked
    assert {request.priority for request in asked} == {1}


def test_a_server_without_webrtc_reports_that(served, monkeypatch):
    monkeypatch.setattr(realtime_calls, "find_spec", lambda _: None)
    sdp = {"content": "v=0", "headers": {"content-type": "application/sdp"}}
    refused = httpx.post(f"{served.url}/realtime/calls", **sdp)
    assert refused.status_code == 400
    assert "izwi[webrtc]" in refused.json()["error"]["message"]
    for call_id in ("rtc_" + "0" * 32, "..%2f..", "x"):
        gone = httpx.post(f"{served.url}/realtime/calls/{call_id}/hangup")
        assert gone.status_code == 404


@pytest.mark.parametrize("num_events", range(6))
def test_a_client_that_leaves_at_any_point_leaves_no_request_running(served, said, num_events):
    """Without a close frame, after some of its events; no request keeps running."""
    audio = to_s16le(said("When does the train leave?"))
    events = [
        {"type": "response.create", "response": {"conversation": "none"}},
        {"type": "response.create"},
        {"type": "input_audio_buffer.append", "audio": base64.b64encode(audio).decode()},
        {"type": "input_audio_buffer.append", "audio": base64.b64encode(bytes(40_000)).decode()},
        {"type": "response.cancel"},
    ]
    with connect(f"ws://127.0.0.1:{served.port}/v1/realtime?model=chat") as socket:
        socket.recv()
        for event in events[:num_events]:
            socket.send(json.dumps(event))
        socket.socket.shutdown(SHUT_RDWR)
    until_s = time.monotonic() + 60
    while any(load["running"] or load["waiting"] for load in served.engine.load.values()):
        assert time.monotonic() < until_s
        time.sleep(0.02)


def test_a_client_may_retrieve_much_audio_and_read_it_late(served, socket):
    """Ten seconds of audio, retrieved a hundred times before the first answer is read."""
    off = {"type": "realtime", "audio": {"input": {"turn_detection": None}}}
    tell(socket, "session.update", session=off)
    audio = base64.b64encode(bytes(480_000)).decode()
    socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": audio}))
    item_id = tell(socket, "input_audio_buffer.commit")["item_id"]
    for _ in range(2):
        socket.recv()
    ask = json.dumps({"type": "conversation.item.retrieve", "item_id": item_id})
    for _ in range(100):
        socket.send(ask)
    kept = [json.loads(socket.recv(60))["type"] for _ in range(100)]
    assert set(kept) == {"conversation.item.retrieved"}


def test_settings_without_effect_are_named(socket, monkeypatch):
    def ignored(audio_input):
        session = {"type": "realtime", "audio": {"input": audio_input}}
        answer = tell(socket, "session.update", session=session)
        assert answer["type"] == "session.updated", answer
        return answer.get("ignored")

    heard = {"prompt": "A talk about trains.", "keywords": ["Zwolle"]}
    place = "session.audio.input"
    monkeypatch.setattr(response_maker, "reduces_noise", lambda: False)
    words = [f"{place}.transcription.prompt", f"{place}.transcription.keywords"]
    assert ignored({"transcription": heard}) == words
    assert ignored({"noise_reduction": {"type": "far_field"}}) == [
        f"{place}.noise_reduction",
        *words,
    ]
    assert ignored({"noise_reduction": None, "transcription": {"prompt": ""}}) == words[1:]
    assert ignored({"transcription": None}) is None
    monkeypatch.setattr(response_maker, "reduces_noise", lambda: True)
    assert ignored({"noise_reduction": {"type": "near_field"}}) is None
