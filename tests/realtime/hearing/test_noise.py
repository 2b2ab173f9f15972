"""Noise is reduced in what a session hears, if it asks for it and the package is installed."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest

from izwi.audio.pcm import from_s16le, to_s16le
from izwi_api.realtime.hearing.input_audio import InputBuffer
from izwi_api.realtime.hearing.noise import NoiseReducer
from izwi_api.realtime.protocol.formats import FORMATS, INPUT_RATE

PCM = FORMATS["audio/pcm"]


class Halving:
    """A processor that halves what it gets, and says with which settings it was made."""

    made: list = []  # noqa: RUF012

    def __init__(self, *settings):
        self.made.append(settings)

    def Process10ms(self, frame):
        assert len(frame) == 320
        return SimpleNamespace(audio=to_s16le(from_s16le(frame) / 2))


@pytest.fixture
def halving(monkeypatch):
    monkeypatch.setitem(sys.modules, "webrtc_noise_gain", SimpleNamespace(AudioProcessor=Halving))
    monkeypatch.setattr(Halving, "made", [])


def tone(seconds, rate=PCM.rate):
    return (0.5 * np.sin(2 * np.pi * 440 * np.arange(int(seconds * rate)) / rate)).astype("f4")


def level(samples):
    return float(np.sqrt(np.mean(np.square(samples))))


@pytest.mark.usefixtures("halving")
def test_sizes_of_pieces_change_nothing():
    samples = tone(0.5, INPUT_RATE)
    whole, pieces = NoiseReducer("near_field"), NoiseReducer("near_field")
    cut = [pieces.write(samples[start : start + 37]) for start in range(0, len(samples), 37)]
    np.testing.assert_array_equal(np.concatenate(cut), whole.write(samples))
    assert not len(whole.finish())


@pytest.mark.usefixtures("halving")
def test_a_buffer_hears_less_noise_at_the_same_places_and_keeps_the_bytes():
    buffer = InputBuffer(PCM, "webrtc")
    sent = to_s16le(tone(3.0))
    buffer.write(sent[:48_000])
    buffer.reduce_noise("near_field")
    for start in range(48_000, 96_000, 700):
        buffer.write(sent[start : min(start + 700, 96_000)])
    buffer.reduce_noise(None)
    buffer.write(sent[96_000:])
    levels = [level(buffer.samples(at, at + 900)) for at in (50, 1050, 2050)]
    assert levels == pytest.approx([0.354, 0.177, 0.354], abs=0.002)
    assert buffer.audio(0, 3000) == sent
    # resampled once: no sample was lost or came twice where the setting changed
    steady = buffer.samples(900, 2980)
    steady[INPUT_RATE // 10 : INPUT_RATE * 11 // 10] *= 2
    inner = steady[INPUT_RATE // 5 : -INPUT_RATE // 5]
    expected = tone(3.0, INPUT_RATE)[int(0.9 * INPUT_RATE) :][INPUT_RATE // 5 :][: len(inner)]
    assert np.mean(np.abs(inner - expected) < 0.01) > 0.97


@pytest.mark.usefixtures("halving")
def test_only_a_change_makes_a_new_reducer():
    buffer = InputBuffer(PCM, "webrtc")
    for distance in ("near_field", "near_field", "far_field", None, "far_field"):
        buffer.reduce_noise(distance)
    levels = [suppression for _, suppression in Halving.made]
    assert len(levels) == 3
    assert levels[0] < levels[1] == levels[2]  # more of what is far away


@pytest.mark.skipif(find_spec("webrtc_noise_gain") is None, reason="pip install 'izwi[noise]'")
@pytest.mark.parametrize(("distance", "quieter_db"), [("near_field", 4), ("far_field", 8)])
def test_steady_noise_is_quieter(distance, quieter_db):
    noise = np.random.default_rng(0).normal(0, 0.05, 3 * INPUT_RATE).astype(np.float32)
    reduced = NoiseReducer(distance).write(noise)
    assert 20 * np.log10(level(noise[-INPUT_RATE:]) / level(reduced[-INPUT_RATE:])) > quieter_db
