"""Speech, transcription and chat by one speech-to-speech checkpoint, with the real engine."""

from __future__ import annotations

import base64
import json
from functools import partial

import httpx
import numpy as np
import openai
import pytest

from izwi.audio.encode import stream_encoder, wav_header
from izwi.audio.pcm import to_s16le
from izwi_api.routes.realtime_calls import has_webrtc
from izwi_api.serve.app import create_app
from izwi_models.lfm2_audio import model as lfm2_model
from izwi_models.lfm2_audio.audio_config import MimiConfig
from tests.api.conftest import listening, wait_for
from tests.api.in_process import services_of
from tests.models.tiny_asr import waveform
from tests.models.tiny_lfm2_audio import CALM, MIMI, write_tiny_lfm2_audio

FRAME_BYTES = 2 * 1920
SAY = {"input": "Good day.", "response_format": "pcm"}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """LFM2-Audio with the audio of LFM2 (no voices by name) and of LFM2.5 (four of them)."""
    root = tmp_path_factory.mktemp("real")
    folders = [
        write_tiny_lfm2_audio(root / "newer"),
        write_tiny_lfm2_audio(root / "older", mimi=True),
        # says something before it would begin to speak
        write_tiny_lfm2_audio(root / "calm", loudness=CALM),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IZWI_SPEECH_DETECTION", "0")
        # Kyutai's file comes without a configuration
        patch.setattr(lfm2_model, "MimiConfig", partial(MimiConfig, **MIMI))
        services = services_of(root / "home", *folders)
    app = create_app(services.engine, services.registry, services.settings)
    with listening(app) as port:
        yield f"http://127.0.0.1:{port}", services


@pytest.fixture
def client(served):
    with openai.OpenAI(base_url=f"{served[0]}/v1", api_key="none", max_retries=0) as client:
        yield client


def clip(seconds: float) -> bytes:
    pcm = to_s16le(np.asarray(waveform(seconds), np.float32))
    return wav_header(16_000, len(pcm)) + pcm


def said(client, **more) -> bytes:
    extra = {"max_new_tokens": 16, "seed": 3} | more.pop("extra_body", {})
    asked = {"model": "newer", "voice": "us_male"} | SAY | more
    return client.audio.speech.create(**asked, extra_body=extra).content


def refusal(ask, **asked) -> tuple[int, str | None]:
    with pytest.raises(openai.APIStatusError) as refused:
        ask(**asked)
    return refused.value.status_code, refused.value.param


# -- what is listed --------------------------------------------------------------------------
def test_what_it_does_and_its_voices_are_listed(served, client):
    listed = httpx.get(f"{served[0]}/v1/models").json()
    assert listed["webrtc"] is has_webrtc()
    models = listed["data"]
    assert {tuple(model["languages"]) for model in models} == {("English",)}
    able = ["conversation", "speech", "transcription", "chat"]
    assert [(m["id"], m["task"], m["capabilities"]) for m in models] == [
        (name, "conversation", able) for name in ("newer", "older", "calm")
    ]
    for model in models:  # on a host its memory has no plan beside the pages
        assert model["memory"]["kv_bytes"] > 0
        assert model["memory"]["shared_bytes"] == 0
    voices = httpx.get(f"{served[0]}/v1/audio/voices").json()["data"]
    speakers = [(v["id"], v["model"]) for v in voices if v["kind"] == "speaker"]
    names = ("us_male", "us_female", "uk_male", "uk_female")
    assert speakers == [(name, model) for model in ("newer", "calm") for name in names]


# -- speech ----------------------------------------------------------------------------------
def test_it_says_a_text_with_one_of_its_voices(client):
    first = said(client)
    assert len(first) > 0
    assert len(first) % FRAME_BYTES == 0
    assert said(client, voice="US_Male") == first
    assert said(client, voice="uk_female") != first
    assert said(client, voice="alloy")  # OpenAI's names stand for its voices in order
    assert said(client, extra_body={"seed": 4}) != first


def test_a_voice_may_be_described_if_none_is_named(client):
    low = said(client, model="older", voice="alloy", instructions="A low voice.")
    high = said(client, model="older", voice="alloy", instructions="A high voice.")
    assert low != high
    assert low == said(client, model="older", voice="alloy", instructions="A low voice.")
    assert refusal(lambda: said(client, model="older", voice="us_male")) == (404, "voice")


def test_an_ignored_instruction_is_reported(served, client):
    body = SAY | {"model": "newer", "voice": "us_male", "instructions": "Low.", "max_new_tokens": 9}
    answer = httpx.post(f"{served[0]}/v1/audio/speech", json=body)
    assert answer.status_code == 200
    assert answer.headers["x-izwi-ignored"] == "instructions"


def test_its_codes_and_its_bill_have_frames_alone(served):
    body = SAY | {"model": "newer", "voice": "us_male", "max_new_tokens": 16, "seed": 3}
    body |= {"stream_format": "sse", "include_codes": True}
    lines = httpx.post(f"{served[0]}/v1/audio/speech", json=body).text.splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    codes = [row for e in events if e["type"] == "speech.audio.codes" for row in e["codes"]]
    audio = b"".join(map(_decoded, events))
    assert len(audio) == FRAME_BYTES * len(codes) > 0
    assert all(len(row) == 8 and row[0] < 2048 for row in codes)
    assert events[-1]["usage"]["output_tokens"] == len(codes)


def _decoded(event) -> bytes:
    return base64.b64decode(event.get("audio", ""))


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"voice": "nobody"}, 404, "voice"),
        ({"extra_body": {"text_mode": "streaming"}}, 400, "text_mode"),
        ({"extra_body": {"language": "german"}}, 400, "language"),
        ({"extra_body": {"ref_audio": "aaaa", "ref_text": "x"}}, 400, "ref_audio"),
        ({"input": "a " * 2040}, 400, "input"),
    ],
)
def test_speech_that_cannot_be(client, change, status, param):
    assert refusal(lambda: said(client, **change)) == (status, param)
    assert said(client)


