"""Names of models over HTTP: those that the operator gives, and the error for an unknown one."""

from __future__ import annotations

import hashlib

import httpx
import openai
import pytest

from izwi.checkpoints.registry import named
from izwi.errors import InvalidRequest
from izwi_api.serve.app import create_app
from izwi_api.services.models.alias_option import parse_aliases
from izwi_api.settings import Access, Settings
from izwi_api.usage.keys import add_key
from izwi_api.usage.limits import KeyLimits
from tests.api.conftest import FakeEngine, FakeRegistry, FakeSpeech, FakeTranscription, listening
from tests.api.served import served

ALIASES = {"tts-1": "tts", "gpt-4o-mini-tts": "tts", "whisper-1": "org/asr"}


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    engine, models = FakeEngine(), {"tts": FakeSpeech(), "org/asr": FakeTranscription()}
    settings = Settings(
        home=home, model_aliases=ALIASES, access=Access(audit_log=home / "audit.jsonl")
    )
    app = create_app(engine, FakeRegistry(**models), settings)
    with listening(app) as port, httpx.Client(base_url=f"http://127.0.0.1:{port}") as http:
        yield http


def test_requests_at_the_engine_name_their_caller(tmp_path):
    """Also those whose model has its own name."""
    asked = []

    class Noting(FakeEngine):
        def submit_all(self, requests):
            asked.extend((request.model, request.caller) for request in requests)
            return super().submit_all(requests)

    engine, models = Noting(), {"tts": FakeSpeech(), "org/asr": FakeTranscription()}
    path = tmp_path / "keys.toml"
    keys = [add_key(path, name, KeyLimits()) for name in ("ann", "bob")]
    settings = Settings(
        home=tmp_path, model_aliases=ALIASES, access=Access(api_keys_file=path), decode_workers=0
    )
    with listening(create_app(engine, FakeRegistry(**models), settings)) as port:
        for key, model in zip(keys, ("tts-1", "tts"), strict=True):
            ask = {"model": model, "input": "hi", "voice": "Ann"}
            head = {"authorization": f"Bearer {key}"}
            url = f"http://127.0.0.1:{port}/v1/audio/speech"
            assert httpx.post(url, json=ask, headers=head).status_code == 200
    assert asked == [("tts", "key ann"), ("tts", "key bob")]


def test_aliases_are_listed_with_the_model_behind_them(client):
    listed = {entry["id"]: entry["root"] for entry in client.get("/v1/models").json()["data"]}
    assert listed == {"tts": "tts", "org/asr": "org/asr"} | ALIASES
    assert client.get("/v1/models/tts-1").json()["root"] == "tts"
    audio = client.get("/v1/audio/models").json()["models"]
    assert {entry["id"] for entry in audio} == set(listed)


def test_an_unknown_model_error_names_the_option(client):
    ask = {"model": "tts-1-hd", "input": "hi", "voice": "Ann"}
    for answer in (client.post("/v1/audio/speech", json=ask), client.get("/v1/models/tts-1-hd")):
        assert answer.status_code == 404
        error = answer.json()["error"]
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert "GET /v1/models" in error["message"]
        assert "izwi serve --alias tts-1-hd=MODEL" in error["message"]


def test_the_sdk_speaks_and_transcribes_under_openai_names(client, tone_wav):
    with openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="none", max_retries=0) as sdk:
        audio = sdk.audio.speech.create(model="tts-1", voice="alloy", input="hi").content
        assert audio == sdk.audio.speech.create(model="tts", voice="alloy", input="hi").content
        file = ("a.wav", tone_wav(1.0))
        text = sdk.audio.transcriptions.create(model="whisper-1", file=file).text
        assert text == sdk.audio.transcriptions.create(model="org/asr", file=file).text
        with pytest.raises(openai.BadRequestError):  # it is a model of the other kind
            sdk.audio.speech.create(model="whisper-1", voice="alloy", input="hi")


@pytest.mark.parametrize("aliases", [{"tts-1": "nothing"}, {"tts": "org/asr"}])
def test_an_alias_of_nothing_or_over_a_model_is_refused_at_the_start(tmp_path, aliases):
    registry = FakeRegistry(**{"tts": FakeSpeech(), "org/asr": FakeTranscription()})
    with pytest.raises(InvalidRequest, match="--alias"):
        create_app(FakeEngine(), registry, Settings(home=tmp_path, model_aliases=aliases))


def test_where_models_come_later_an_alias_waits_for_its_model(tmp_path):
    registry = FakeRegistry(tts=FakeSpeech())
    settings = Settings(home=tmp_path, manage_models=True, model_aliases={"whisper-1": "org/asr"})
    app = create_app(FakeEngine(), registry, settings)
    with listening(app) as port, httpx.Client(base_url=f"http://127.0.0.1:{port}") as http:
        assert http.get("/v1/models/whisper-1").status_code == 404
        assert len(http.get("/v1/models").json()["data"]) == 1
        registry.models["org/asr"] = FakeTranscription()
        assert http.get("/v1/models/whisper-1").json()["root"] == "org/asr"


@pytest.mark.parametrize("entries", [["tts-1"], ["=a"], ["a="], ["a b=c"], ["a=b", "a=c"]])
def test_an_invalid_alias_is_rejected(entries):
    with pytest.raises(InvalidRequest, match="--alias"):
        parse_aliases(entries)


def test_a_source_may_have_a_name_before_it(tmp_path):
    embedded = named("izwi-tiny-tts")[1]
    assert named("tts-1=izwi-tiny-tts") == ("tts-1", embedded)
    folder = tmp_path / "a=b"
    folder.mkdir()
    assert named(str(folder)) == ("a=b", folder)
    assert named(f"org/mine={folder}") == ("org/mine", folder)


@pytest.mark.slow  # openai-python's tests use such names, too
def test_a_server_speaks_under_the_names_that_it_was_given(tmp_path):
    with served(
        tmp_path,
        *("--model", "voice=izwi-tiny-tts", "--model", "izwi-tiny-asr"),
        *("--alias", "tts-1=voice", "--alias", "whisper-1=izwi-tiny-asr"),
        IZWI_DECODE_WORKERS="1",
    ) as server:

        def said(name):
            ask = {"model": name, "input": "Hello there.", "voice": "amber", "seed": 1}
            answer = httpx.post(server.url + "/v1/audio/speech", json=ask, timeout=60)
            assert answer.status_code == 200, answer.text
            return hashlib.sha256(answer.content).hexdigest()

        assert said("voice") == said("tts-1")
        listed = httpx.get(server.url + "/v1/models").json()["data"]
        assert {entry["id"]: entry["root"] for entry in listed} == {
            "voice": "voice",
            "izwi-tiny-asr": "izwi-tiny-asr",
            "tts-1": "voice",
            "whisper-1": "izwi-tiny-asr",
        }
