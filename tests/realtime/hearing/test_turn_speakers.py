"""Segments by speaker of one turn, with a speaker encoder and a transcriber that are scripted."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest

from izwi.errors import EngineStopped
from izwi_api.realtime.hearing import turn_speakers
from izwi_api.realtime.hearing.turn_speakers import TurnSpeakers, merged
from izwi_api.realtime.protocol.settings import Transcription
from izwi_api.schemas.known_speakers import SpeakerSetting
from izwi_api.services.speakers.timeline import SAMPLE_RATE, Turn

S = SAMPLE_RATE
TURN = np.zeros(4 * S, np.float32)


class Scripted:
    """Names turns as the test says, and transcribes a part as the second in which it begins."""

    named = ()
    refunded = 0

    def __init__(self, *_):
        self._samples = None

    async def name_turns(self, samples):
        if isinstance(self.named, Exception):
            raise self.named
        return list(self.named)

    def feed(self, samples):
        self._samples = samples

    def finish(self):
        text = asyncio.get_running_loop().create_future()
        text.set_result(f"{len(self._samples) / S:.1f} s")
        return text

    def refund(self):
        Scripted.refunded += 1

    def close(self): ...

    @staticmethod
    def split_audio(samples):
        return [(0, len(samples))]


@pytest.fixture
def segments(monkeypatch):
    monkeypatch.setattr(turn_speakers, "LiveSpeakers", Scripted)
    monkeypatch.setattr(turn_speakers, "LiveTranscriber", Scripted)
    monkeypatch.setattr(Scripted, "refunded", 0)
    registry = SimpleNamespace(transcription=lambda _: SimpleNamespace(frontend=Scripted))

    def run(named, text="Hello there."):
        monkeypatch.setattr(Scripted, "named", named)

        async def spoken():
            transcript = asyncio.get_running_loop().create_future()
            if isinstance(text, Exception):
                transcript.set_exception(text)
            else:
                transcript.set_result(text)
            speakers = TurnSpeakers(SimpleNamespace(registry=registry), SpeakerSetting())
            made = await speakers.segments(Transcription(model="any"), TURN, transcript)
            return [(one.start_s, one.end_s, one.speaker, one.text) for one in made]

        return asyncio.run(spoken())

    return run


def turn(start_s, stop_s, name):
    return Turn(int(start_s * S), int(stop_s * S), 0), name


def test_one_speaker_has_the_transcript_of_the_turn(segments):
    said = segments([turn(0.3, 1.5, "A"), turn(1.8, 3.5, "A")])
    assert said == [(0.0, 4.0, "A", "Hello there.")]
    assert Scripted.refunded == 0


def test_several_speakers_are_transcribed_each_and_not_charged_again(segments):
    said = segments([turn(0.3, 1.0, "A"), turn(1.2, 2.0, "A"), turn(2.0, 3.5, "B")])
    assert [(a, b, name) for a, b, name, _ in said] == [(0.0, 2.0, "A"), (2.0, 3.75, "B")]
    assert [text for *_, text in said] == ["2.0 s", "1.8 s"]
    assert Scripted.refunded == 2


def test_an_engine_that_cannot_tell_leaves_the_transcript(segments):
    assert segments(EngineStopped("gone")) == [(0.0, 4.0, "", "Hello there.")]


def test_a_transcript_that_failed_is_reported(segments):
    with pytest.raises(EngineStopped):
        segments([turn(0.0, 4.0, "A")], EngineStopped("gone"))


def test_nothing_said_has_no_segment(segments):
    assert segments([turn(0.0, 4.0, "A")], "") == []


def test_turns_of_one_speaker_that_overlap_another_stay_apart():
    turns = [turn(0, 2, "A"), turn(1, 3, "B"), turn(2.5, 4, "A")]
    assert [name for _, name in merged(turns)] == ["A", "B", "A"]
