"""What `benchmarks.serving.by_length` draws never repeats, and its counts are those of /metrics."""

from __future__ import annotations

import base64
import io
from typing import Any

import pytest
import soundfile

from benchmarks.asr.random_audio import random_audio
from benchmarks.serving.by_length import Asker, random_text, random_voice
from izwi.audio.mel import WHISPER_RATE
from izwi.audio.speech_detection import no_speech_probability


def test_texts_have_their_length_and_differ() -> None:
    texts = [random_text(400, seed) for seed in range(20)]
    assert all(380 <= len(text) <= 400 for text in texts)
    assert len({text[:40] for text in texts}) == 20


def test_voices_have_their_length_and_differ() -> None:
    first, second = random_voice(1.5, 1), random_voice(1.5, 2)
    audio, rate = soundfile.read(io.BytesIO(base64.b64decode(first["ref_audio"])))
    assert len(audio) / rate == 1.5
    assert first != second


@pytest.mark.parametrize("seconds", [1.0, 8.0, 29.0])
def test_random_audio_has_its_length_differs_and_is_transcribed(seconds: float) -> None:
    clips = [random_audio(seconds, WHISPER_RATE, seed) for seed in range(4)]
    assert {len(audio) for audio in clips} == {round(seconds * WHISPER_RATE)}
    assert len({audio.tobytes() for audio in clips}) == 4
    # without speech a server answers at once, and a benchmark would time nothing
    assert {no_speech_probability(audio) for audio in clips} == {0.0}
    assert max(abs(audio).max() for audio in clips) < 1.0


class _Metrics:
    """A client whose server reports these figures."""

    def __init__(self, text: str):
        self._text = text

    def get(self, _: str) -> _Metrics:
        return self

    async def __aenter__(self) -> _Metrics:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def text(self) -> str:
        return self._text


async def test_delays_are_read_from_the_metrics() -> None:
    client: Any = _Metrics(
        "# HELP izwi_engine_compilations_total Kernels.\n"
        'izwi_engine_compilations_total{model="a"} 3.0\n'
        'izwi_engine_compilations_total{model="b"} 2.0\n'
        'izwi_engine_graph_captures_total{model="a"} 1.0\n'
    )
    assert await Asker("", client, "a", 1).delays() == (5, 1)
