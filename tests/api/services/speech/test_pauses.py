"""Pauses and pronunciations reach every speech model: whole texts, batches, sessions."""

from __future__ import annotations

import asyncio
import base64

import numpy as np
import pytest

from izwi.audio.pcm import to_s16le
from izwi.backends.torch.backend import torch_backend
from izwi.checkpoints.registry import Registry
from izwi.config import EngineConfig
from izwi.engine.async_engine import AsyncEngine
from izwi.engine.engine import Engine
from izwi.errors import InvalidRequest
from izwi.inputs.speech import SpeechInput
from izwi_api.services.models.served import ServedModels
from izwi_api.services.speech.synthesis import open_speech
from izwi_api.services.speech.writer import open_speech_writer

SPEECH = "/v1/audio/speech"
ASK = {"model": "tts", "voice": "Ann", "response_format": "pcm"}
TTS, RATE = "izwi-tiny-tts", 24_000


def silent_parts(pcm: np.ndarray) -> list[tuple[int, int]]:
    """Where exact zeros stand for a tenth of a second or more: first sample and number."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], (pcm == 0).astype(int), [0]))))
    runs = zip(edges[::2], edges[1::2], strict=True)
    return [(int(a), int(b - a)) for a, b in runs if b - a >= RATE // 10]


def say(client, **fields):
    return client.post(SPEECH, json=ASK | fields)


def test_a_pause_is_silence_of_its_length(client):
    plain = say(client, input="one").content, say(client, input="two").content
    paused = say(client, input="[pause:100ms]one[pause:0.5s]two[pause:250ms]")
    assert paused.status_code == 200
    zeros = [bytes(2 * int(RATE * seconds)) for seconds in (0.1, 0.5, 0.25)]
    expected = zeros[0] + plain[0] + zeros[1] + plain[1] + zeros[2]
    assert paused.content == expected


def test_pronunciations_are_what_is_spoken(client):
    listed = say(client, input="Izwi is here", pronunciations={"izwi": "ee-zwee"})
    assert listed.content == say(client, input="ee-zwee is here").content
    assert listed.content != say(client, input="Izwi is here").content
    item = {"input": "izwi", "pronunciations": {"izwi": "ee"}}
    batch = client.post(SPEECH + "/batch", json=ASK | {"items": [item]}).json()["results"]
    assert base64.b64decode(batch[0]["audio_data"]) == say(client, input="ee").content


def test_ignored_instructions_are_reported(client, server, monkeypatch):
    assert "x-izwi-ignored" not in say(client, input="hi").headers
    assert say(client, input="hi", instructions="Sing.").headers["x-izwi-ignored"] == "instructions"
    events = say(client, input="hi", instructions="Sing.", stream_format="sse")
    assert events.headers["x-izwi-ignored"] == "instructions"
    items = [{"input": "hi", "instructions": "Sing."}, {"input": "hi"}]
    batch = client.post(SPEECH + "/batch", json=ASK | {"items": items}).json()["results"]
    assert [result.get("ignored") for result in batch] == [["instructions"], None]
    monkeypatch.setattr(server.registry.speech("tts"), "follows_instructions", True)
    assert "x-izwi-ignored" not in say(client, input="hi", instructions="Sing.").headers


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": "[pause:1s]"}, "input"),
        ({"input": "a[pause:11s]b"}, "input"),
        ({"input": "[pause:9s]" * 7 + "a"}, "input"),
        ({"input": "a", "pronunciations": {"": "b"}}, "pronunciations"),
        ({"input": "a", "pronunciations": {"a": " "}}, "pronunciations"),
        ({"input": "a", "pronunciations": {f"{n}": "b" for n in range(101)}}, "pronunciations"),
        ({"input": "a " * 2000, "pronunciations": {"a": "b" * 200}}, "pronunciations"),
    ],
)
def test_invalid_pauses_and_pronunciations_are_400(client, fields, param):
    answer = say(client, **fields)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"].startswith(param)


# -- nothing is faked from here on -----------------------------------------------------------------
@pytest.fixture(scope="module")
def registry():
    made = Registry(torch_backend("cpu", "float32"))
    made.load(TTS)
    return made


@pytest.fixture
async def engine(registry):
    backend = torch_backend("cpu", "float32")
    running = AsyncEngine(Engine(registry.models, backend, EngineConfig(kv_bytes=1 << 26)))
    running.start()
    yield running
    await running.stop()


async def audio_of(speech) -> np.ndarray:
    pieces = [chunk.pcm async for chunk in speech.output() if chunk.pcm is not None]
    return np.concatenate(pieces)


def ask(text: str, **fields) -> SpeechInput:
    return SpeechInput(text, voice="amber", temperature=0.0, max_new_tokens=12, **fields)


TEXT = "Hello izwi.[pause:300ms] Good [pause:200ms]morning [pause:100ms]"
LISTED = {"izwi": "easy"}


@pytest.mark.parametrize("sizes", [(1, 100), pytest.param((3,), marks=pytest.mark.slow)])
async def test_a_text_that_is_written_pauses_where_the_whole_text_does(engine, registry, sizes):
    asked = ask(TEXT, pronunciations=LISTED, text_mode="full")
    whole = await audio_of(await open_speech(ServedModels(engine, registry).speech(TTS), asked))
    assert [n for _, n in silent_parts(whole)] == [RATE * 3 // 10, RATE // 5, RATE // 10]

    async def rest():
        return next(pieces, None)

    for size in sizes:
        writer = await open_speech_writer(ServedModels(engine, registry).speech(TTS), asked)
        pieces = iter([TEXT[at : at + size] for at in range(0, len(TEXT), size)])
        written, _ = await asyncio.gather(audio_of(writer), writer.feed(next(pieces), rest))
        assert to_s16le(written) == to_s16le(whole)


async def test_unspeakable_text_between_pauses_is_left_out(engine, registry):
    text = "Hello.[pause:100ms] *** [pause:200ms]Good."
    whole = await audio_of(await open_speech(ServedModels(engine, registry).speech(TTS), ask(text)))
    assert [n for _, n in silent_parts(whole)] == [RATE * 3 // 10]


async def test_nothing_but_pauses_is_nothing_to_say(engine, registry):
    for text in ("[pause:1s]", " [pause:1s] ... [pause:1s]"):
        with pytest.raises(InvalidRequest):
            await open_speech(ServedModels(engine, registry).speech(TTS), ask(text))
        writer = await open_speech_writer(ServedModels(engine, registry).speech(TTS), ask(""))
        await writer.write(text)
        with pytest.raises(InvalidRequest):
            await writer.close()
