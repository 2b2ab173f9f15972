"""A server with the embedded checkpoints, and a sentence that it said."""

from __future__ import annotations

import io
from functools import cache

import httpx
import numpy as np
import pytest
import soundfile

from tests.api.served import served
from tests.clients.openai_suite import link_models

# What clients do depends on the model's name: they ask these for what only they have at OpenAI.
OPENAI_NAMES = {
    "tts-1": "izwi-tiny-tts",
    "gpt-transcribe": "izwi-tiny-asr",
    "whisper-1": "izwi-tiny-asr",
}
SENTENCE = "The house is near the river, and the garden is behind the house."


@pytest.fixture(scope="module")
def izwi(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    options = ["--model", "izwi-tiny-tts", "--model", "izwi-tiny-asr"]
    with served(folder, *options, *link_models(folder, OPENAI_NAMES)) as server:
        yield server


@pytest.fixture(scope="module")
def base_url(izwi):
    return f"{izwi.url}/v1"


@pytest.fixture(scope="module")
def spoken(base_url):
    """The sentence as 16-bit samples at 24 kHz, and the text that is heard in it."""
    body = {"model": "izwi-tiny-tts", "voice": "alloy", "response_format": "wav"}
    answer = httpx.post(f"{base_url}/audio/speech", json=body | {"input": SENTENCE}, timeout=60)
    wav = answer.raise_for_status().content
    files, fields = {"file": ("a.wav", wav)}, {"model": "izwi-tiny-asr"}
    heard = httpx.post(f"{base_url}/audio/transcriptions", data=fields, files=files, timeout=60)
    samples, rate = soundfile.read(io.BytesIO(wav), dtype="int16")
    assert rate == 24_000
    text = heard.raise_for_status().json()["text"]
    assert len(text.split()) > 6
    return samples, text


@pytest.fixture
def is_speaking(izwi):
    """Return whether the engine is generating speech."""

    async def ask():
        async with httpx.AsyncClient() as http:
            lines = (await http.get(f"{izwi.url}/metrics")).text.splitlines()
        head = 'izwi_engine_running{model="izwi-tiny-tts"} '
        (value,) = [line.removeprefix(head) for line in lines if line.startswith(head)]
        return float(value) > 0

    return ask


@pytest.fixture(scope="package")
def live_url(tmp_path_factory):
    """A server for live voice, as `ws://...`."""
    options = [f"--model={name}" for name in ("izwi-tiny-chat", "izwi-tiny-tts", "izwi-tiny-asr")]
    with served(tmp_path_factory.mktemp("live"), *options) as server:
        yield f"{server.url.replace('http', 'ws', 1)}/v1/realtime?model=izwi-tiny-chat"


@pytest.fixture(scope="package")
def said(live_url):
    """Say a text with another voice than the answers': 16-bit PCM at 24 kHz, and silence."""
    url = live_url.replace("ws", "http", 1).partition("/v1/")[0] + "/v1/audio/speech"

    @cache
    def say(text, silence_s=1.0):
        ask = {"model": "izwi-tiny-tts", "voice": "felix", "response_format": "pcm", "seed": 1}
        spoken = httpx.post(url, json=ask | {"input": text}, timeout=90)
        return spoken.raise_for_status().content + bytes(int(48_000 * silence_s) // 2 * 2)

    return say


@pytest.fixture(scope="package")
def heard(live_url):
    """Write 16-bit PCM at 24 kHz down."""
    url = live_url.replace("ws", "http", 1).partition("/v1/")[0] + "/v1/audio/transcriptions"

    def hear(pcm):
        file = io.BytesIO()
        samples = np.frombuffer(pcm, np.int16)
        soundfile.write(file, samples, 24_000, format="wav")
        answer = httpx.post(
            url,
            data={"model": "izwi-tiny-asr"},
            files={"file": ("a.wav", file.getvalue())},
            timeout=60,
        )
        return answer.raise_for_status().json()["text"]

    return hear
