"""A telephone call as a transport, without a session; tests/realtime has whole calls."""

from __future__ import annotations

import asyncio
import base64
import json

import httpx
import numpy as np
import pytest
from websockets.exceptions import InvalidStatus

from izwi.audio.g711 import decode_g711, encode_g711
from izwi.audio.pcm import from_s16le, to_s16le
from izwi_api.realtime.answering.speaker import Speaker
from izwi_api.sessions.errors import ClientLeft, SessionOver
from izwi_api.sessions.loop_turns import LoopTurns
from izwi_api.vendors.telephony.call import PhoneCall
from izwi_api.vendors.telephony.twilio import Twilio
from izwi_api.vendors.telephony.vonage import Vonage

TONE = 0.5 * np.sin(np.arange(4800) / 10).astype(np.float32)  # 0.2 s at 24 kHz


class FakeWire:
    def __init__(self):
        self.inbox, self.sent = asyncio.Queue(), []

    async def receive(self):
        return await self.inbox.get()

    async def send(self, message):
        self.sent.append(message)

    async def close(self, code, reason):
        self.sent.append((code, reason))


def twilio_start(**parameters):
    start = {"streamSid": "MZ1", "customParameters": parameters}
    return json.dumps({"event": "start", "start": start})


def vonage_start(**parameters):
    first = {"event": "websocket:connected", "content-type": "audio/l16;rate=8000"}
    return json.dumps(first | parameters)


@pytest.fixture
async def call(request):
    """A call that has begun, and the tasks of its session."""
    carrier, start = request.param
    wire, heard = FakeWire(), []
    call = PhoneCall(wire, carrier(), LoopTurns())
    call.speaker = Speaker(lambda *_, **__: None)
    tasks = [asyncio.create_task(work) for work in call.background_tasks(heard.append)]
    wire.inbox.put_nowait(start(greet="1"))
    assert json.loads(await call.receive()) == {"type": "response.create"}
    tasks.append(asyncio.create_task(call.receive()))
    yield call, wire, heard
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def media_of(messages):
    """The frames of a call's audio, and its other messages."""
    read = [m if isinstance(m, bytes) else json.loads(m) for m in messages]
    is_media = [isinstance(m, bytes) or m.get("event") == "media" for m in read]
    frames = [
        m if isinstance(m, bytes) else base64.b64decode(m["media"]["payload"])
        for m, it_is in zip(read, is_media, strict=True)
        if it_is
    ]
    return frames, [m for m, it_is in zip(read, is_media, strict=True) if not it_is]


def size_of(messages):
    return sum(map(len, media_of(messages)[0]))


@pytest.mark.parametrize("call", [(Twilio, twilio_start)], indirect=True)
async def test_twilio_is_sent_what_is_played_with_marks_and_clears(call):
    call, wire, heard = call
    call.speaker.play("r1", to_s16le(TONE))
    await until(lambda: size_of(wire.sent) >= 2240)
    await call.send(json.dumps({"type": "output_audio_buffer.stopped", "response_id": "r1"}))
    await call.send(json.dumps({"type": "output_audio_buffer.cleared", "response_id": "r1"}))
    await call.send(json.dumps({"type": "response.done"}))  # it means nothing to a carrier
    frames, others = media_of(wire.sent)
    assert [other["event"] for other in others] == ["mark", "clear"]
    assert {other["streamSid"] for other in others} == {"MZ1"}
    assert set(map(len, frames)) == {160}
    samples = decode_g711(b"".join(frames), "mu")
    assert np.abs(samples).max() > 0.4
    assert np.sum(np.abs(samples) > 0.01) == pytest.approx(1600, rel=0.05)  # to its last sample
    payload = base64.b64encode(encode_g711(TONE[:1600], "mu")).decode()
    wire.inbox.put_nowait(json.dumps({"event": "media", "media": {"payload": payload}}))
    wire.inbox.put_nowait(json.dumps({"event": "mark", "mark": {"name": "r1"}}))
    await until(lambda: heard)
    assert len(from_s16le(b"".join(heard))) == pytest.approx(4800, abs=400)


@pytest.mark.parametrize("call", [(Vonage, vonage_start)], indirect=True)
async def test_vonage_is_sent_binary_frames_and_commands(call):
    call, wire, heard = call
    call.speaker.play("r1", to_s16le(TONE))
    await until(lambda: size_of(wire.sent) >= 4480)
    await call.send(json.dumps({"type": "output_audio_buffer.stopped", "response_id": "r1"}))
    await call.send(json.dumps({"type": "output_audio_buffer.cleared", "response_id": "r1"}))
    frames, commands = media_of(wire.sent)
    assert set(map(len, frames)) == {320}
    assert commands == [{"action": "notify", "payload": {"mark": "r1"}}, {"action": "clear"}]
    wire.inbox.put_nowait(to_s16le(TONE[:1600]))
    await until(lambda: heard)


