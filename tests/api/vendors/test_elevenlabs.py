"""ElevenLabs' API over the wire, as its documentation says; tests/clients has its own SDK."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from izwi.audio.decode import decode_audio
from izwi.model.alignment import AlignedWord
from izwi_api.vendors.elevenlabs.alignment import CharacterTimes
from tests.api.conftest import FRAME
from tests.api.vendors.streaming import FakeStreaming

TTS = "/elevenlabs/v1/text-to-speech"


@pytest.fixture
def key(vendors):
    return {"xi-api-key": vendors.keys["free"]}


def detail(answer):
    return answer.json()["detail"]


@pytest.mark.parametrize("way", ["", "/stream"])
def test_a_text_is_spoken_in_the_format_of_the_query(http, key, way):
    ask = {"text": "Hello", "model_id": "eleven_flash_v2_5", "voice_settings": {"stability": 1}}
    query = {"output_format": "pcm_12000"}
    answer = http.post(f"{TTS}/Ann{way}", json=ask, params=query, headers=key)
    assert answer.status_code == 200, answer.text
    assert len(answer.content) == 5 * FRAME  # a frame a character: half the rate, two bytes each
    assert np.abs(np.frombuffer(answer.content, np.int16)).max() > 1000


def test_ssml_is_read_but_its_characters_have_no_times(http, key):
    ask, query = {"text": "<speak>Hi<break time='500ms'/></speak>"}, {"output_format": "pcm_24000"}
    heard = http.post(f"{TTS}/Ann", json=ask, params=query, headers=key).content
    plain = http.post(f"{TTS}/Ann", json={"text": "Hi"}, params=query, headers=key).content
    assert heard == plain + bytes(24_000)
    answer = http.post(f"{TTS}/Ann/with-timestamps", json=ask, headers=key)
    assert (answer.status_code, detail(answer)["param"]) == (400, "text")


@pytest.mark.parametrize("name", ["mp3_44100_128", "opus_48000_64", "wav_16000"])
def test_other_formats_have_a_header(http, key, name):
    query = {"output_format": name}
    answer = http.post(f"{TTS}/Ann", json={"text": "Hello"}, params=query, headers=key)
    assert len(decode_audio(answer.content, 8000)) / 8000 == pytest.approx(0.4, abs=0.1)


def test_mu_law_has_a_byte_a_sample(http, key):
    query = {"output_format": "ulaw_8000"}
    answer = http.post(f"{TTS}/Ann", json={"text": "Hello"}, params=query, headers=key)
    assert len(answer.content) == 5 * FRAME // 3


def test_names_of_models_and_voices_are_aliases_of_the_operator(http, vendors, key):
    ask = {"text": "Hello", "model_id": "eleven_alias"}
    assert http.post(f"{TTS}/Rachel-ID", json=ask, headers=key).status_code == 200
    assert vendors.speech.asked[-1].voice == "Bob"
    models = http.get("/elevenlabs/v1/models", headers=key).json()
    assert [model["model_id"] for model in models] == ["tts", "eleven_alias"]


@pytest.mark.parametrize(
    ("path", "ask", "status", "code"),
    [
        ("/Nobody", {"text": "Hello"}, 404, "voice_not_found"),
        ("/Ann", {"text": "Hello", "model_id": "other"}, 404, "model_not_found"),
        ("/Ann", {"text": " "}, 400, "invalid_request"),
        ("/Ann", {"text": "Hi", "voice_settings": {"speed": 9}}, 400, "invalid_value"),
        ("/Ann?output_format=pcm_1", {"text": "Hi"}, 400, "invalid_request"),
        ("/Ann", {}, 400, "missing_required_parameter"),
        ("/Ann/with-timestamps", {"text": "Hi", "language_code": "xx"}, 400, "invalid_request"),
        ("/Ann/elsewhere", {"text": "Hi"}, 404, "not_found"),
    ],
)
def test_errors_are_details(http, key, path, ask, status, code):
    answer = http.post(f"{TTS}{path}", json=ask, headers=key)
    assert (answer.status_code, detail(answer)["status"]) == (status, code), answer.text
    assert detail(answer)["message"]
    assert detail(answer)["request_id"] == answer.headers["x-request-id"]


@pytest.mark.parametrize("shown", [{"xi-api-key": "wrong"}, {}])
def test_a_wrong_key_is_refused_in_their_format(http, shown):
    answer = http.post(f"{TTS}/Ann", json={"text": "Hello"}, headers=shown)
    assert (answer.status_code, detail(answer)["status"]) == (401, "invalid_api_key")


def test_their_key_is_of_their_paths_alone(http, key):
    assert http.get("/v1/models", headers=key).status_code == 401


def test_a_quota_holds_and_the_audit_names_the_key(http, vendors):
    poor = {"xi-api-key": vendors.keys["poor"]}
    answer = http.post(f"{TTS}/Ann", json={"text": "Hello"}, headers=poor)
    assert (answer.status_code, detail(answer)["status"]) == (429, "quota_exceeded")
    assert vendors.audited("poor", f"{TTS}/{{voice_id}}")["status"] == 429


def test_voices_are_listed_found_cloned_and_deleted(http, key, tone_wav):
    names = [v["name"] for v in http.get("/elevenlabs/v1/voices", headers=key).json()["voices"]]
    assert {"Ann", "Bob", "alloy", "rachel-id"} <= set(names)
    page = http.get("/elevenlabs/v2/voices?page_size=3", headers=key).json()
    assert (len(page["voices"]), page["has_more"], page["total_count"]) == (3, True, len(names))
    rest = http.get(f"/elevenlabs/v2/voices?next_page_token={page['next_page_token']}", headers=key)
    assert rest.json()["voices"][0]["name"] == names[3]
    files = {"files": ("a.wav", tone_wav(2.0))}
    form = {"name": "mine", "labels": json.dumps({"accent": "none"})}
    refused = http.post("/elevenlabs/v1/voices/add", data=form, files=files, headers=key)
    assert (refused.status_code, detail(refused)["param"]) == (400, "labels")
    form["labels"] = json.dumps({"consent": "The speaker agreed."})
    made = http.post("/elevenlabs/v1/voices/add", data=form, files=files, headers=key)
    voice_id = made.json()["voice_id"]
    found = http.get(f"/elevenlabs/v1/voices/{voice_id}", headers=key).json()
    assert (found["name"], found["category"]) == ("mine", "cloned")
    assert http.post(f"{TTS}/{voice_id}", json={"text": "Hi"}, headers=key).status_code == 200
    assert http.delete(f"/elevenlabs/v1/voices/{voice_id}", headers=key).json()["status"] == "ok"
    assert http.get(f"/elevenlabs/v1/voices/{voice_id}", headers=key).status_code == 404


def test_a_file_is_transcribed(http, key, tone_wav, monkeypatch):
    form, files = {"model_id": "scribe_v1", "keyterms": ["izwi"]}, {"file": tone_wav(2.0)}
    answer = http.post("/elevenlabs/v1/speech-to-text", data=form, files=files, headers=key)
    assert answer.status_code == 200, answer.text
    heard = answer.json()
    assert (heard["text"], heard["language_code"]) == ("word word izwi", "eng")
    assert heard["audio_duration_secs"] == pytest.approx(2.0)
    assert [(word["type"], word["text"], word["start"]) for word in heard["words"]] == [
        ("word", "word", 0.0),
        ("spacing", " ", 0.5),
        ("word", "word", 1.0),
        ("spacing", " ", 1.5),
        ("word", "izwi", 2.0),
    ]
    assert "x-izwi-ignored" not in answer.headers
    monkeypatch.setattr(FakeStreaming, "follows_context", False)
    answer = http.post("/elevenlabs/v1/speech-to-text", data=form, files=files, headers=key)
    assert answer.headers["x-izwi-ignored"] == "keyterms"
    raw = {"file": tone_wav(2.0)[44:]}
    form = {"model_id": "scribe_v1", "file_format": "pcm_s16le_16"}
    answer = http.post("/elevenlabs/v1/speech-to-text", data=form, files=raw, headers=key)
    assert answer.json()["text"] == "word word"


def test_characters_of_a_speech_have_times(http, key):
    ask, query = {"text": "Hello you."}, {"output_format": "pcm_24000"}
    url = f"{TTS}/Ann/with-timestamps"
    made = http.post(url, json=ask, params=query, headers=key).json()
    assert len(base64.b64decode(made["audio_base64"])) == 10 * FRAME * 2
    assert "".join(made["alignment"]["characters"]) == "Hello you."
    starts = made["alignment"]["character_start_times_seconds"]
    assert (starts[0], starts[1], starts[5]) == (0.0, 0.1, 0.5)
    url = f"{TTS}/Ann/stream/with-timestamps"
    lines = http.post(url, json=ask, params=query, headers=key).text.splitlines()
    chunks = list(map(json.loads, lines))
    assert sum(len(base64.b64decode(c["audio_base64"])) for c in chunks) == 10 * FRAME * 2
    characters = [
        c for chunk in chunks if chunk["alignment"] for c in chunk["alignment"]["characters"]
    ]
    assert "".join(characters) == "Hello you."


def test_what_a_transcription_cannot_do_is_refused(http, key, vendors, tone_wav):
    form, files = {"model_id": "scribe_v1", "webhook": "true"}, {"file": tone_wav(1.0)}
    answer = http.post("/elevenlabs/v1/speech-to-text", data=form, files=files, headers=key)
    assert (answer.status_code, detail(answer)["param"]) == (400, "webhook")
    poor = {"xi-api-key": vendors.keys["poor"]}
    files = {"file": tone_wav(2.0)}
    form = {"model_id": "scribe_v1"}
    answer = http.post("/elevenlabs/v1/speech-to-text", data=form, files=files, headers=poor)
    assert (answer.status_code, detail(answer)["status"]) == (429, "quota_exceeded")


def messages(socket):
    received = []
    try:
        while True:
            received.append(json.loads(socket.recv(60)))
    except ConnectionClosed:
        return received, socket.close_code


def stream_input(vendors, key, query="output_format=pcm_24000", voice="Ann"):
    path = f"{TTS}/{voice}/stream-input?{query}"
    return vendors.connect(path, {"xi-api-key": vendors.keys[key]})


def test_text_is_spoken_while_it_is_written(vendors):
    with stream_input(vendors, "free") as socket:
        socket.send(json.dumps({"text": " ", "voice_settings": {"speed": 1.0}}))
        socket.send(json.dumps({"text": "Hello ", "flush": True}))
        first = json.loads(socket.recv(60))  # audio, before the text is complete
        socket.send(json.dumps({"text": "there "}))
        socket.send(json.dumps({"text": ""}))
        received, code = messages(socket)
    audio = [base64.b64decode(message["audio"]) for message in [first, *received[:-1]]]
    assert sum(map(len, audio)) == 12 * FRAME * 2
    assert (received[-1], code) == ({"audio": None, "isFinal": True}, 1000)


def test_bare_samples_of_another_rate_are_made_of_ours(vendors):
    with stream_input(vendors, "free", "output_format=ulaw_8000") as socket:
        for text in (" ", "Hello ", ""):
            socket.send(json.dumps({"text": text}))
        received, _ = messages(socket)
    audio = b"".join(base64.b64decode(message["audio"]) for message in received[:-1])
    assert len(audio) == 6 * FRAME // 3


@pytest.mark.parametrize(
    ("key", "voice", "sent", "code"),
    [
        ("free", "Nobody", ['{"text": " "}', '{"text": "Hello "}'], "voice_not_found"),
        ("free", "Ann", ["nonsense"], "invalid_message"),
        ("poor", "Ann", ['{"text": " "}', '{"text": "Hello "}'], "insufficient_quota"),
    ],
)
def test_an_error_closes_the_socket(vendors, key, voice, sent, code):
    with stream_input(vendors, key, voice=voice) as socket:
        for text in sent:
            socket.send(text)
        received, close_code = messages(socket)
    assert (received[-1]["error"], close_code) == (code, 1008)
    assert received[-1]["message"]


def test_a_handshake_with_a_wrong_key_or_format_is_refused(vendors):
    for shown, query, status in (
        ("wrong", "", 401),
        (vendors.keys["free"], "output_format=x", 400),
    ):
        with pytest.raises(InvalidStatus) as caught:
            vendors.connect(f"{TTS}/Ann/stream-input?{query}", {"xi-api-key": shown})
        assert caught.value.response.status_code == status
        assert "detail" in json.loads(caught.value.response.body)


def test_characters_share_the_times_of_their_words():
    times = CharacterTimes("Hi, 7 you")
    times.add([AlignedWord("Hi", 0.2, 0.4, 0, 2), AlignedWord("seven", 0.5, 0.8, 4, 9)])
    first = times.pop()
    assert first["characters"] == ["H", "i"]
    assert first["character_start_times_seconds"] == [0.2, 0.3]
    times.add([AlignedWord("you", 1.0, 1.3, 10, 13)])
    rest = times.pop(is_last=True)
    assert "".join(rest["characters"]) == ", 7 you"
    assert rest["character_end_times_seconds"] == [0.55, 0.7, 0.85, 1.0, 1.1, 1.2, 1.3]
    assert times.pop(is_last=True) is None
