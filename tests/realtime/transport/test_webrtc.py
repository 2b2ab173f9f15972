"""Live sessions over WebRTC, with aiortc as the caller: audio in Opus, events on a data channel."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import asynccontextmanager
from fractions import Fraction

import httpx
import numpy as np
import pytest

from izwi.audio.pcm import to_s16le
from tests.realtime.conftest import LONG_ANSWER
from tests.realtime.hearing.test_vad import voice

aiortc = pytest.importorskip("aiortc", reason="needs the extra `webrtc`")
av = pytest.importorskip("av")

RATE = 24_000
FRAME = RATE // 50


class Microphone(aiortc.MediaStreamTrack):
    """Plays what it is given at 1x, and silence otherwise."""

    kind = "audio"

    def __init__(self):
        super().__init__()
        self.waiting, self.count, self.begun_s = b"", 0, None
        self.sends_silence = True

    def speak(self, samples):
        self.waiting += to_s16le(np.asarray(samples, np.float32))

    async def recv(self):
        self.begun_s = self.begun_s or time.monotonic()
        await asyncio.sleep(max(0.0, self.begun_s + self.count * 0.02 - time.monotonic()))
        while not (self.waiting or self.sends_silence):
            await asyncio.sleep(0.02)
            self.count += 1
        piece, self.waiting = self.waiting[: 2 * FRAME], self.waiting[2 * FRAME :]
        frame = av.AudioFrame(format="s16", layout="mono", samples=FRAME)
        frame.planes[0].update(piece.ljust(2 * FRAME, b"\0"))
        frame.sample_rate, frame.time_base = RATE, Fraction(1, RATE)
        frame.pts = self.count * FRAME
        self.count += 1
        return frame


class Caller:
    def __init__(self):
        self.peer = aiortc.RTCPeerConnection(aiortc.RTCConfiguration(iceServers=[]))
        self.microphone, self.events = Microphone(), []
        self.arrived, self.opened, self.ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.loudness = []  # of each frame that came
        self.peer.addTrack(self.microphone)
        self.channel = self.peer.createDataChannel("oai-events")
        self.channel.on("open", self.opened.set)
        self.channel.on("close", self.ended.set)
        self.channel.on("message", self._take)
        self.peer.on("track", lambda track: self._listen(track))

    def _take(self, message):
        self.events.append(json.loads(message))
        self.arrived.set()

    def _listen(self, track):
        self.listening = asyncio.create_task(self._hear(track))

    async def _hear(self, track):
        while True:
            try:
                frame = await track.recv()
            except aiortc.mediastreams.MediaStreamError:
                return
            self.loudness.append(float(np.abs(frame.to_ndarray()).max()))

    async def call(self, url, **more):
        await self.peer.setLocalDescription(await self.peer.createOffer())
        async with httpx.AsyncClient(timeout=60) as http:
            answer = await http.post(
                f"{url}/realtime/calls?model=chat",
                content=self.peer.localDescription.sdp,
                headers={"content-type": "application/sdp"} | more,
            )
        if answer.status_code == 201:
            described = aiortc.RTCSessionDescription(answer.text, "answer")
            await self.peer.setRemoteDescription(described)
            await asyncio.wait_for(self.opened.wait(), 60)
        return answer

    def send(self, kind, **fields):
        self.channel.send(json.dumps({"type": kind, **fields}))

    async def until(self, kind, seen=0):
        """Wait for an event of a kind after the first `seen` of it."""
        async with asyncio.timeout(90):
            while True:
                found = [event for event in self.events if event["type"] == kind]
                if len(found) > seen:
                    return found[seen]
                self.arrived.clear()
                await self.arrived.wait()

    def count(self, kind):
        return sum(event["type"] == kind for event in self.events)


@asynccontextmanager
async def calling(url):
    caller = Caller()
    try:
        answer = await caller.call(url)
        assert answer.status_code == 201, answer.text
        caller.location = answer.headers["location"]
        await caller.until("session.created")
        yield caller
    finally:
        await caller.peer.close()


@pytest.fixture
def url(served):
    served.answer = LONG_ANSWER
    return served.url


async def test_a_spoken_question_is_answered_on_the_track(url, said):
    async with calling(url) as caller:
        caller.microphone.speak(said("When does the train leave?"))
        await caller.until("response.created")
        started = await caller.until("output_audio_buffer.started")
        done = await caller.until("response.done")
        assert started["response_id"] == done["response"]["id"]
        await caller.until("output_audio_buffer.stopped")
        assert caller.count("response.output_audio.delta") == 0
        assert (
            "".join(
                event["delta"]
                for event in caller.events
                if event["type"] == "response.output_audio_transcript.delta"
            )
            == LONG_ANSWER
        )
        assert sum(peak > 1000 for peak in caller.loudness) > 50, "a second of sound"


async def test_a_turn_ends_when_the_sender_stops_sending(url, said):
    async with calling(url) as caller:
        caller.microphone.speak(said("When does the train leave?"))
        caller.microphone.sends_silence = False
        await caller.until("input_audio_buffer.speech_started")
        await caller.until("input_audio_buffer.speech_stopped")
        await caller.until("output_audio_buffer.started")


async def test_speech_over_an_answer_stops_it(url, said):
    async with calling(url) as caller:
        caller.send("response.create")
        await caller.until("output_audio_buffer.started")
        caller.microphone.speak(said("No, I would like to know about the bus."))
        done = await caller.until("response.done")
        assert done["response"]["status_details"]["reason"] == "turn_detected"
        await caller.until("output_audio_buffer.cleared")
        item = done["response"]["output"][0]
        caller.send("conversation.item.retrieve", item_id=item["id"])
        kept = (await caller.until("conversation.item.retrieved"))["item"]
        assert len(kept["content"][0]["transcript"] or "") < len(LONG_ANSWER)


async def test_clearing_the_output_buffer_stops_the_answer(url):
    async with calling(url) as caller:
        caller.send("response.create")
        await caller.until("output_audio_buffer.started")
        caller.send("output_audio_buffer.clear")
        await caller.until("output_audio_buffer.cleared")
        done = await caller.until("response.done")
        assert done["response"]["status_details"]["reason"] == "client_cancelled"
        assert caller.count("error") == 0


async def test_websocket_events_are_refused_and_the_call_continues(url):
    async with calling(url) as caller:
        caller.send("input_audio_buffer.append", audio="AAAA")
        assert (await caller.until("error"))["error"]["param"] == "type"
        audio = {"input": {"format": {"type": "audio/pcmu"}}}
        caller.send("session.update", session={"type": "realtime", "audio": audio})
        refused = await caller.until("error", 1)
        assert refused["error"]["param"] == "session.audio.input.format"
        caller.send("input_audio_buffer.clear")
        await caller.until("input_audio_buffer.cleared")


async def test_hanging_up_ends_the_call(url, served):
    async with calling(url) as caller, httpx.AsyncClient(timeout=60) as http:
        root = url.removesuffix("/v1")
        assert (await http.post(f"{root}{caller.location}/hangup")).status_code == 200
        await asyncio.wait_for(caller.ended.wait(), 60)
        for _ in range(200):
            gone = await http.post(f"{root}{caller.location}/hangup")
            if gone.status_code == 404:
                break
            await asyncio.sleep(0.05)
        assert gone.json()["error"]["param"] == "call_id"


async def test_disconnect_frees_the_engine(url, served):
    async with calling(url) as caller:
        caller.send("response.create")
        await caller.until("output_audio_buffer.started")
    async with asyncio.timeout(90):
        while any(load["running"] for load in served.engine.load.values()):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("body", "kind", "param"),
    [
        ("", "application/sdp", "sdp"),
        ("v=0\r\nnonsense", "application/sdp", "sdp"),
        ("\xff\xfe", "application/sdp", "sdp"),
        ("v=0\r\no=- 1 1 IN IP4 0.0.0.0\r\ns=-\r\nt=0 0\r\n", "application/sdp", "sdp"),
    ],
)
async def test_an_unusable_offer_is_refused(url, body, kind, param):
    async with httpx.AsyncClient(timeout=60) as http:
        answer = await http.post(
            f"{url}/realtime/calls?model=chat",
            content=body.encode("latin-1"),
            headers={"content-type": kind},
        )
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


async def test_a_form_may_contain_the_session(url):
    caller = Caller()
    await caller.peer.setLocalDescription(await caller.peer.createOffer())
    session = {"type": "realtime", "model": "chat", "instructions": "Be short."}
    sdp = caller.peer.localDescription.sdp
    async with httpx.AsyncClient(timeout=60) as http:
        form = {"sdp": (None, sdp), "session": (None, json.dumps(session))}
        answer = await http.post(f"{url}/realtime/calls", files=form)
        assert answer.status_code == 201, answer.text
        described = aiortc.RTCSessionDescription(answer.text, "answer")
        await caller.peer.setRemoteDescription(described)
        created = await caller.until("session.created")
        assert created["session"]["instructions"] == "Be short."
        await caller.peer.close()
        unknown = {"sdp": (None, sdp), "session": (None, json.dumps({"model": "nope"}))}
        refused = await http.post(f"{url}/realtime/calls", files=unknown)
        assert refused.status_code == 404


async def test_a_cough_pauses_the_track_without_losing_audio(url, said):
    async with calling(url) as caller:
        caller.send("response.create")
        await caller.until("output_audio_buffer.started")
        caller.microphone.speak(np.repeat(voice(31, 1.0)[4000:6400], 3)[::2])
        await caller.until("response.done")
        await caller.until("output_audio_buffer.stopped")
        assert caller.count("input_audio_buffer.speech_started") == 0
        assert caller.count("output_audio_buffer.cleared") == 0
