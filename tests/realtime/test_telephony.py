"""Telephone calls as Twilio and Vonage stream them: spoken questions, answers, interruptions."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re

import httpx
import numpy as np
import pytest
import soundfile
import soxr
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from izwi.audio.g711 import decode_g711, encode_g711
from izwi.audio.pcm import from_s16le, to_s16le
from tests.realtime.conftest import ANSWER, LONG_ANSWER, TTS

QUESTION = "When does the train leave?"


class TwilioEnd:
    """Twilio's end of a stream: it plays at once, and echoes marks."""

    rate, carrier = 8000, "twilio"

    async def begin(self, socket, **parameters):
        await socket.send(json.dumps({"event": "connected", "protocol": "Call"}))
        start = {"streamSid": "MZ1", "callSid": "CA1", "customParameters": parameters}
        await socket.send(json.dumps({"event": "start", "streamSid": "MZ1", "start": start}))

    def frame(self, samples):
        payload = base64.b64encode(encode_g711(samples, "mu")).decode()
        return json.dumps({"event": "media", "media": {"track": "inbound", "payload": payload}})

    def read(self, message):
        """Samples, or the name of an event and the answer to it."""
        fields = json.loads(message)
        assert fields["streamSid"] == "MZ1"
        if fields["event"] == "media":
            return decode_g711(base64.b64decode(fields["media"]["payload"]), "mu")
        return fields["event"], message if fields["event"] == "mark" else None

    async def hang_up(self, socket):
        await socket.send(json.dumps({"event": "stop", "streamSid": "MZ1"}))


class VonageEnd:
    """Vonage's end: bare samples in binary messages, and commands."""

    rate, carrier = 16_000, "vonage"

    async def begin(self, socket, **parameters):
        first = {"event": "websocket:connected", "content-type": "audio/l16;rate=16000"}
        await socket.send(json.dumps(first | parameters))

    def frame(self, samples):
        return to_s16le(samples)

    def read(self, message):
        if isinstance(message, bytes):
            return from_s16le(message)
        fields = json.loads(message)
        if fields["action"] == "clear":
            return "clear", json.dumps({"event": "websocket:cleared"})
        return "mark", json.dumps({"event": "websocket:notify", "payload": fields["payload"]})

    async def hang_up(self, socket):
        await socket.send(json.dumps({"event": "websocket:disconnected"}))


class Caller:
    """Talks in real time, in frames of 20 ms, and notes what comes."""

    def __init__(self, socket, end):
        self.socket, self.end = socket, end
        self.heard, self.events = [], []
        self._queue = np.zeros(0, np.float32)
        self._tasks = [asyncio.create_task(self._talk()), asyncio.create_task(self._listen())]

    def say(self, samples):
        self._queue = soxr.resample(samples, 24_000, self.end.rate)

    @property
    def is_silent(self):
        return not len(self._queue)

    async def until(self, condition):
        async with asyncio.timeout(90):
            while not condition():
                for task in self._tasks:
                    if task.done():
                        task.result()
                await asyncio.sleep(0.01)

    def seconds(self):
        return sum(map(len, self.heard)) / self.end.rate

    async def _talk(self):
        size, silence = self.end.rate // 50, np.zeros(self.end.rate // 50, np.float32)
        while True:
            frame, self._queue = self._queue[:size], self._queue[size:]
            await self.socket.send(self.end.frame(np.concatenate([frame, silence])[:size]))
            await asyncio.sleep(0.02)

    async def _listen(self):
        async for message in self.socket:
            received = self.end.read(message)
            if isinstance(received, tuple):
                name, answer = received
                self.events.append(name)
                if answer is not None:
                    await self.socket.send(answer)
            else:
                self.heard.append(received)

    async def leave(self):
        self._tasks[0].cancel()
        await self.end.hang_up(self.socket)
        async with asyncio.timeout(30):
            await asyncio.gather(*self._tasks, return_exceptions=True)


def url_of(served, end, rest=""):
    return f"ws://127.0.0.1:{served.port}/v1/telephony/{end.carrier}{rest}"


def transcript(served, samples, rate):
    """What the embedded transcriber hears in samples."""
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format="wav")
    answer = httpx.post(
        f"{served.url}/audio/transcriptions",
        data={"model": "izwi-tiny-asr"},
        files={"file": ("a.wav", file.getvalue())},
        timeout=60,
    )
    return answer.raise_for_status().json()["text"].lower()


