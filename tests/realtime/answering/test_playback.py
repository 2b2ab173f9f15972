"""What a client has played, and when more may be sent."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from izwi.backends.torch.backend import torch_backend
from izwi.checkpoints.registry import Registry
from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi.inputs.speech import SpeechInput
from izwi_api.realtime.answering.lead_in import LeadIn
from izwi_api.realtime.answering.playback import SessionPlayback


def test_audio_is_played_in_real_time():
    clock = SessionPlayback(250).send(1000, now_ms=5000)
    assert [clock.played_ms(now) for now in (5000, 5400, 6000, 9000)] == [0, 400, 1000, 1000]
    assert [clock.wait_ms(now) for now in (5000, 5400, 5750, 5800)] == [750, 350, 0, 0]


def test_a_gap_does_not_count_as_played():
    clock = SessionPlayback(250).send(100, 0).send(100, 1000)
    assert clock.played_ms(1050) == 150


def test_without_a_lead_all_audio_is_sent_at_once():
    clock = SessionPlayback(lead_ms=None).send(60_000, 0)
    assert clock.wait_ms(0) == 0
    assert clock.played_ms(1000) == 1000


@given(st.lists(st.tuples(st.floats(0, 400), st.floats(0, 400))))
def test_the_played_time_never_decreases_or_exceeds_the_sent_time(steps):
    clock, now_ms, before = SessionPlayback(250), 0.0, 0.0
    for duration_ms, wait_ms in steps:
        clock = clock.send(duration_ms, now_ms)
        now_ms += wait_ms
        played_ms = clock.played_ms(now_ms)
        assert before - 1e-6 <= played_ms <= clock.sent_ms
        before = played_ms
        assert clock.played_ms(now_ms + clock.wait_ms(now_ms)) >= clock.sent_ms - 250 - 1e-6


@pytest.mark.parametrize("cut", [1, 7, 100, 480, 1920, 24_000])
@pytest.mark.parametrize("quiet", [0, 100, 480, 3000, 9599])
def test_silence_at_the_start_of_an_answer_is_trimmed(cut, quiet):
    loud = np.linspace(0.1, 0.5, 4000, dtype=np.float32)
    whole = np.concatenate([np.full(quiet, 1e-4, np.float32), loud])
    # a codec's click: of a sample, and of 5 ms at -48 dBFS, decaying over 10 more
    click = np.concatenate([[0.02], np.full(119, 0.004), np.full(240, 0.001)])[:quiet]
    whole[: len(click)] = click
    lead_in = LeadIn(24_000)
    played = [lead_in.cut(whole[start : start + cut]) for start in range(0, len(whole), cut)]
    expected = whole[max(0, quiet - 480) :]
    np.testing.assert_array_equal(np.concatenate(played), expected)


@pytest.mark.parametrize("cut", [100, 1920, 24_000])
def test_a_pause_at_the_start_of_an_answer_is_kept(cut):
    whole = np.concatenate([np.zeros(24_000, np.float32), np.ones(100, np.float32)])
    lead_in = LeadIn(24_000)
    played = [lead_in.cut(whole[start : start + cut]) for start in range(0, len(whole), cut)]
    audio = np.concatenate(played)
    assert len(whole) - 9600 - 480 <= len(audio) <= len(whole) - 9600
    assert audio[-100:].all()


def test_the_lead_silence_of_every_embedded_voice_is_trimmed():
    """All of them start with a click and 160 ms of silence."""
    backend = torch_backend("cpu", "float32")
    registry = Registry(backend)
    name = registry.load("izwi-tiny-tts")
    model = registry.speech(name)
    engine = Engine(registry.models, backend, EngineConfig(kv_bytes=1 << 26))
    for voice in model.speakers:
        asked = SpeechInput("I can.", voice, seed=1)
        engine.submit(replace(model.prepare_speech(voice, name, asked), max_entries=4))
    audio = dict.fromkeys(model.speakers, np.zeros(0, np.float32))
    while engine.has_work:
        for chunk in engine.step():
            if chunk.pcm is not None:
                audio[chunk.request_id] = np.concatenate([audio[chunk.request_id], chunk.pcm])
    for voice, pcm in audio.items():
        trimmed = len(pcm) - len(LeadIn(24_000).cut(pcm))
        assert trimmed >= 24 * 130, voice
