"""Speech probability of a stream, and the server's own audio in the microphone."""

from __future__ import annotations

import numpy as np
import pytest

from izwi_api.realtime.hearing.echo import EchoCheck
from izwi_api.realtime.hearing.vad import FRAME_SAMPLES, VoiceDetector

RATE = 16_000


def voice(seed: int, seconds: float = 3.0) -> np.ndarray:
    """Syllables: harmonics of a moving pitch through moving formants, with gaps."""
    rng = np.random.default_rng(seed)
    at = np.arange(int(seconds * RATE)) / RATE
    pitch = rng.uniform(90, 220) * (1 + 0.15 * np.sin(2 * np.pi * rng.uniform(0.5, 1.5) * at))
    phase = 2 * np.pi * np.cumsum(pitch) / RATE
    formants = [
        low + width * np.sin(2 * np.pi * rng.uniform(1, 3) * at + rng.uniform(0, 6))
        for low, width in ((500, 200), (1500, 500), (2500, 300))
    ]
    total = np.zeros_like(at)
    for k in range(1, 25):
        gain = sum(1 / (1 + ((k * pitch - formant) / 150) ** 2) for formant in formants)
        total += gain * np.sin(k * phase)
    gaps = np.clip(np.sin(2 * np.pi * rng.uniform(2, 4) * at + rng.uniform(0, 6)) + 0.5, 0, 1)
    total *= gaps
    return (0.2 * total / np.abs(total).max()).astype(np.float32)


def probabilities(samples: np.ndarray, cut: int = 1000) -> np.ndarray:
    detector, frames = VoiceDetector(), []
    for start in range(0, len(samples), cut):
        frames += detector.write(samples[start : start + cut])
    assert [frame.end for frame in frames] == [
        FRAME_SAMPLES * (n + 1) for n in range(len(samples) // FRAME_SAMPLES)
    ]
    return np.array([frame.speech for frame in frames])


def test_speech_is_detected_and_silence_is_not():
    samples = np.concatenate([np.zeros(RATE, np.float32), voice(1), np.zeros(RATE, np.float32)])
    speech = probabilities(samples)
    assert speech[:48].max() == 0.0
    assert (speech[52:195] >= 0.5).mean() > 0.6
    assert speech[-25:].max() < 0.5


def test_detection_does_not_depend_on_how_audio_is_cut():
    samples = voice(2)
    whole = probabilities(samples)
    for cut in (1, 7, 320, 333, 48_000):
        np.testing.assert_array_equal(probabilities(samples[:9600], cut), whole[:30])


@pytest.mark.parametrize("level", [0.003, 0.02, 0.1, 0.3])
def test_white_noise_is_not_speech(level):
    noise = np.random.default_rng(3).normal(size=RATE * 4) * level
    speech = probabilities(noise.astype(np.float32)) >= 0.5
    assert not (speech[1:] & speech[:-1]).any()


@pytest.mark.parametrize("level_db", [-60, -70, -90])
def test_quiet_audio_is_not_speech(level_db):
    samples = voice(3) / 0.2 * 10 ** (level_db / 20)
    assert probabilities(samples.astype(np.float32)).max() == 0.0


def explained(sent: np.ndarray, heard: np.ndarray, lead_ms: int = 250) -> np.ndarray:
    """What an echo explains at each audible frame, where `sent` runs ahead of its playback."""
    check, lead, found = EchoCheck(), RATE * lead_ms // 1000, []
    check.write_sent(sent[:lead])
    for start in range(0, min(len(sent) - lead, len(heard)) - 320, 320):
        check.write_sent(sent[lead + start : lead + start + 320])
        frame = heard[start : start + 320]
        check.write_heard(frame)
        if start > RATE // 2 and np.abs(frame).max() > 0.2 * np.abs(heard).max():
            found.append(check.explained())
    assert len(found) > 40
    return np.array(found)


@pytest.mark.parametrize("level_db", [-10, -20])
@pytest.mark.parametrize("delay_ms", [50, 120, 400])
def test_an_echo_is_recognized(level_db, delay_ms):
    sent = voice(4)
    echo = np.concatenate([np.zeros(RATE * delay_ms // 1000), sent]) * 10 ** (level_db / 20)
    noise = np.random.default_rng(6).normal(size=len(echo)) * 0.03 * np.abs(echo).max()
    shares = explained(sent, (echo + noise).astype(np.float32))
    assert (shares >= 0.6).mean() > 0.97


@pytest.mark.parametrize("seed", range(11, 17))
def test_another_voice_is_not_an_echo(seed):
    sent, other = voice(4), voice(seed)
    assert (explained(sent, other) >= 0.6).mean() < 0.1
    echo = 0.1 * np.concatenate([np.zeros(RATE // 5), sent])[: len(other)]
    assert (explained(sent, (other + echo).astype(np.float32)) >= 0.6).mean() < 0.3


def test_silence_is_not_an_echo():
    check = EchoCheck()
    assert not check.is_echo()
    check.write_heard(np.zeros(RATE, np.float32))
    check.write_sent(voice(4))
    assert not check.is_echo()
