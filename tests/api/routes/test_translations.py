"""POST /v1/audio/translations: refused, with the models that are served."""

from __future__ import annotations

import openai
import pytest

URL = "/v1/audio/translations"


def ask(client, content, **fields):
    return client.post(URL, data={"model": "org/asr"} | fields, files={"file": ("a", content)})


def test_it_says_what_the_model_does_instead(client, tone_wav):
    answer = ask(client, tone_wav(1.0), prompt="a", response_format="srt", temperature="0.5")
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == ("model", "translation_unsupported")
    assert "/v1/audio/transcriptions" in error["message"]


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"model": "none"}, 404, "model"),
        ({"model": "tts"}, 400, "model"),
        ({"language": "en"}, 400, "language"),
        ({"stream": "true"}, 400, "stream"),
        ({"response_format": "ogg"}, 400, "response_format"),
        ({"temperature": "2"}, 400, "temperature"),
        ({"temperature": ["0", "1"]}, 400, "temperature"),
    ],
)
def test_invalid_translation_requests_name_their_field(client, tone_wav, fields, status, param):
    answer = ask(client, tone_wav(1.0), **fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


def test_a_file_is_needed_all_the_same(client, tone_wav):
    answer = client.post(URL, data={"model": "org/asr"}, files={"other": ("a", b"1")})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "file")


def test_the_sdk_understands(client, server, tone_wav):
    with (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as sdk,
        pytest.warns(DeprecationWarning, match="deprecated"),
        pytest.raises(openai.BadRequestError) as refused,
    ):
        sdk.audio.translations.create(model="org/asr", file=("a.wav", tone_wav(1.0)))
    assert refused.value.code == "translation_unsupported"


def test_models_are_found_under_both_spellings_and_not_deleted(client):
    for path in ("/v1/models/org/asr", "/v1/models/org%2Fasr"):
        assert client.get(path).json()["id"] == "org/asr"
        refused = client.delete(path)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "permission_denied")
    assert client.get("/v1/models/org/asr").status_code == 200
    missing = client.delete("/v1/models/org%2Fnone")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")
    models = [{"id": name} for name in ("tts", "org/asr")]
    assert client.get("/v1/audio/models").json() == {"models": models}


def test_a_path_says_all_that_can_be_done_with_it(client):
    answer = client.put("/v1/models/tts")
    assert (answer.status_code, answer.headers["allow"]) == (405, "DELETE, GET, HEAD")
