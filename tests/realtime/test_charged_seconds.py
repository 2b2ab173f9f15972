"""A key is charged for the speech that a live session transcribes, once; and refused beyond."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest

from izwi.errors import QuotaExceeded
from izwi_api.usage.limits import KeyLimits
from izwi_api.usage.metering import Usage, current_usage
from tests.realtime.world import World, recorded

TRANSCRIBED = {"audio": {"input": {"transcription": {"model": "whisper-1"}}}}
FAILED = "conversation.item.input_audio_transcription.failed"
COMPLETED = "conversation.item.input_audio_transcription.completed"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        yield World(tmp_path_factory.mktemp("charged"), patch)


class Meter:
    """What is left of a key's seconds."""

    limits = KeyLimits()

    def __init__(self, seconds):
        self.left_s = seconds

    def charge(self, costs):
        if costs["audio-seconds"] > self.left_s:
            raise QuotaExceeded("no seconds are left", retry_after_s=60)
        self.left_s -= costs["audio-seconds"]

    def refund(self, costs):
        self.left_s += costs["audio-seconds"]


@contextmanager
def charged(seconds):
    meter = Meter(seconds)
    usage = Usage("key", meter)
    before = current_usage.set(usage)
    try:
        yield usage
    finally:
        current_usage.reset(before)


def test_speech_is_charged_once_although_it_is_transcribed_again(world):
    async def script(phone, _):
        await phone.be_silent(0.4)
        await phone.hear(recorded("would-like"))
        await phone.be_silent(0.1)  # an answer is prepared and discarded
        await phone.hear(recorded("question"))
        await phone.until_answered()

    with charged(60.0) as usage:
        phone = world.talk(script, session=TRANSCRIBED)
    assert False in phone.prepared
    turns_s = [made.event["usage"]["seconds"] for made in phone.of(COMPLETED)]
    # the silence at the end of a turn is not transcribed
    assert 0.0 < sum(turns_s) - usage.heard_s < 0.8 * len(turns_s)


def test_a_key_without_seconds_gets_no_transcript_and_the_session_goes_on(world):
    async def script(phone, _):
        for turn in range(2):
            await phone.be_silent(0.4)
            await phone.hear(recorded("question"))
            while len(phone.of("response.done")) <= turn:
                await phone.be_silent(0.04)
        phone.send_event("input_audio_buffer.clear")
        await phone.until("input_audio_buffer.cleared")

    with charged(0.3):
        phone = world.talk(script, session=TRANSCRIBED)
    codes = [made.event["error"]["code"] for made in phone.of(FAILED)]
    answers = [made.event["response"]["status_details"] for made in phone.of("response.done")]
    codes += [made["error"]["code"] for made in answers]
    assert codes == ["insufficient_quota"] * 4
    assert not phone.audio()


def test_speech_that_the_client_clears_is_in_no_transcript(world):
    async def script(phone, _):
        audio, question = recorded("would-like"), recorded("question")
        await phone.be_silent(0.4)
        await phone.hear(audio[: int(0.9 * np.flatnonzero(np.abs(audio) > 0.05)[-1])])
        phone.send_event("input_audio_buffer.clear")  # while the user speaks
        await phone.hear(question[np.flatnonzero(np.abs(question) > 0.05)[0] :])
        await phone.until(COMPLETED)

    phone = world.talk(script, session=TRANSCRIBED)
    (heard,) = phone.of(COMPLETED)
    assert heard.event["transcript"] == "When does the train leave?"
