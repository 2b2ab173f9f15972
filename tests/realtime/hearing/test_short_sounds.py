"""Short sounds over an answer: which have a pitch, and what wrong transcripts lead to.

`python -m benchmarks.live.interruptions` plays all of the recordings with the embedded transcriber.
"""

from __future__ import annotations

import numpy as np
import pytest
import soundfile

from izwi_api.realtime.hearing import transcriber as speech_transcriber
from izwi_api.realtime.hearing.input_audio import LiveTranscriber
from izwi_api.realtime.hearing.overlap import OverlapCheck
from izwi_api.realtime.hearing.pitch import PitchTracker
from izwi_api.realtime.hearing.vad import FRAME_MS, SpeechFrame, VoiceDetector
from izwi_api.realtime.turns.rules import Rules
from tests.realtime.scenes import Scene, cut, happened, over
from tests.realtime.sounds.make_short_sounds import SHORT
from tests.realtime.test_scenes import play
from tests.realtime.world import World, recorded, rms

RATE = 16_000
LEAST_MS = Rules().voiced_ms
# They come from vocal folds, or sound like them.
VOICED_NOISES = ("laugh-2", "laugh-4", "throat-buzz", "knock")
NAMES = sorted(path.stem for path in SHORT.glob("*.opus"))


def voiced_ms(name):
    """How much of a recording has a pitch, behind half a second of near silence."""
    samples = soundfile.read(SHORT / f"{name}.opus", dtype="float32")[0]
    samples = np.concatenate([np.zeros(RATE // 2), samples, np.zeros(RATE // 2)])
    samples += np.random.default_rng(0).normal(size=len(samples)) * 3e-4
    frames = VoiceDetector().write(samples.astype(np.float32))
    return FRAME_MS * sum(frame.is_voiced for frame in frames)


@pytest.mark.parametrize(
    "name", [name for name in NAMES if name.startswith("noise-") and name[6:] not in VOICED_NOISES]
)
def test_coughs_breath_and_knocks_have_no_pitch(name):
    assert voiced_ms(name) < LEAST_MS


# "Stop" of this voice is a whisper; but that word needs no pitch
@pytest.mark.parametrize(
    "name",
    [name for name in NAMES if not name.startswith("noise-") and name != "word-stop-british"],
)
def test_words_have_a_pitch(name):
    assert voiced_ms(name) >= LEAST_MS


def windows(samples):
    return [samples[start : start + 640] for start in range(0, len(samples) - 640, 320)]


@pytest.mark.parametrize("hertz", [70, 110, 180, 260, 380])
def test_a_gliding_pitch_is_voiced(hertz):
    at = np.arange(RATE) / RATE
    phase = 2 * np.pi * np.cumsum(hertz * (1 + 0.2 * at)) / RATE
    audio = sum(np.sin(k * phase) / k for k in range(1, 8)).astype(np.float32)
    tracker = PitchTracker()
    found = [tracker.is_voiced(window) for window in windows(audio)]
    assert np.mean(found) > 0.95
    tracker.skip()
    assert not tracker.is_voiced(audio[:640])


@pytest.mark.parametrize("band", [(150, 700), (300, 1400), (100, 4000)])
def test_band_limited_noise_has_no_pitch(band):
    spectrum = np.fft.rfft(np.random.default_rng(1).normal(size=4 * RATE))
    hertz = np.fft.rfftfreq(4 * RATE, 1 / RATE)
    spectrum[(hertz < band[0]) | (hertz > band[1])] = 0
    tracker = PitchTracker()
    found = [tracker.is_voiced(w) for w in windows(np.fft.irfft(spectrum).astype(np.float32))]
    assert np.mean(found) < 0.15


def test_the_quiet_end_of_a_word_is_transcribed():
    check, samples = OverlapCheck(), np.zeros(320, np.float32)
    for _ in range(100):
        check.is_room(SpeechFrame(0, 1.0, samples, -20.0), False)
    check.begin_answer()
    quiet = SpeechFrame(0, 1.0, samples, -45.0)
    for _ in range(11):
        assert check.is_room(quiet, True)
    assert not check.may_be_ending
    assert not check.is_room(SpeechFrame(0, 1.0, samples, -22.0), True)
    ends = []
    for _ in range(12):
        assert check.is_room(quiet, True)
        ends.append(check.may_be_ending)
    assert ends == [True] * 10 + [False] * 2


@pytest.mark.parametrize("num_echo", [1, 3])
def test_an_echo_is_not_the_quiet_end_of_a_word(num_echo, monkeypatch):
    check, samples = OverlapCheck(), np.zeros(320, np.float32)
    for _ in range(100):
        check.is_room(SpeechFrame(0, 1.0, samples, -20.0), False)
    check.begin_answer()
    check.write_sent(samples)
    assert not check.is_room(SpeechFrame(0, 1.0, samples, -22.0), True)
    assert check.may_be_ending
    monkeypatch.setattr(check._echo, "is_echo", lambda: True)
    for _ in range(num_echo):
        assert check.is_room(SpeechFrame(0, 1.0, samples, -22.0), True)
        assert not check.may_be_ending
    monkeypatch.undo()
    assert check.is_room(SpeechFrame(0, 1.0, samples, -45.0), True)
    assert not check.may_be_ending


class OddListener(LiveTranscriber):
    """Transcribes any speech as one unknown word."""

    async def _run(self):
        while await self._fed.get() is not None:
            self._on_text("Stuckedox.", "")
        return "Stuckedox."


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        yield World(tmp_path_factory.mktemp("world"), patch)


@pytest.mark.parametrize(
    ("script", "expected"), [(cut("stop"), "SERSXER"), (over("cough", then=(1.0,)), "SER")]
)
def test_a_mistranscribed_word_interrupts_and_a_cough_does_not(
    world, monkeypatch, script, expected
):
    monkeypatch.setattr(speech_transcriber, "LiveTranscriber", OddListener)
    assert happened(play(world, Scene(script, expected))) == expected


def bark(hertz, length_s, chance):
    """A burst with a pitch that rises and falls, rough, at 24 kHz. It is made, not recorded."""
    at = np.arange(round(24_000 * length_s)) / 24_000
    rise = np.exp(-(((at - 0.35 * length_s) / (0.25 * length_s)) ** 2))
    phase = 2 * np.pi * np.cumsum(hertz * (1 + 0.5 * rise)) / 24_000
    source = sum(np.sin(k * phase) / k**0.8 for k in range(1, 9))
    spectrum = np.fft.rfft(source + 1.2 * chance.normal(size=len(at)))
    bands = np.fft.rfftfreq(len(at), 1 / 24_000)
    throat = 0.25 + 1 / (1 + ((bands - 900) / 200) ** 2) + 0.7 / (1 + ((bands - 1800) / 300) ** 2)
    burst = np.fft.irfft(spectrum * throat / (1 + (bands / 4000) ** 2), len(at))
    return burst * np.minimum(1, at / 0.012) * np.exp(-at / (0.45 * length_s))


@pytest.mark.parametrize(
    ("hertz", "length_s", "count", "pause_s"),
    [
        (450, 0.18, 2, 0.25),
        *(
            pytest.param(*barks, marks=pytest.mark.slow)
            for barks in (
                *((350, 0.25, 1, 0.3), (300, 0.3, 2, 0.35), (600, 0.12, 3, 0.2)),
                *((700, 0.15, 2, 0.2), (500, 0.18, 4, 0.25)),
            )
        ),
    ],
)
def test_bursts_like_barks_do_not_interrupt(world, hertz, length_s, count, pause_s):
    chance = np.random.default_rng(1)
    bursts = [bark(hertz * chance.normal(1, 0.05), length_s, chance) for _ in range(count)]
    level = rms(recorded("question")) / rms(np.concatenate(bursts))
    pause = np.zeros(round(24_000 * pause_s))
    clip = np.concatenate([np.concatenate([level * burst, pause]) for burst in bursts])

    async def script(phone, engine):
        await phone.be_silent(0.4)
        await phone.hear(recorded("question"))
        await phone.until_sent(0.5)
        await phone.hear(np.clip(clip, -1, 1).astype(np.float32))
        await phone.until_answered()

    assert happened(world.talk(script)) == "SERD"
