"""pipecat's OpenAI services as they come: `pip install .[clients]`."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("pipecat.services.openai.tts", reason="pipecat-ai is not installed")

from pipecat.frames.frames import (
    ErrorFrame,
    InputAudioRawFrame,
    TranscriptionFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
    TTSStartedFrame,
    TTSStoppedFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.pipeline.worker import PipelineParams
from pipecat.services.openai.stt import OpenAISTTService
from pipecat.services.openai.tts import OpenAITTSService
from pipecat.tests.utils import SleepFrame, run_test

from tests.clients.conftest import SENTENCE

RATES = PipelineParams(audio_in_sample_rate=24_000, audio_out_sample_rate=24_000)


def speaker(base_url, **settings):
    settings = {"model": "izwi-tiny-tts", "voice": "alloy"} | settings
    settings = OpenAITTSService.Settings(**settings)
    return OpenAITTSService(base_url=base_url, api_key="none", settings=settings)


def listener(base_url, include_prob_metrics=False, **settings):
    settings = {"model": "izwi-tiny-asr"} | settings
    return OpenAISTTService(
        base_url=base_url,
        api_key="none",
        include_prob_metrics=include_prob_metrics,
        settings=OpenAISTTService.Settings(**settings),
    )


def of_kind(frames, kind):
    return [frame for frame in frames if isinstance(frame, kind)]


async def run(service, frames):
    try:
        return await run_test(service, frames_to_send=frames, pipeline_params=RATES)
    finally:
        await service._client.close()  # the service leaves it open


async def said(service, text):
    down, up = await run(service, [TTSSpeakFrame(text)])
    audio = b"".join(frame.audio for frame in of_kind(down, TTSAudioRawFrame))
    return np.frombuffer(audio, np.int16), down, up


async def heard(service, samples):
    step = 480  # 20 ms, as transports deliver them
    parts = [samples[at : at + step].tobytes() for at in range(0, len(samples), step)]
    frames = [
        VADUserStartedSpeakingFrame(),
        SleepFrame(0.05),
        *(InputAudioRawFrame(part, 24_000, 1) for part in parts),
        SleepFrame(0.2),
        VADUserStoppedSpeakingFrame(),
    ]
    return await run(service, frames)


@pytest.mark.parametrize("settings", [{}, {"speed": 1.5, "instructions": "Speak slowly."}])
async def test_a_text_is_spoken(base_url, settings):
    samples, down, up = await said(speaker(base_url, **settings), SENTENCE)
    assert 1.5 < len(samples) / 24_000 < 10
    assert np.abs(samples).max() > 1000
    assert of_kind(down, TTSStartedFrame)
    assert of_kind(down, TTSStoppedFrame)
    assert not of_kind(up, ErrorFrame)


async def test_every_voice_of_the_service_speaks(base_url):
    for voice in ("ash", "cedar", "marin", "verse"):
        samples, _, _ = await said(speaker(base_url, voice=voice), "Good morning.")
        assert len(samples) > 12_000


async def test_speech_is_streamed(base_url, is_speaking):
    service = speaker(base_url)
    at_arrival = []

    async def watched(frame, *args, push=service.push_frame, **options):
        if isinstance(frame, TTSAudioRawFrame):
            at_arrival.append(await is_speaking())
        await push(frame, *args, **options)

    service.push_frame = watched
    await said(service, " ".join([SENTENCE] * 4))
    assert at_arrival[0]
    assert len(at_arrival) > 10


async def test_a_clip_is_transcribed(base_url, spoken):
    samples, text = spoken
    down, up = await heard(listener(base_url), samples)
    (frame,) = of_kind(down, TranscriptionFrame)
    assert not of_kind(up, ErrorFrame)
    # The service adds silence to the end, so it need not be heard to the letter.
    assert len(frame.text.split()) >= len(text.split()) / 2


@pytest.mark.parametrize(
    "settings",
    [
        {"prompt": "About a house.", "temperature": 0.0},
        {"model": "gpt-transcribe", "keywords": ["river", "garden"]},
        {"model": "whisper-1", "include_prob_metrics": True},  # it asks for verbose_json
    ],
)
async def test_transcription_options_are_accepted(base_url, spoken, settings):
    down, up = await heard(listener(base_url, **settings), spoken[0])
    assert of_kind(down, TranscriptionFrame)
    assert not of_kind(up, ErrorFrame)


async def test_token_probabilities_are_returned(base_url, spoken):
    """`include_prob_metrics` asks for log probabilities of the tokens."""
    down, up = await heard(listener(base_url, include_prob_metrics=True), spoken[0])
    assert not of_kind(up, ErrorFrame)
    (frame,) = of_kind(down, TranscriptionFrame)
    tokens = frame.result.logprobs
    assert "".join(token.token for token in tokens) == frame.text
    assert all(token.logprob <= 0 for token in tokens)


async def test_errors_are_reported(base_url):
    _, _, up = await said(speaker(base_url, model="izwi-tiny-asr"), "Good morning.")
    errors = of_kind(up, ErrorFrame)
    assert "400" in errors[0].error
