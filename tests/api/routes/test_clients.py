"""What real clients do: the openai SDK unmodified, probes, the page."""

from __future__ import annotations

import io

import httpx2
import openai
import pytest

from izwi.audio.decode import decode_audio


@pytest.fixture
def sdk(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_sdk_speech(client, sdk, tmp_path):
    with sdk.audio.speech.with_streaming_response.create(
        model="tts", voice="alloy", input="hello", response_format="wav"
    ) as answer:
        answer.stream_to_file(tmp_path / "a.wav")
    assert len(decode_audio(tmp_path / "a.wav", 24_000)) == 5 * 1920
    answer = sdk.audio.speech.create(
        model="tts", voice={"id": "Ann"}, input="hello", extra_body={"seed": 3}
    )
    assert answer.content
    assert answer.response.headers["x-request-id"]


def test_sdk_transcription(client, sdk, tone_wav):
    file = ("a.wav", io.BytesIO(tone_wav(2.0)))
    answer = sdk.audio.transcriptions.create(model="org/asr", file=file)
    assert answer.text == "word word"
    assert answer.usage.total_tokens > 0
    text = sdk.audio.transcriptions.create(model="org/asr", file=file, response_format="text")
    assert text == "word word"
    verbose = sdk.audio.transcriptions.create(
        model="org/asr",
        file=file,
        response_format="verbose_json",
        timestamp_granularities=["segment"],
        chunking_strategy={"type": "server_vad", "threshold": 0.4},
        temperature=0.0,
    )
    assert verbose.segments[0].text == "word word"
    likely = sdk.audio.transcriptions.create(
        model="org/asr", file=file, include=["logprobs"], languages=["en", "de"]
    )
    assert "".join(token.token for token in likely.logprobs) == likely.text
    assert [language.code for language in likely.languages] == ["en"]
    events = list(sdk.audio.transcriptions.create(model="org/asr", file=file, stream=True))
    deltas = "".join(e.delta for e in events if e.type == "transcript.text.delta")
    assert events[-1].text == deltas == "word word"


def test_sdk_models(client, sdk):
    assert [model.id for model in sdk.models.list()] == ["tts", "org/asr"]
    assert sdk.models.retrieve("org/asr").id == "org/asr"
    assert client.get("/v1/models/org/asr").json()["id"] == "org/asr"
    assert client.get("/v1/audio/models").json()["models"][0] == {"id": "tts"}


def test_sdk_errors(client, sdk):
    with pytest.raises(openai.NotFoundError) as caught:
        sdk.audio.speech.create(model="none", voice="Ann", input="hello")
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as refused:
        sdk.audio.speech.create(model="tts", voice="Ann", input="")
    assert refused.value.param == "input"
    assert refused.value.request_id


REFUSED = {
    "no text": (
        openai.BadRequestError,
        "input",
        lambda sdk: sdk.audio.speech.create(model="tts", voice="Ann", input=" "),
    ),
    "a parameter that is none": (
        openai.BadRequestError,
        "pitch",
        lambda sdk: sdk.audio.speech.create(
            model="tts", voice="Ann", input="hello", extra_body={"pitch": 3}
        ),
    ),
    "no such voice": (
        openai.APIStatusError,
        "voice",
        lambda sdk: sdk.audio.speech.create(model="tts", voice="nobody", input="hello"),
    ),
    "no such model": (openai.NotFoundError, "model", lambda sdk: sdk.models.retrieve("a/b")),
    "no such path": (openai.NotFoundError, None, lambda sdk: sdk.moderations.create(input="a cat")),
    "models are not deleted": (
        openai.PermissionDeniedError,
        "model",
        lambda sdk: sdk.models.delete("org/asr"),
    ),
    "no audio": (
        openai.BadRequestError,
        "file",
        lambda sdk: sdk.audio.transcriptions.create(model="org/asr", file=b"Example data"),
    ),
    "a bug": (
        openai.InternalServerError,
        None,
        lambda sdk: sdk.audio.speech.create(model="tts", voice="Ann", input="PREPARE"),
    ),
    "a full queue": (
        openai.InternalServerError,
        None,
        lambda sdk: sdk.audio.speech.create(model="tts", voice="Ann", input="a\x02"),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_sdk_raises_what_it_has_for_each_status(client, sdk, name):
    kind, param, ask = REFUSED[name]
    with pytest.raises(kind) as caught:
        ask(sdk)
    error = caught.value
    assert error.param == param
    assert error.request_id.startswith("req_")
    assert set(error.body) == {"message", "type", "param", "code"}
    assert error.type == ("server_error" if error.status_code >= 500 else "invalid_request_error")
    assert "/etc" not in error.message
    if error.status_code == 503:
        assert error.response.headers["retry-after"] == "7"


def test_sdk_tries_again_what_may_come_right(client, server, sdk):
    """It tries three times if the server fails, and once if the request is wrong."""

    def num_answered(status):
        lines = client.get("/metrics").text.splitlines()
        head = f'izwi_http_requests_total{{route="/v1/audio/speech",status="{status}"}} '
        return sum(float(line.removeprefix(head)) for line in lines if line.startswith(head))

    patient = sdk.with_options(max_retries=2)
    before = num_answered(500), num_answered(400)
    for text in ("PREPARE", " "):
        with pytest.raises(openai.APIStatusError):
            patient.audio.speech.create(model="tts", voice="Ann", input=text)
    assert (num_answered(500) - before[0], num_answered(400) - before[1]) == (3, 1)


def test_the_sdk_raises_on_a_failure_in_a_stream(client, server, sdk, tone_wav):
    server.engine.step_s = 0.01
    stream = sdk.audio.transcriptions.create(
        model="org/asr",
        file=("a.wav", tone_wav(25.0)),
        language="english",
        prompt="\x01",
        stream=True,
    )
    first = next(stream)
    assert first.type == "transcript.text.delta"
    with pytest.raises(openai.APIError, match="internal error"):
        list(stream)
    ask = {"model": "tts", "voice": "Ann", "input": "hello\x01", "response_format": "pcm"}
    with (
        sdk.audio.speech.with_streaming_response.create(**ask) as answer,
        pytest.raises(httpx2.RemoteProtocolError),
    ):
        answer.read()


def test_voices(client):
    answer = client.get("/v1/audio/voices").json()
    assert answer["object"] == "list"
    assert answer["data"] == answer["voices"]
    by_id = {voice["id"]: voice for voice in answer["voices"]}
    assert by_id["Ann"]["kind"] == "speaker"
    assert by_id["alloy"]["speaker"] == "Bob"
    assert all(voice["name"] for voice in answer["voices"])


def test_probes_and_metrics(client):
    assert client.get("/livez").json() == {"status": "ok"}
    assert client.get("/readyz").status_code == 200
    client.get("/some/made/up/path")
    text = client.get("/metrics").text
    assert 'izwi_http_requests_total{route="/v1/audio/speech",status="200"}' in text
    assert "made" not in text
    assert 'izwi_engine_prefix_positions_hit_total{model="tts"} 7.0' in text
    assert 'izwi_engine_available_pages{model="tts"} 7.0' in text


def test_docs_say_where_the_api_is_described_and_load_nothing(client):
    answer = client.get("/docs")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    assert "/openapi.json" in answer.text
    version = ".".join(client.get("/openapi.json").json()["openapi"].split(".")[:2])
    assert f"OpenAPI {version}" in answer.text
    assert client.get("/redoc").status_code == 404


def test_openapi(client):
    paths = client.get("/openapi.json").json()["paths"]
    assert "/v1/audio/speech" in paths


def test_the_page(client):
    page = client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    for name in ("app.js", "style.css"):
        assert f"/page/{name}" in page.text
        assert client.get(f"/page/{name}").status_code == 200
    assert client.get("/page/__init__.py").status_code == 404