@pytest.mark.parametrize("call", [(Twilio, twilio_start)], indirect=True)
async def test_nothing_is_sent_while_an_answer_is_paused(call):
    call, wire, _ = call
    call.speaker.pause()
    call.speaker.play("r1", to_s16le(TONE))
    await asyncio.sleep(0.1)
    assert not wire.sent
    call.speaker.resume()
    await until(lambda: size_of(wire.sent) >= 1600)


def twilio_key(key):
    return json.dumps({"event": "dtmf", "dtmf": {"track": "inbound_track", "digit": key}})


def twilio_silence(seconds):
    payload = base64.b64encode(b"\xff" * int(8000 * seconds)).decode()
    return json.dumps({"event": "media", "media": {"payload": payload}})


def vonage_key(key):
    return json.dumps({"event": "websocket:dtmf", "digit": key, "duration": 260})


def vonage_silence(seconds):
    return bytes(2 * int(8000 * seconds))


@pytest.mark.parametrize(
    ("carrier", "start", "key", "silence"),
    [
        (Twilio, twilio_start, twilio_key, twilio_silence),
        (Vonage, vonage_start, vonage_key, vonage_silence),
    ],
)
async def test_pressed_keys_are_one_message_that_is_answered(carrier, start, key, silence):
    wire = FakeWire()
    call = PhoneCall(wire, carrier(), LoopTurns())
    call.background_tasks(lambda _: None)[0].close()
    # a pause within a number; a key that is none; the end by a pause, and by "#"
    sent = (
        key("1"),
        silence(1.9),
        key("x"),
        key("2"),
        silence(1.0),
        silence(1.0),
        key("3"),
        key("#"),
    )
    for message in (start(), silence(3.0), *sent):
        wire.inbox.put_nowait(message)
    received = [json.loads(await call.receive()) for _ in range(6)]
    kinds = ["output_audio_buffer.clear", "conversation.item.create", "response.create"]
    assert [event["type"] for event in received] == 2 * kinds
    texts = [event["item"]["content"][0]["text"] for event in (received[1], received[4])]
    assert texts == [f"(Keys pressed on the phone: {keys})" for keys in ("12", "3#")]
    assert wire.inbox.empty()


@pytest.mark.parametrize(
    ("carrier", "start", "silence"),
    [(Twilio, twilio_start, twilio_silence), (Vonage, vonage_start, vonage_silence)],
)
async def test_a_long_message_of_a_carrier_lets_others_run(carrier, start, silence):
    wire, pieces = FakeWire(), []
    call = PhoneCall(wire, carrier(), LoopTurns())

    def append(audio):
        pieces.append((num_turns, len(audio)))

    call.background_tasks(append)[0].close()
    num_turns = 0
    wire.inbox.put_nowait(start())
    wire.inbox.put_nowait(silence(5.0))
    receiving = asyncio.create_task(call.receive())
    while len(pieces) < 49:
        num_turns += 1
        await asyncio.sleep(0)
    wire.inbox.put_nowait(json.dumps({"event": "other", "more": "x" * (1 << 20)}))
    with pytest.raises(SessionOver):
        await receiving
    assert max(size for _, size in pieces) <= 2 * 24_000 // 8
    assert len({turn for turn, _ in pieces[:49]}) == 49


@pytest.mark.parametrize(("carrier", "end"), [(Twilio, "stop"), (Vonage, "websocket:disconnected")])
async def test_a_call_ends(carrier, end):
    wire = FakeWire()
    wire.inbox.put_nowait(json.dumps({"event": end}))
    with pytest.raises(ClientLeft):
        await PhoneCall(wire, carrier(), LoopTurns()).receive()


def test_a_webhook_takes_the_key_as_a_password(vendors):
    url = f"{vendors.url}/v1/telephony/twilio"
    assert httpx.post(url).status_code == 401
    assert httpx.post(url, auth=("izwi", "wrong")).status_code == 401
    answer = httpx.post(url, auth=("izwi", vendors.keys["free"]))
    assert answer.status_code == 200, answer.text
    assert vendors.audited("free", "/v1/telephony/twilio")["status"] == 200
    secret = answer.text.partition("twilio/")[2].partition('"')[0]
    with vendors.connect(f"/v1/telephony/twilio/{secret}", {}) as socket:
        socket.send(json.dumps({"event": "stop"}))
    assert vendors.audited("free", "/v1/telephony/twilio/{secret}")["status"] == 101


def test_a_key_has_its_limits_over_the_telephone(vendors):
    url, auth = f"{vendors.url}/v1/telephony/vonage", ("izwi", vendors.keys["slow"])
    assert httpx.get(url, auth=auth).status_code == 200
    refused = httpx.get(url, auth=auth)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")


@pytest.mark.parametrize("rest", ["", "/ek_x.y", "/other"])
def test_a_stream_without_a_key_is_refused(vendors, rest):
    with pytest.raises(InvalidStatus) as caught:
        vendors.connect(f"/v1/telephony/vonage{rest}", {})
    assert caught.value.response.status_code == 401
