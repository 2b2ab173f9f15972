"""A stream that would wait too long is refused before its input is decoded or prepared."""

from __future__ import annotations

import base64
from types import SimpleNamespace

import httpx
import pytest

from izwi.errors import Overloaded
from izwi.fairness.callers import is_idle_work
from izwi_api.serve.app import create_app
from izwi_api.services.models.served import ServedModel
from izwi_api.services.speech.synthesis import open_speech
from izwi_api.settings import Settings
from tests.api.conftest import FakeChat, FakeEngine, FakeRegistry, FakeSpeech, FakeTranscription

NOTHING = object()  # neither prepares nor splits anything


class FullEngine(FakeEngine):
    """Refuses each new stream; counts how often it was asked."""

    num_asked = 0

    def check_admission(self, model):
        self.num_asked += 1
        raise Overloaded(f"{model} would take 900 ms", retry_after_s=3)


class Untouched:
    """Has what routes read of a model at first, and fails when it prepares anything."""

    def __init__(self, model):
        self._model = model

    def __getattr__(self, name):
        assert not name.startswith(("prepare", "split")), name
        return getattr(self._model, name)


@pytest.fixture
def full(tmp_path, monkeypatch):
    models = {"tts": FakeSpeech(), "chat": FakeChat(), "asr": FakeTranscription()}
    registry = FakeRegistry(**{name: Untouched(model) for name, model in models.items()})
    engine = FullEngine()
    app = create_app(engine, registry, Settings(home=tmp_path))
    decoder = app.state.izwi.services.decoder

    async def decode(*_):
        raise AssertionError("the file was decoded")

    monkeypatch.setattr(decoder, "spool", decode)
    monkeypatch.setattr(decoder, "decode", decode, raising=False)
    transport = httpx.ASGITransport(app)
    return SimpleNamespace(
        engine=engine, http=httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1")
    )


def speech(**fields):
    return ("/v1/audio/speech", {"json": {"model": "tts", "input": "Hello."} | fields})


CLIP = base64.b64encode(b"RIFF no audio").decode()
MESSAGES = [{"role": "user", "content": "Hello."}]


@pytest.mark.parametrize(
    "ask",
    [
        speech(),
        speech(stream_format="sse"),
        speech(input="<speak>One.<break time='1s'/>Two.</speak>"),
        speech(ref_audio=CLIP),
        ("/v1/chat/completions", {"json": {"model": "chat", "messages": MESSAGES}}),
        ("/v1/chat/completions", {"json": {"model": "chat", "messages": MESSAGES, "stream": True}}),
        (
            "/v1/audio/transcriptions",
            {"data": {"model": "asr"}, "files": {"file": ("a.wav", b"RIFF no audio")}},
        ),
    ],
    ids=str,
)
async def test_a_refused_request_is_neither_decoded_nor_prepared(full, ask):
    path, body = ask
    async with full.http as http:
        answer = await http.post(path, **body)
    assert answer.status_code == 503, answer.text
    assert answer.headers["retry-after"] == "3"
    assert answer.json()["error"]["code"] == "overloaded"
    assert (full.engine.num_asked, full.engine.num_submitted) == (1, 0)


async def test_live_sessions_and_background_work_are_not_asked():
    engine = FullEngine()
    model = ServedModel("tts", FakeSpeech(), "f", engine)
    with pytest.raises(Overloaded):
        await open_speech(model, NOTHING)
    ServedModel("tts", FakeSpeech(), "f", engine, is_live=True).check_admission()
    is_idle = is_idle_work.set(True)
    model.check_admission()
    is_idle_work.reset(is_idle)
    assert engine.num_asked == 1
    ServedModel("tts", FakeSpeech(), "f", FakeEngine()).check_admission()
