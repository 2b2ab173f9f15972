"""What real clients do: the openai SDK unmodified, probes, the page."""

from __future__ import annotations

import io

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
