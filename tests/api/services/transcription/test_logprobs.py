"""Log probabilities of a transcription's tokens, whole and streamed, faked and of a real engine."""

from __future__ import annotations

import json
from statistics import fmean

import httpx
import numpy as np
import pytest

from izwi.audio.encode import wav_header
from izwi.audio.pcm import to_s16le
from izwi_api.services.transcription.text_tokens import TextToken, text_tokens, trimmed, within
from izwi_models.qwen3_asr.text import collapse_repeats
from tests.api.in_process import serving
from tests.models.tiny_asr import waveform, write_tiny_asr

URL = "/v1/audio/transcriptions"


def write(client, content, model="org/asr", **fields):
    form = {"model": model, "include[]": "logprobs"} | fields
    answer = client.post(URL, data=form, files={"file": ("a.wav", content)})
    assert answer.status_code == 200, answer.text
    return answer


def joined(tokens):
    return b"".join(bytes(token["bytes"]) for token in tokens)


def events(answer):
    return [json.loads(line[6:]) for line in answer.text.split("\n\n") if line]


@pytest.mark.parametrize("language", ["", "en"])
def test_tokens_join_to_the_text_without_the_tag(client, tone_wav, language):
    answer = write(client, tone_wav(12.0), language=language).json()
    tokens = answer["logprobs"]
    assert joined(tokens).decode() == answer["text"] == " ".join(["word"] * 12)
    for token in tokens:  # as the engine of these tests makes them
        spelled = bytes(token["bytes"])
        assert token["token"].encode() == spelled
        assert token["logprob"] == -spelled[-1] / 1024


def test_every_delta_has_its_own(client, server, tone_wav):
    server.engine.step_s = 0.005
    *deltas, done = events(write(client, tone_wav(12.0), stream="true"))
    assert len(deltas) > 3
    assert [token for delta in deltas for token in delta["logprobs"]] == done["logprobs"]
    assert joined(done["logprobs"]).decode() == done["text"]
    reported = 0
    for delta in deltas:
        reported += len(delta["delta"].encode()) - len(joined(delta["logprobs"]))
        assert reported >= 0, "a token before its text"


def test_logprobs_are_absent_unless_requested(client, tone_wav):
    form = {"model": "org/asr"}
    files = {"file": ("a.wav", tone_wav(2.0))}
    assert "logprobs" not in client.post(URL, data=form, files=files).json()
    streamed = client.post(URL, data=form | {"stream": "true"}, files=files)
    assert "logprobs" not in streamed.text


def test_segments_have_the_mean(client, tone_wav):
    wav = tone_wav(12.0)
    tokens = write(client, wav).json()["logprobs"]
    segments = write(client, wav, response_format="verbose_json").json()["segments"]
    first = len(segments[0]["text"])
    means = [fmean(t["logprob"] for t in part) for part in (tokens[:first], tokens[first:])]
    assert [segment["avg_logprob"] for segment in segments] == pytest.approx(means)
    assert means[0] < 0


def test_a_text_that_ends_in_white_space_and_in_half_a_character():
    tokens = text_tokens([b"", b"a", b" \xe2\x82", b"\xac", b"b \xe2", b" \n"], range(6), " ")
    assert [t.spelling for t in tokens] == [b" a", b" \xe2\x82", b"\xac", b"b \xe2", b" \n"]
    assert [t.logprob for t in tokens] == [1, 2, 3, 4, 5]
    assert within(tokens, " a ") == tokens[:1]
    assert within(tokens, " a \u20acb") == tokens[:3]
    assert trimmed(tokens) == tokens[:4]
    assert trimmed([*tokens[:1], TextToken(b"b ", 7)]) == [tokens[0], TextToken(b"b", 7)]
    assert trimmed([TextToken(b" ", 7)]) == []


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A transcriber of random weights in the real engine: it writes any bytes."""
    root = tmp_path_factory.mktemp("tiny")
    with (
        serving(root / "home", write_tiny_asr(root / "asr")) as (url, _),
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        yield client


@pytest.mark.slow  # tests/models/test_asr_logprobs.py has it of the model
@pytest.mark.parametrize("language", ["", "de"])
def test_a_real_model_in_a_real_engine(tiny, language):
    pcm = to_s16le(waveform(3.2).astype(np.float32))
    content = wav_header(16_000, len(pcm)) + pcm
    answer = write(tiny, content, "asr", language=language).json()
    tokens = answer["logprobs"]
    assert len({token["logprob"] for token in tokens}) > 8
    assert all(token["logprob"] < 0 and token["bytes"] for token in tokens)
    # this model repeats itself, which the text has once
    assert collapse_repeats(joined(tokens).decode(errors="replace")) == answer["text"]
    *deltas, done = events(write(tiny, content, "asr", language=language, stream="true"))
    assert done["logprobs"] == tokens
    assert [token for delta in deltas for token in delta["logprobs"]] == tokens
