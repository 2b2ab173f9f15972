"""Background sound is distinguished from speech: music, many voices, people far away."""

from __future__ import annotations

import numpy as np
import pytest
import soxr

from izwi_api.realtime.hearing.background import Background
from izwi_api.realtime.hearing.overlap import OverlapCheck
from izwi_api.realtime.hearing.vad import SpeechFrame, VoiceDetector
from tests.realtime.world import recorded

RATE = 16_000


def audio(name, lead_s=0.5):
    """A recorded sound behind near silence, at 16 kHz."""
    samples = soxr.resample(recorded(name), 24_000, RATE)
    samples = np.concatenate([np.zeros(int(lead_s * RATE)), samples, np.zeros(RATE // 2)])
    samples += np.random.default_rng(0).normal(size=len(samples)) * 3e-4
    return samples.astype(np.float32)


def speech(samples):
    return np.array([frame.speech >= 0.5 for frame in VoiceDetector().write(samples)])


@pytest.mark.parametrize("name", ["pad", "dial"])
@pytest.mark.parametrize("lead_s", [0.0, 0.5])
def test_sustained_tones_are_not_speech(name, lead_s):
    assert speech(audio(name, lead_s)).mean() < 0.06


def test_ringing_notes_after_the_first_are_not_speech():
    assert not speech(audio("music"))[75:].any()


def test_voices_without_pauses_become_background():
    found = speech(audio("babble"))
    assert found[100:].mean() < 0.25
    assert speech(audio("babble", 0.0))[75:].mean() < 0.25


@pytest.mark.parametrize(
    "name", ["question", "long", "stop", "woman-talks", "man-talks", "no-wait"]
)
@pytest.mark.parametrize("lead_s", [0.0, 0.5])
def test_a_speaker_is_detected(name, lead_s):
    found = speech(audio(name, lead_s))
    spoken = np.flatnonzero(found)
    # no gap in it is as long as the silence that ends a turn
    assert np.diff(spoken).max() < 25
    assert found[spoken[0] : spoken[-1] + 1].mean() > 0.65
    assert spoken[0] < 50 * lead_s + 20


@pytest.mark.parametrize("behind", ["pad", "babble"])
def test_a_speaker_is_detected_over_the_background(behind):
    voice, room = audio("long"), audio(behind, 0.0)
    room = np.resize(room, len(voice)) * (0.3 * np.std(voice) / np.std(room))
    spoken = np.flatnonzero(speech((voice + room).astype(np.float32)))
    assert np.diff(spoken).max() < 30
    assert spoken[-1] - spoken[0] > 300


def frames(level_db, count):
    samples = np.zeros(320, np.float32)
    return [SpeechFrame(0, 1.0, samples, level_db) for _ in range(count)]


@pytest.mark.parametrize(("below_db", "over_answer", "is_room"), [
    (5, True, False), (12, True, True), (12, False, False), (25, False, True),
])  # fmt: skip
def test_people_far_away_do_not_interrupt(below_db, over_answer, is_room):
    check = OverlapCheck()
    assert not any(check.is_room(frame, False) for frame in frames(-20.0, 100))
    check.begin_answer()
    far = frames(-20.0 - below_db, 20)
    assert [check.is_room(frame, over_answer) for frame in far] == [is_room] * 20


def test_nothing_is_background_before_the_first_speech():
    check = OverlapCheck()
    check.begin_answer()
    assert not any(check.is_room(frame, True) for frame in frames(-45.0, 20))


def test_frames_that_sound_like_speech_and_are_taken_for_music_are_marked():
    music = VoiceDetector().write(audio("pad"))
    assert np.mean([frame.is_hidden for frame in music]) > 0.1
    assert not any(frame.is_hidden and frame.speech >= 0.5 for frame in music)
    assert not any(frame.is_hidden for frame in VoiceDetector().write(np.zeros(32_000, np.float32)))


def test_level_hides_speech_only_where_a_detector_that_knows_pauses_finds_none():
    """Sound of one level: hidden from its start on, heard after a pause, hidden again after 4 s."""
    background = Background()
    draw = np.random.default_rng(4)

    def hidden(count, is_voiced):
        loud = 0.1 * draw.normal(size=(count, 320)).astype(np.float32)
        return [background.hides(frame, is_voiced, knows_pauses=True) for frame in loud]

    assert all(hidden(50, True))
    hidden(10, False)
    after = hidden(300, True)
    assert not any(after[:190])
    assert all(after[210:])
