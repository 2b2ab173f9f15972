"""open-webui's four calls, byte for byte as its backend makes them (2026, `routers/audio.py`).

Its package brings gigabytes, so what it sends is written down here. aiohttp, which it sends with,
gives each field of a form a type of its own, and the file, read as it goes, no length.
"""

from __future__ import annotations

import json

import httpx
import pytest

from izwi.audio.decode import decode_audio

KEY = "sk-of-the-operator"
JSON = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
# With ENABLE_FORWARD_USER_INFO_HEADERS.
USER = {
    "X-OpenWebUI-User-Name": "Ada%20L",
    "X-OpenWebUI-User-Id": "0f2c",
    "X-OpenWebUI-User-Email": "ada@example.org",
    "X-OpenWebUI-User-Role": "admin",
}


@pytest.fixture
def openwebui(server, client):
    base_url = f"{server.url}/v1"
    with httpx.Client(
        base_url=base_url, headers={"User-Agent": "Python/3.11 aiohttp/3.12"}, timeout=60
    ) as http:
        yield http


def form(fields, name, pieces):
    """A form as aiohttp writes it: a type for each part, the file as it comes, in chunks."""
    boundary = "b3d1c7f0a96e4f0f9d6f5f1f6f0e8a11"

    def body():
        for key, value in fields.items():
            yield (
                f"--{boundary}\r\nContent-Type: text/plain; charset=utf-8\r\n"
                f'Content-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'
            ).encode()
        yield (
            f"--{boundary}\r\nContent-Type: application/octet-stream\r\n"
            f'Content-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
        ).encode()
        yield from pieces
        yield f"\r\n--{boundary}--\r\n".encode()

    return body(), {"Content-Type": f"multipart/form-data; boundary={boundary}"}


def in_pieces(content):
    return (content[at : at + 4096] for at in range(0, len(content), 4096))


def test_models(openwebui):
    """It asks without a key, and takes `models`; where that fails, `/models` and `data`."""
    models = openwebui.get("/audio/models").raise_for_status().json().get("models", [])
    assert [model["id"] for model in models] == ["tts", "org/asr"]
    models = openwebui.get("/models").raise_for_status().json().get("data")
    assert [model["id"] for model in models] == ["tts", "org/asr"]


def test_voices(openwebui):
    data = openwebui.get("/audio/voices").raise_for_status().json()
    voices = {voice["id"]: voice["name"] for voice in data.get("voices", [])}
    assert {"Ann", "Bob", "alloy"} <= set(voices)


@pytest.mark.parametrize("voice", ["Ann", "alloy"])
def test_speech(openwebui, voice):
    """What the page sends, with the operator's model; the answer is written to a file of mp3."""
    body = {"input": "hello", "voice": voice, "model": "tts"}
    answer = openwebui.post("/audio/speech", content=json.dumps(body), headers=JSON | USER)
    assert answer.raise_for_status().headers["content-type"] == "audio/mpeg"
    assert len(decode_audio(answer.content, 24_000)) >= 5 * 1920


def test_speech_with_the_operators_parameters(openwebui):
    """TTS_OPENAI_PARAMS are merged into the body."""
    body = {"input": "hello", "voice": "Ann", "model": "tts"} | {"speed": 2.0, "seed": 3}
    answer = openwebui.post("/audio/speech", content=json.dumps(body), headers=JSON)
    assert answer.status_code == 200


def test_speech_error_message_names_the_voice(openwebui):
    """It shows `error.message` to its user."""
    body = {"input": "hello", "voice": "nobody", "model": "tts"}
    answer = openwebui.post("/audio/speech", content=json.dumps(body), headers=JSON)
    assert answer.status_code >= 400
    assert "nobody" in answer.json()["error"]["message"]


@pytest.mark.parametrize("fields", [{}, {"language": "en"}])
def test_transcription(openwebui, tone_wav, fields):
    fields = {"model": "org/asr"} | fields
    content, headers = form(fields, "0d0c9d2e.wav", in_pieces(tone_wav(2.0)))
    headers |= {"Authorization": f"Bearer {KEY}"} | USER
    answer = openwebui.post("/audio/transcriptions", content=content, headers=headers)
    assert answer.raise_for_status().json()["text"] == "word word"


def test_transcription_by_requests(openwebui, tone_wav):
    """As its versions until 2025 sent it."""
    answer = openwebui.post(
        "/audio/transcriptions",
        data={"model": "org/asr"},
        files={"file": ("0d0c9d2e.wav", tone_wav(2.0))},
        headers={"Authorization": f"Bearer {KEY}"},
    )
    assert answer.raise_for_status().json()["text"] == "word word"


def test_transcription_as_json_is_refused(openwebui):
    """Its other request format, `json`, is one provider's own; the refusal names the right one."""
    body = {"model": "org/asr", "input_audio": {"data": "UklGRg==", "format": "wav"}}
    answer = openwebui.post("/audio/transcriptions", json=body)
    assert answer.status_code == 400
    assert "multipart/form-data" in answer.json()["error"]["message"]
