"""Audio without speech is recognized, and nothing that might be speech is lost."""

from __future__ import annotations

import numpy as np
import pytest

from izwi.audio.speech_detection import SAMPLE_RATE, no_speech_probability

LENGTHS_S = (0.2, 0.5, 1.0, 3.7, 12.0)


def colored(rng, count, slope):
    hertz = np.fft.rfftfreq(count, 1 / SAMPLE_RATE)
    hertz[0] = hertz[1]
    bins = rng.normal(size=len(hertz)) + 1j * rng.normal(size=len(hertz))
    noise = np.fft.irfft(bins / hertz ** (slope / 2), count)
    return noise / np.abs(noise).max()


def hum(rng, count):
    at = np.arange(count) / SAMPLE_RATE
    mains = rng.choice([50.0, 60.0])
    return sum(
        np.sin(2 * np.pi * mains * k * at + rng.uniform(0, 6)) / (3 * k) for k in range(1, 9)
    )


def babble_like(rng, count):
    """Voiced syllables: harmonics of a moving pitch, with gaps, as speech has them."""
    at = np.arange(count) / SAMPLE_RATE
    phase = 2 * np.pi * np.cumsum(120 + 25 * np.sin(2 * np.pi * 0.7 * at)) / SAMPLE_RATE
    voice = sum(np.sin(k * phase) / k for k in range(1, 20))
    rate, offset = rng.uniform(3, 5), rng.uniform(0, 6)
    return 0.15 * voice * np.clip(np.sin(2 * np.pi * rate * at + offset) + 0.4, 0, None)


def gusts(rng, count, lowest_hz=80, highest_hz=900):
    """Noise of one band that comes and goes."""
    hertz = np.fft.rfftfreq(count, 1 / SAMPLE_RATE)
    bins = np.fft.rfft(rng.normal(size=count)) * ((hertz > lowest_hz) & (hertz < highest_hz))
    at = np.arange(count) / SAMPLE_RATE
    noise = np.fft.irfft(bins, count) * (1 + 0.9 * np.sin(2 * np.pi * rng.uniform(0.5, 6) * at))
    return noise / np.abs(noise).max()


SILENT = {
    "gusts": gusts,
    "gusts in a wide band": lambda rng, count: gusts(rng, count, 300, 3400),
    "digital silence": lambda _, count: np.zeros(count),
    "dither": lambda rng, count: rng.normal(size=count) / 32768,
    "white noise": lambda rng, count: colored(rng, count, 0.0),
    "pink noise": lambda rng, count: colored(rng, count, 1.0),
    "brown noise": lambda rng, count: colored(rng, count, 2.0),
    "tone": lambda rng, count: np.sin(rng.uniform(0.05, 1.0) * np.arange(count)),
    "hum in noise": lambda rng, count: 0.7 * hum(rng, count) + 0.2 * colored(rng, count, 1.0),
}


@pytest.mark.parametrize("kind", SILENT)
@pytest.mark.parametrize("seconds", LENGTHS_S)
@pytest.mark.parametrize("level_db", [-50, -20, -1])
def test_steady_sounds_hold_no_speech(kind, seconds, level_db):
    rng = np.random.default_rng(int(seconds * 10) - level_db)
    audio = SILENT[kind](rng, int(seconds * SAMPLE_RATE)) * 10 ** (level_db / 20)
    assert no_speech_probability(audio.astype(np.float32)) == 1.0


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("noise_db", [-60, -20, -6])
@pytest.mark.parametrize("level_db", [-40, 0])
def test_voiced_syllables_are_speech_also_in_noise_and_when_quiet(seed, noise_db, level_db):
    rng = np.random.default_rng(seed)
    count = int(rng.uniform(0.6, 3.0) * SAMPLE_RATE)
    voice = babble_like(rng, count)
    noise = colored(rng, count, 1.0) * 10 ** (noise_db / 20) * np.abs(voice).max()
    audio = (voice + noise) / np.abs(voice + noise).max() * 10 ** (level_db / 20)
    assert no_speech_probability(audio.astype(np.float32)) < 0.9


def test_one_second_of_speech_is_found_at_any_place_in_a_minute_of_noise():
    rng = np.random.default_rng(5)
    for second in (0, 31, 58.5):
        audio = 0.01 * colored(rng, 60 * SAMPLE_RATE, 1.0)
        start = int(second * SAMPLE_RATE)
        audio[start : start + SAMPLE_RATE] += babble_like(rng, SAMPLE_RATE)
        assert no_speech_probability(audio.astype(np.float32)) < 0.9


def test_a_clip_shorter_than_a_frame_and_an_empty_one_hold_none():
    assert no_speech_probability(np.zeros(0, np.float32)) == 1.0
    assert no_speech_probability(np.full(100, 0.5, np.float32)) == 1.0
