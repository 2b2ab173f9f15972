"""A microphone's constant offset, rumble and mains hum hide no speech."""

from __future__ import annotations

import numpy as np
import pytest

from izwi.audio.resample import resample
from izwi_api.realtime.hearing.echo import EchoCheck
from izwi_api.realtime.hearing.high_pass import HighPass
from izwi_api.realtime.hearing.vad import FRAME_SAMPLES, VoiceDetector
from tests.realtime.hearing.test_vad import voice
from tests.realtime.world import recorded

RATE = 16_000


@pytest.fixture(scope="module")
def question():
    """A question, and silence around it, at 16 kHz."""
    speech = resample(recorded("question"), 24_000, RATE)
    return np.pad(speech, RATE // 2).astype(np.float32)


def num_speech(samples):
    return sum(frame.speech >= 0.5 for frame in VoiceDetector().write(samples.astype(np.float32)))


def tone(frequency, size, level_db):
    peak = 10 ** (level_db / 20) * np.sqrt(2)
    return peak * np.sin(2 * np.pi * frequency * np.arange(size) / RATE)


@pytest.mark.parametrize("level_db", [0, -15])
@pytest.mark.parametrize(
    "below",
    [
        pytest.param(lambda size: np.full(size, 0.02), id="offset"),
        pytest.param(lambda size: np.full(size, 0.3), id="large offset"),
        pytest.param(lambda size: tone(50, size, -40), id="50 Hz"),
        pytest.param(lambda size: tone(60, size, -45), id="60 Hz"),
        pytest.param(lambda size: tone(15, size, -20), id="rumble"),
    ],
)
def test_low_frequency_noise_hides_no_speech(question, level_db, below):
    speech = question * 10 ** (level_db / 20)
    expected = num_speech(speech)
    assert expected > 40
    assert num_speech(speech + below(len(speech))) > 0.85 * expected
    assert num_speech(below(5 * RATE)) <= 2, "it is no speech itself"


def test_the_response_of_the_filter():
    impulse = np.zeros(RATE, np.float32)
    impulse[0] = 1.0
    response = np.abs(np.fft.rfft(HighPass().write(impulse)))  # 1 Hz apart
    levels_db = 20 * np.log10(response[[1, 50, 60, 80, 100, 200, 1000, 7999]] + 1e-12)
    assert levels_db[0] < -100
    np.testing.assert_allclose(levels_db[1:4], [-16.4, -10.4, -3.0], atol=0.1)
    assert (levels_db[4:] > -1.0).all()
    np.testing.assert_allclose(levels_db[5:], 0.0, atol=0.05)


def test_filtering_does_not_depend_on_how_the_input_is_cut():
    samples = np.random.default_rng(3).uniform(-1, 1, 80 * 40).astype(np.float32)
    parts, whole = HighPass(), HighPass().write(samples)
    pieces = [parts.write(piece) for piece in np.split(samples, [80, 400, 1600])]
    np.testing.assert_allclose(np.concatenate(pieces), whole, atol=1e-6)


def test_an_echo_is_recognized_behind_an_offset():
    audio = voice(7, 1.5)
    check = EchoCheck()
    check.begin_answer()
    check.write_sent(audio)
    for start in range(0, RATE, FRAME_SAMPLES):
        check.write_heard(0.1 * audio[start : start + FRAME_SAMPLES] + np.float32(0.05))
    assert check.explained() > 0.9