@pytest.mark.slow
@pytest.mark.parametrize("end", [TwilioEnd(), VonageEnd()], ids=["twilio", "vonage"])
async def test_a_caller_asks_and_hears_the_answer(served, said, client, end):
    async with connect(url_of(served, end), proxy=None) as socket:
        await end.begin(socket)
        caller = Caller(socket, end)
        caller.say(said(QUESTION))
        await caller.until(lambda: "mark" in caller.events)  # all of the answer was sent
        await caller.leave()
    assert "clear" not in caller.events
    assert "train" in served.prompts[-1][-1].content.lower()
    heard = np.concatenate(caller.heard)
    assert caller.seconds() == pytest.approx(len(said(ANSWER, "amber")) / 24_000, rel=0.5)
    assert "seven" in transcript(served, heard, end.rate)


@pytest.mark.slow
async def test_speech_over_an_answer_clears_it(served, said, client):
    served.answer = LONG_ANSWER
    end = TwilioEnd()
    async with connect(url_of(served, end), proxy=None) as socket:
        await end.begin(socket)
        caller = Caller(socket, end)
        caller.say(said(QUESTION))
        await caller.until(lambda: caller.seconds() > 0.5)
        caller.say(said("No, wait. When does the bus leave?"))
        await caller.until(lambda: "clear" in caller.events)
        await caller.leave()
    whole_s = len(said(LONG_ANSWER, "amber")) / 24_000
    assert caller.seconds() < whole_s
    assert "mark" not in caller.events  # it was not played to its end


@pytest.mark.slow
async def test_pressed_keys_are_answered(served, client):
    end = TwilioEnd()
    async with connect(url_of(served, end), proxy=None) as socket:
        await end.begin(socket)
        caller = Caller(socket, end)
        for key in "47#":
            await socket.send(json.dumps({"event": "dtmf", "dtmf": {"digit": key}}))
        await caller.until(lambda: caller.seconds() > 0.5)
        await caller.leave()
    assert served.prompts[-1][-1].content == "(Keys pressed on the phone: 47#)"


@pytest.mark.slow
async def test_the_answering_side_speaks_first_if_asked(served, client):
    end = TwilioEnd()
    async with connect(url_of(served, end), proxy=None) as socket:
        await end.begin(socket, greet="1")
        caller = Caller(socket, end)
        await caller.until(lambda: caller.seconds() > 0.5)
        await caller.leave()


def test_a_webhook_connects_the_call_to_its_session(served):
    query = {"voice": "felix", "instructions": "Be brief.", "greet": "1"}
    url = f"{served.url}/telephony/twilio"
    twiml = httpx.post(url, params=query, data={"CallSid": "CA1"}, headers={"host": "127.0.0.1"})
    assert twiml.headers["content-type"].startswith("application/xml")
    (address,) = re.findall(r'<Connect><Stream url="(wss://127.0.0.1/[^"]+)">', twiml.text)
    assert address.startswith("wss://127.0.0.1/v1/telephony/twilio/ek_")
    assert '<Parameter name="greet" value="1"/>' in twiml.text
    (action,) = httpx.get(f"{served.url}/telephony/vonage").json()
    (endpoint,) = action["endpoint"]
    assert (action["action"], endpoint["type"]) == ("connect", "websocket")
    assert endpoint["content-type"] == "audio/l16;rate=16000"
    assert f":{served.port}/v1/telephony/vonage/ek_" in endpoint["uri"]


@pytest.mark.parametrize(
    "query", [{"voice": "nobody"}, {"model": TTS}, {"instructions": "a" * 5000}]
)
def test_a_webhook_refuses_what_the_session_would(served, query):
    answer = httpx.post(f"{served.url}/telephony/twilio", params=query)
    assert 400 <= answer.status_code < 500
    assert answer.json()["error"]["message"]


async def test_a_call_has_the_settings_of_its_secret(served, client):
    async with httpx.AsyncClient() as http:
        url, query = f"{served.url}/telephony/vonage", {"instructions": "Be brief."}
        address = await http.get(url, params=query)
    path = address.json()[0]["endpoint"][0]["uri"].rpartition("/")[2]
    end = VonageEnd()
    async with connect(url_of(served, end, f"/{path}"), proxy=None) as socket:
        await end.begin(socket, greet="1")
        caller = Caller(socket, end)
        await caller.until(lambda: served.prompts)
        await caller.leave()
    assert served.prompts[-1][0].content == "Be brief."


async def test_a_secret_that_is_none_is_refused(served):
    with pytest.raises(InvalidStatus) as caught:
        await connect(url_of(served, TwilioEnd(), "/ek_x.y"), proxy=None)
    assert caught.value.response.status_code == 400


@pytest.mark.parametrize("sent", ["nonsense", "[]", '{"event": "start"}', '{"event": "media"}'])
async def test_what_is_no_message_ends_the_call(served, sent):
    async with connect(url_of(served, TwilioEnd()), proxy=None) as socket:
        await socket.send(sent)
        with pytest.raises(ConnectionClosed):
            async with asyncio.timeout(30):
                await socket.recv()
