"""A request looks its model up once, by name or alias; the model knows where requests go."""

from __future__ import annotations

from collections import Counter

import httpx
import pytest
from msgspec.structs import replace

from izwi.errors import InvalidRequest, ModelNotFound
from izwi.fairness.callers import current_caller
from izwi.inputs.speech import SpeechInput
from izwi_api.realtime.answering.response_maker import ResponseMaker
from izwi_api.realtime.protocol.items import Content, Item
from izwi_api.realtime.protocol.settings import RealtimeSettings
from izwi_api.serve.app import create_app
from izwi_api.services.context import Services
from izwi_api.services.models.served import LIVE_PRIORITY, ServedModels
from izwi_api.settings import Settings
from izwi_api.voices.store import VoiceStore
from tests.api.conftest import (
    FakeChat,
    FakeEngine,
    FakeRegistry,
    FakeSpeech,
    FakeTranscription,
    listening,
)

ALIASES = {"tts-1": "tts", "gpt": "chat", "whisper-1": "asr"}


class Counting(FakeRegistry):
    """Counts look-ups by kind and name."""

    def __init__(self, **models):
        super().__init__(**models)
        self.asked, self.num_found = Counter(), 0

    def speech(self, name):
        self.asked["speech", name] += 1
        return super().speech(name)

    def transcription(self, name):
        self.asked["transcription", name] += 1
        return super().transcription(name)

    def chat(self, name):
        self.asked["chat", name] += 1
        return super().chat(name)

    def model(self, name):
        self.num_found += 1
        return super().model(name)


def registry():
    return Counting(tts=FakeSpeech(), asr=FakeTranscription(), chat=FakeChat())


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    models = registry()
    settings = Settings(home=tmp_path_factory.mktemp("home"), model_aliases=ALIASES)
    with (
        listening(create_app(FakeEngine(), models, settings)) as port,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
    ):
        yield client, models


SPEECH = {"model": "tts-1", "input": "hello", "voice": "Ann", "response_format": "pcm"}
CHAT = {"model": "gpt", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("path", "body", "kind", "name"),
    [
        ("/v1/audio/speech", SPEECH, "speech", "tts"),
        ("/v1/audio/speech", SPEECH | {"stream_format": "sse"}, "speech", "tts"),
        ("/v1/chat/completions", CHAT, "model", "chat"),
        ("/v1/chat/completions", CHAT | {"stream": True, "n": 3}, "model", "chat"),
        ("/v1/responses", {"model": "gpt", "input": "hi"}, "chat", "chat"),
    ],
)
def test_request_looks_its_model_up_once(world, path, body, kind, name):
    client, models = world
    models.asked.clear()
    models.num_found = 0
    assert client.post(path, json=body).status_code == 200
    if kind == "model":  # looked up whatever it can do
        models.asked["model", name] = models.num_found
    assert models.asked == {(kind, name): 1}


def test_transcription_looks_its_model_up_once(world, tone_wav):
    client, models = world
    models.asked.clear()
    form = {"files": {"file": ("a.wav", tone_wav())}, "data": {"model": "whisper-1"}}
    assert client.post("/v1/audio/transcriptions", **form).json()["text"] == "word"
    assert models.asked == {("transcription", "asr"): 1}


@pytest.mark.parametrize("name", ["gpt", "chat"])
async def test_live_answer_looks_its_model_up_once(tmp_path, name):
    models, engine = registry(), FakeEngine()
    served = ServedModels(engine, models, ALIASES)
    services = Services(engine, served, Settings(), VoiceStore(tmp_path))
    maker = ResponseMaker(services)
    settings = RealtimeSettings(model=name, output_modalities=["text"])
    item = Item("message", role="user", content=[Content("input_text", "hi")])
    async with await maker.open_answer(settings, maker.setting(settings), [item]) as answer:
        text = [piece.content async for piece in answer.pieces()]
    assert "".join(text) == "hi"
    assert models.num_found == 1


class Asked(FakeEngine):
    """Keeps what was submitted."""

    requests = ()

    def submit_all(self, requests):
        self.requests = tuple(requests)
        return super().submit_all(requests)


async def test_requests_say_who_asks_and_those_of_live_sessions_come_first():
    engine = Asked()
    models = ServedModels(engine, registry(), ALIASES)
    plain, live = models.speech("tts-1"), models.live().speech("tts")
    assert (plain.name, live.name, plain.fingerprint) == ("tts", "tts", "f")
    request = plain.frontend.prepare_speech("a", plain.name, SpeechInput("x"))
    token = current_caller.set("key ann")
    try:
        async with plain.submit(request):
            assert [one.caller for one in engine.requests] == ["key ann"]
            assert (engine.requests[0].priority, engine.requests[0].awaits_engine) == (0, False)
        async with live.submit_all([request, replace(request, request_id="b")]):
            for one in engine.requests:
                assert (one.caller, one.priority) == ("key ann", LIVE_PRIORITY)
                assert one.awaits_engine
    finally:
        current_caller.reset(token)
    assert not engine.live


def test_names_that_are_no_models_are_refused():
    models = ServedModels(FakeEngine(), registry(), ALIASES)
    with pytest.raises(ModelNotFound, match="'nobody'"):
        models.model("nobody")
    with pytest.raises(InvalidRequest):
        models.speech("whisper-1")
    assert models.aliases() == ALIASES
    assert models.names() == ["tts", "asr", "chat"]