def test_disconnect_frees_the_engine(served):
    body = SAY | {"model": "newer", "voice": "us_male", "max_new_tokens": 1900}
    with httpx.stream("POST", f"{served[0]}/v1/audio/speech", json=body) as answer:
        next(answer.iter_raw())
    wait_for(lambda: served[1].engine.load["newer"]["running"] == 0)


# -- transcription ---------------------------------------------------------------------------
def heard(client, content=None, **more):
    asked = {"model": "calm", "file": ("a.wav", content or clip(1.2)), "temperature": 0.0} | more
    return client.audio.transcriptions.create(**asked, extra_body={"max_new_tokens": 12})


def test_it_writes_down_what_it_hears(client):
    whole = heard(client)
    assert whole.text
    verbose = heard(client, response_format="verbose_json")
    assert verbose.text == whole.text
    assert verbose.language == "english"
    assert 0 < len(verbose.segments[0].tokens) <= 12
    pieces = list(heard(client, stream=True))
    assert "".join(p.delta for p in pieces if p.type == "transcript.text.delta") == whole.text
    likely = heard(client, include=["logprobs"])
    assert likely.text == whole.text
    spelled = bytes(int(b) for token in likely.logprobs for b in token.bytes)
    assert spelled.decode("utf-8", "replace") == whole.text
    assert all(token.logprob <= 0.0 for token in likely.logprobs)


def test_long_audio_is_transcribed_in_pieces(client):
    """Two minutes and more: longer than the encoder takes at once."""
    written = heard(client, clip(130.0), response_format="verbose_json")
    assert len(written.segments) >= 4
    assert all(s.end - s.start <= 30.01 for s in written.segments)
    assert written.duration == pytest.approx(130.0)


def test_audio_that_is_too_short_is_refused(client):
    assert refusal(lambda: heard(client, clip(0.05))) == (400, "file")
    assert heard(client, clip(0.15)).text


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"language": "fr"}, "language"),
        ({"prompt": "Names: Ann."}, "prompt"),
        ({"file": ("a.wav", b"no audio at all")}, "file"),
    ],
)
def test_a_transcription_that_cannot_be(client, change, param):
    assert refusal(lambda: heard(client, **change)) == (400, param)
    assert heard(client).text


def test_what_it_says_can_be_heard_by_itself(client):
    encoder = stream_encoder("wav", 24_000)
    samples = np.frombuffer(said(client), "<i2").astype(np.float32) / 32768
    file = encoder.write(samples) + encoder.finish()
    assert heard(client, file).text


# -- chat ------------------------------------------------------------------------------------
def test_it_answers_text_with_text(client):
    ask = {"model": "newer", "messages": [{"role": "user", "content": "Who is there?"}]}
    ask |= {"max_completion_tokens": 12, "temperature": 0.0}
    whole = client.chat.completions.create(**ask)
    (choice,) = whole.choices
    assert choice.message.content
    assert 0 < whole.usage.completion_tokens <= 12
    pieces = client.chat.completions.create(stream=True, **ask)
    assert "".join(p.choices[0].delta.content or "" for p in pieces) == choice.message.content
    likely = client.chat.completions.create(logprobs=True, top_logprobs=2, n=2, **ask)
    assert {c.message.content for c in likely.choices} == {choice.message.content}
    tokens = likely.choices[0].logprobs.content
    assert [token.top_logprobs[0].token for token in tokens] == [token.token for token in tokens]
    said_aloud = client.responses.create(
        model="newer", input="Who is there?", max_output_tokens=12, temperature=0.0
    )
    assert said_aloud.output_text == choice.message.content


def test_its_text_follows_a_schema(client):
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    schema["additionalProperties"] = False
    answer = client.chat.completions.create(
        model="newer",
        messages=[{"role": "user", "content": "x"}],
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        max_completion_tokens=40,
    )
    assert set(json.loads(answer.choices[0].message.content)) == {"a"}


def test_a_text_is_gone_on_with(served):
    body = {"model": "newer", "text": "Who is", "sampling_params": {"max_new_tokens": 5}}
    answer = httpx.post(f"{served[0]}/generate", json=body)
    assert answer.status_code == 200, answer.text


def test_tools_are_refused(client):
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    ask = {"model": "newer", "messages": [{"role": "user", "content": "x"}], "tools": [tool]}
    assert refusal(client.chat.completions.create, **ask) == (400, "tools")
