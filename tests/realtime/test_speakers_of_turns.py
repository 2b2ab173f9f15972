"""Who speaks in the turns of a session that transcribes, in virtual time."""

from __future__ import annotations

import base64

import numpy as np
import pytest

from izwi.audio.encode import wav_header
from izwi.audio.pcm import to_s16le
from tests.realtime.phone import RATE
from tests.realtime.world import World, recorded

pytestmark = pytest.mark.slow  # models with weights

_KIND = "conversation.item.input_audio_transcription"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        yield World(tmp_path_factory.mktemp("speakers"), patch)


def session(**speakers):
    transcription = {"model": "izwi-tiny-asr", "speakers": True, **speakers}
    return {"type": "transcription", "audio": {"input": {"transcription": transcription}}}


def data_url(samples):
    pcm = to_s16le(samples)
    return f"data:audio/wav;base64,{base64.b64encode(wav_header(RATE, len(pcm)) + pcm).decode()}"


def says(*parts, pause_s=1.0):
    async def script(phone, _):
        await phone.be_silent(0.3)
        for part in parts:
            await phone.hear(part)
            await phone.be_silent(pause_s)
        end_s = phone.now_s + 5
        while len(phone.of(f"{_KIND}.completed")) < len(parts) and phone.now_s < end_s:
            await phone.be_silent(0.1)

    return script


def woman(start_s, stop_s):
    return recorded("woman-talks")[int(start_s * RATE) : int(stop_s * RATE)]


def man(start_s, stop_s):
    return recorded("man-talks")[int(start_s * RATE) : int(stop_s * RATE)]


def segments(phone):
    return [happened.event for happened in phone.of(f"{_KIND}.segment")]


def names(phone):
    said = [segment["speaker"] for segment in segments(phone)]
    return [name for n, name in enumerate(said) if n == 0 or said[n - 1] != name]


def text_of(phone, speaker):
    return " ".join(s["text"] for s in segments(phone) if s["speaker"] == speaker).lower()


def test_turns_have_speakers(world):
    phone = world.talk(says(woman(0, 3), man(0, 3), woman(3, 6)), session=session())
    assert names(phone) == ["A", "B", "A"]
    assert "market" in text_of(phone, "B")
    assert "garden" in text_of(phone, "A")
    woman_s, man_s = segments(phone)[0], next(s for s in segments(phone) if s["speaker"] == "B")
    assert woman_s["start"] < 0.4 < woman_s["end"]
    assert woman_s["end"] < 4.3 <= man_s["start"] + 0.5
    completed = [happened.event for happened in phone.of(f"{_KIND}.completed")]
    assert [event["item_id"] for event in completed] == list(
        dict.fromkeys(segment["item_id"] for segment in segments(phone))
    )


def test_a_change_within_a_turn_makes_two_segments_with_their_own_text(world):
    phone = world.talk(says(np.concatenate([woman(0, 4), man(0, 4)])), session=session())
    (committed,) = phone.of("input_audio_buffer.committed")
    assert {segment["item_id"] for segment in segments(phone)} == {committed.event["item_id"]}
    first, *_, last = names(phone)  # windows over the change may look like a third voice
    assert first == "A" != last
    assert "garden" in text_of(phone, first)
    assert "market" in text_of(phone, last)
    assert "market" not in text_of(phone, first)


def test_known_speakers_have_their_names(world):
    known = {
        "known_speaker_names": ["ann"],
        "known_speaker_references": [data_url(woman(0, 3))],
    }
    phone = world.talk(says(man(0, 3), woman(3, 6)), session=session(**known))
    assert names(phone) == ["A", "ann"]


def test_sessions_that_do_not_ask_have_no_segments(world):
    phone = world.talk(says(woman(0, 3)), session=session(speakers=False))
    assert phone.of(f"{_KIND}.completed")
    assert not segments(phone)
