"""Barge-in at random times: 80 in each run, more at night. Answers are tones, for speed."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import numpy as np
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from izwi.engine_client.protocol import Abortable
from izwi.errors import ModelNotFound
from izwi.model.capability import Capability
from izwi.request.request import Reason
from izwi_api.realtime.answering import response_maker
from izwi_api.realtime.protocol.settings import RealtimeSettings
from izwi_api.services.chat.answer import AnswerDelta
from izwi_api.services.chat.cascade import AudioPiece
from izwi_api.services.context import Services
from izwi_api.services.models.served import ServedModels
from izwi_api.settings import Settings
from tests.examples import examples
from tests.realtime.hearing.test_vad import voice
from tests.realtime.phone import RATE, Phone, call
from tests.realtime.virtual import run_virtually

ANSWER_S = 3.0
WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


class Tones(Abortable):
    """An answer of known audio, generated a little faster than it is played."""

    sample_rate = RATE
    num_frames = 0

    def __init__(self, number):
        self.answer = SimpleNamespace(num_prompt_tokens=1, num_tokens=1, reason=Reason.STOP)
        at = np.arange(int(RATE * ANSWER_S)) / RATE
        self.pcm = (0.2 * np.sin(2 * np.pi * (300 + 20 * number) * at)).astype(np.float32)
        self.going = asyncio.Event()
        self.going.set()
        self.num_pauses = 0

    async def pieces(self):
        for number, part in enumerate(np.array_split(self.pcm, 30)):
            await self.going.wait()
            await asyncio.sleep(0.05)
            await self.going.wait()
            if number < len(WORDS):
                yield AnswerDelta(content=f"{WORDS[number]} ")
            yield AudioPiece(part)

    def pause(self):
        self.num_pauses += 1
        self.going.clear()

    def resume(self):
        self.going.set()

    def abort(self): ...


class OnlyChat:
    """A registry without a transcriber: speech over an answer is judged by its length alone."""

    def default(self, capability):
        if capability is Capability.TRANSCRIBE:
            raise ModelNotFound("no model that transcribes is served")
        return "chat"

    def names(self):
        return ["chat"]

    def adapter(self, name):
        return None

    def adapters_of(self, name):
        return []

    def fingerprint(self, name):
        return name

    def model(self, name):
        return SimpleNamespace(capabilities=frozenset())

    def chat(self, name):
        return name

    def transcription(self, name):
        raise ModelNotFound("no model that transcribes is served")


DISTURBANCES = st.lists(
    st.tuples(
        st.integers(0, 4000),  # milliseconds after the last one
        st.sampled_from([20, 60, 120, 240, 400, 700, 1500]),  # of speech
        st.integers(0, 1200),  # of silence behind it
    ),
    min_size=8,
    max_size=8,
)
SPEECH = np.repeat(voice(31, 3.0)[4000:], 3)[::2]


async def converse(disturbances, made):
    engine = SimpleNamespace(load={})
    phone = Phone()

    async def script():
        phone.send_event("response.create")
        for after_ms, speech_ms, silence_ms in disturbances:
            await phone.be_silent(after_ms / 1000)
            await phone.hear(SPEECH[: RATE * speech_ms // 1000])
            await phone.be_silent(silence_ms / 1000)
        await phone.be_silent(1.0)
        while phone.is_answering:
            await phone.be_silent(0.2)

    services = Services(engine, ServedModels(engine, OnlyChat()), Settings(), None)
    await call(services, RealtimeSettings(model="chat"), phone, script())
    return phone


@examples(20, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(DISTURBANCES)
def test_interruptions_at_any_time_keep_the_audio_and_history_consistent(monkeypatch, disturbances):
    made = []

    async def open_answer(*_):
        made.append(Tones(len(made)))
        return made[-1]

    monkeypatch.setattr(response_maker.ResponseMaker, "open_answer", open_answer)
    phone = run_virtually(converse(disturbances, made))
    check(phone, made)


def check(phone, made):
    """Each response ends once; whole ones are whole, cut ones are the beginning of theirs."""
    created = [e.event["response"]["id"] for e in phone.of("response.created")]
    done = [e.event["response"] for e in phone.of("response.done")]
    assert created == [response["id"] for response in done]
    assert not phone.of("error")
    whole = {}
    for tones in made:
        audio = (np.clip(tones.pcm, -1, 1) * 32767).round().astype("<i2")
        whole[audio.tobytes()[:9600]] = audio.tobytes()
    active = None
    for happened in phone.events:
        event = happened.event
        match event["type"]:
            case "response.created":
                assert active is None, "two responses are active"
                active = event["response"]["id"]
            case "response.done":
                active = None
            case "response.output_audio.delta":
                assert event["response_id"] == active, "audio of a response that has ended"
    for response in done:
        audio = phone.audio(response["id"])
        assert response["status"] in ("completed", "cancelled")
        if response["status"] == "cancelled":
            assert response["status_details"]["reason"] == "turn_detected"
        if len(audio) >= 9600:
            sent = np.frombuffer(audio, "<i2").astype(int)
            full = np.frombuffer(whole[audio[:9600]], "<i2").astype(int)
            assert np.array_equal(sent, full[: len(sent)]), "samples are missing or repeated"
            assert response["status"] == "cancelled" or len(sent) == len(full)


def test_short_speech_pauses_an_answer_and_long_speech_cancels_it(monkeypatch):
    """So the property above covers both cases."""
    made = []

    async def open_answer(*_):
        made.append(Tones(len(made)))
        return made[-1]

    monkeypatch.setattr(response_maker.ResponseMaker, "open_answer", open_answer)
    phone = run_virtually(converse([(1000, 120, 600), (200, 1500, 800)], made))
    assert made[0].num_pauses == 2
    assert [e.event["response"]["status"] for e in phone.of("response.done")] == [
        "cancelled",
        "completed",
    ]
    check(phone, made)
