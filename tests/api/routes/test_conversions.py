"""POST /v1/audio/convert: a file in another format, without a model."""

from __future__ import annotations

import numpy as np
import pytest

from izwi.audio.decode import decode_audio
from izwi.audio.encode import CONTENT_TYPES

URL = "/v1/audio/convert"


def convert(client, content, **fields):
    return client.post(URL, data=fields, files={"file": ("a.wav", content)})


@pytest.mark.parametrize("audio_format", CONTENT_TYPES)
def test_a_file_is_encoded_without_a_model(client, tone_wav, audio_format):
    answer = convert(client, tone_wav(11.0, 24_000), response_format=audio_format)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == CONTENT_TYPES[audio_format]
    if audio_format == "pcm":
        samples = np.frombuffer(answer.content, "<i2") / 32768
    else:
        samples = decode_audio(answer.content, 24_000)
    assert len(samples) / 24_000 == pytest.approx(11.0, abs=0.2)
    sent = decode_audio(tone_wav(11.0, 24_000), 24_000)
    # mp3 loses some of a tone's level
    assert np.std(samples) == pytest.approx(np.std(sent), rel=0.1)


@pytest.mark.parametrize(
    ("fields", "content", "param"),
    [
        ({"response_format": "midi"}, None, "response_format"),
        ({"color": "red"}, None, "color"),
        ({}, b"no audio at all", "file"),
    ],
)
def test_invalid_conversion_requests_are_400(client, tone_wav, fields, content, param):
    answer = convert(client, content or tone_wav(0.1), **fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_a_file_is_needed(client):
    answer = client.post(URL, files={"response_format": (None, "mp3")})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "file")
