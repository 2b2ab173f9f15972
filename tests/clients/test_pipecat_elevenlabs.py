"""pipecat's ElevenLabs service as it comes, over `multi-stream-input`: `pip install .[clients]`."""

from __future__ import annotations

import numpy as np
import pytest

from tests.api.served import served

pytest.importorskip("pipecat.services.elevenlabs.tts", reason="pipecat-ai is not installed")

from pipecat.frames.frames import ErrorFrame, TTSAudioRawFrame, TTSSpeakFrame, TTSStoppedFrame
from pipecat.pipeline.worker import PipelineParams
from pipecat.services.elevenlabs.tts import ElevenLabsTTSService
from pipecat.tests.utils import SleepFrame, run_test

pytestmark = pytest.mark.slow
RATES = PipelineParams(audio_in_sample_rate=24_000, audio_out_sample_rate=24_000)
TEXTS = ("The house is near the river.", "The garden is behind the house.")


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    with served(folder, "--model=izwi-tiny-tts", "--api", "elevenlabs") as server:
        yield server.url.replace("http", "ws", 1) + "/elevenlabs"


async def said(url, frames, **settings):
    wanted = {"model": "eleven_flash_v2_5", "voice": "amber"} | settings
    service = ElevenLabsTTSService(
        api_key="none", url=url, settings=ElevenLabsTTSService.Settings(**wanted)
    )
    down, up = await run_test(service, frames_to_send=frames, pipeline_params=RATES)
    audio = b"".join(frame.audio for frame in down if isinstance(frame, TTSAudioRawFrame))
    errors = [frame.error for frame in (*down, *up) if isinstance(frame, ErrorFrame)]
    return np.frombuffer(audio, np.int16), down, errors


async def test_texts_are_spoken_each_in_a_context(url):
    frames = [*(TTSSpeakFrame(text) for text in TEXTS), SleepFrame(5)]
    samples, down, errors = await said(url, frames)
    assert errors == []
    assert 2 < len(samples) / 24_000 < 20
    assert np.abs(samples).max() > 1000
    contexts = {frame.context_id for frame in down if isinstance(frame, TTSAudioRawFrame)}
    assert len(contexts) == len(TEXTS)
    assert any(isinstance(frame, TTSStoppedFrame) for frame in down)


async def test_an_unknown_voice_is_an_error(url):
    frames = [TTSSpeakFrame(TEXTS[0]), SleepFrame(3)]
    samples, _, errors = await said(url, frames, voice="Nobody")
    assert len(samples) == 0
    assert errors
