"""A server with the embedded checkpoints, and a sentence that it said."""

from __future__ import annotations

import io

import httpx
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
    """Ask whether the engine makes speech now."""

    async def ask():
        async with httpx.AsyncClient() as http:
            lines = (await http.get(f"{izwi.url}/metrics")).text.splitlines()
        head = 'izwi_engine_running{model="izwi-tiny-tts"} '
        (value,) = [line.removeprefix(head) for line in lines if line.startswith(head)]
        return float(value) > 0

    return ask
